"""`pyromq spark mirror` as a process: killed while it runs, started again, ended with Ctrl-C; every message once."""

import os
import shutil
import signal
import subprocess
import sys
import time
import uuid

import pytest

pytest.importorskip("pyspark")

from tests.spark.serving import numbers_seen

from pyromq import Admin, Message, Producer
from pyromq.cli.main import run

ROWS, QUEUES, KILLED_AT = 3000, 4, 700
SET_BY_OTHERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP")  # a user's terminal has none of them

pytestmark = [
    pytest.mark.soak,
    pytest.mark.spark,
    pytest.mark.skipif(shutil.which("java") is None and not os.environ.get("JAVA_HOME"), reason="no Java"),
]


@pytest.fixture
def source(namesrv):
    topic = f"mirrored-{uuid.uuid4().hex[:8]}"
    with Admin(namesrv) as admin, Producer("mirror-kills", namesrv) as producer:
        for name in (topic, f"{topic}-copy"):
            admin.create_topic(name, QUEUES)
        for future in [producer.send_soon(Message(topic, b"%d" % number)) for number in range(ROWS)]:
            future.result()
    return topic


@pytest.fixture
def mirror(namesrv, source, tmp_path):
    """Start the job, going on and on in small batches; what runs at the end of the test is killed."""
    command = [sys.executable, "-m", "pyromq", "spark", "mirror", "--namesrv", namesrv, "--to-namesrv", namesrv]
    command += ["--topics", source, "--to-topic", f"{source}-copy", "--checkpoint", str(tmp_path / "checkpoint")]
    command += ["--every", "0s", "--batch-rows", "200", "--master", "local[2]"]
    environment = {name: value for name, value in os.environ.items() if name not in SET_BY_OTHERS}
    started = []

    def start():
        # A group of processes of its own: the kill is for Spark's Java process, too.
        pipe = subprocess.PIPE
        job = subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, start_new_session=True)
        started.append(job)
        return job

    yield start
    for job in started:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.communicate()


def wait_for(job, namesrv, topic, least):
    with Admin(namesrv) as admin:
        while sum(each.max_offset for each in admin.topic_status(topic)) < least:
            assert job.poll() is None, job.stderr.read().decode()[-2000:]
            time.sleep(0.05)


def test_a_mirror_that_is_killed_copies_every_message_once(namesrv, source, mirror, spark, capsys):
    copy = f"{source}-copy"
    first = mirror()
    wait_for(first, namesrv, copy, KILLED_AT)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    second = mirror()
    wait_for(second, namesrv, copy, ROWS)
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=60)
    assert second.returncode == 0, err.decode()[-2000:]
    assert out.decode().split()[:7] == ["topic", "broker", "queue", "from", "to", "read", "left"]
    assert b" messages in " in err
    assert b"Traceback" not in err
    assert numbers_seen(namesrv, copy, ROWS) == list(range(ROWS))
    assert (
        run(["spark", "audit", "--mirror", copy, "--namesrv", namesrv, "--source-namesrv", namesrv, "--complete"]) == 0
    )
