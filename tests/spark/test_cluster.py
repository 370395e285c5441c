"""Source, sink and an archive on a real standalone Spark: one master and two workers, processes of their own.

Started from PySpark's own jars. Executors have nothing but the installed package.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import uuid
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("pyspark")

import pyspark

from pyromq import Admin, Message, Producer

pytestmark = [pytest.mark.spark, pytest.mark.slow]

HOME = Path(pyspark.__file__).parent
ENVIRONMENT = {
    "SPARK_HOME": str(HOME),
    "SPARK_SCALA_VERSION": "2.13",  # what it would read from folders that only a full Spark has
    "PYSPARK_PYTHON": sys.executable,
    "SPARK_LOCAL_IP": "127.0.0.1",
}
COUNT = 2000


def java():
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    return program or pytest.skip("no Java")


@contextlib.contextmanager
def process(*arguments, ready):
    """Run a class of Spark; yield the line that says it is ready."""
    environment = os.environ | ENVIRONMENT
    command = [java(), "-Xmx256m", "-cp", f"{HOME}/jars/*", *arguments]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            line = next((line for line in running.stderr if ready in line), None)
            assert line is not None, f"{arguments[0]} ended at once"
            rest = Thread(target=lambda: [None for _ in running.stderr])  # else it would wait for a reader
            rest.start()
            yield line
        finally:
            running.terminate()
            running.wait(30)
            rest.join()


@pytest.fixture
def master(tmp_path):
    """A cluster of two workers; gives its URL."""
    deploy = "org.apache.spark.deploy"
    host = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(
            process(f"{deploy}.master.Master", *host, "--port", "0", ready="Starting Spark master at")
        )
        url = line.rpartition(" ")[2].strip()
        for number in range(2):
            folder = str(tmp_path / f"worker-{number}")
            worker = (f"{deploy}.worker.Worker", *host, "--cores", "1", "--memory", "1g", "--work-dir", folder, url)
            stack.enter_context(process(*worker, ready="Successfully registered with master"))
        yield url


def test_archive_audit_and_replay_run_on_executors_of_a_cluster(namesrv, master, tmp_path):
    topic = f"cluster-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin, Producer("cluster-test", namesrv) as producer:
        admin.create_topic(topic, 8)
        admin.create_topic(f"{topic}-copy", 8)
        for future in [producer.send_soon(Message(topic, b"%d" % number)) for number in range(COUNT)]:
            future.result()
    command = [sys.executable, str(Path(__file__).with_name("on_a_cluster.py"))]
    arguments = [master, namesrv, topic, f"{topic}-copy", str(tmp_path)]
    done = subprocess.run(
        [*command, *arguments], env=os.environ | ENVIRONMENT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["executors"], found["failed"]) == (2, False), found["notes"]
    assert found["bodies"] == list(range(COUNT))
