"""Source, sink and an archive on a real standalone Spark: one master and two workers, processes of their own.

Started from PySpark's own jars. Executors have nothing but the installed package. One dies in each of two queries.
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

pytestmark = [pytest.mark.spark, pytest.mark.soak]

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


class Running:
    """A class of Spark as a process; `wait_for` reads what it says until a line says that it is ready."""

    def __init__(self, *arguments):
        small = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        command = [java(), *small, "-cp", f"{HOME}/jars/*", *arguments]
        self._process = subprocess.Popen(command, env=os.environ | ENVIRONMENT, stderr=subprocess.PIPE, text=True)
        self._rest = Thread(target=lambda: [None for _ in self._process.stderr])  # else it would wait for a reader

    def wait_for(self, text):
        line = next((line for line in self._process.stderr if text in line), None)
        assert line is not None, f"{self._process.args[-1]} ended at once"
        self._rest.start()
        return line

    def close(self):
        self._process.terminate()
        self._process.wait(30)
        if self._rest.is_alive():
            self._rest.join()
        self._process.stderr.close()


@pytest.fixture
def master(tmp_path):
    """A cluster of two workers; gives its URL."""
    deploy = "org.apache.spark.deploy"
    host = ("--host", "127.0.0.1", "--webui-port", "0")
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(contextlib.closing(Running(f"{deploy}.master.Master", *host, "--port", "0")))
        url = first.wait_for("Starting Spark master at").rpartition(" ")[2].strip()
        workers = []
        for number in range(2):
            place = ("--cores", "1", "--memory", "1g", "--work-dir", str(tmp_path / f"worker-{number}"))
            worker = Running(f"{deploy}.worker.Worker", *host, *place, url)
            workers.append(stack.enter_context(contextlib.closing(worker)))
        for worker in workers:
            worker.wait_for("Successfully registered with master")
        yield url


def test_source_sink_and_archive_run_on_a_cluster_and_survive_the_death_of_an_executor(namesrv, master, tmp_path):
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
    assert found["copied"] == list(range(COUNT))
    assert found["archived"] == list(range(COUNT))
