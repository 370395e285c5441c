"""A driver killed at each point of an exactly-once write, and started again: every row is there, once."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

from pyromq import Admin, Message, Producer, PullConsumer

ROWS, BATCH = 160, 40  # of the source, and of a micro-batch
SCRIPT = Path(__file__).parent / "killed_writer.py"


@pytest.fixture
def drive(namesrv, tmp_path):
    """Copy a topic with a fresh checkpoint, killed at a point of the second batch; return the exit code."""
    source, topic = (f"{name}-{uuid4().hex[:8]}" for name in ("source", "killed"))
    with Admin(namesrv) as admin, Producer("kills", namesrv) as producer:
        for name in (source, topic):
            admin.create_topic(name, 4)
        queues = producer.queues(source)
        for number in range(ROWS):
            producer.send(Message(source, b"%d" % number), queue=queues[number % 4])

    def run(point):
        command = [sys.executable, str(SCRIPT), namesrv, source, topic, str(tmp_path / "checkpoint"), point, "1"]
        with (tmp_path / "driver.log").open("ab") as log:
            return subprocess.run(command, stdout=log, stderr=log, timeout=300, check=False).returncode

    run.topic = topic
    run.log = tmp_path / "driver.log"
    return run


def seen(namesrv, topic, least):
    with PullConsumer("kills-check", namesrv) as consumer:
        while sum(map(consumer.max_offset, consumer.queues(topic))) < least:
            pass
        found = []
        for queue in consumer.queues(topic):
            offset = 0
            while offset < consumer.max_offset(queue):
                result = consumer.pull(queue, offset, 32)
                found += [int(message.body) for message in result.messages]
                offset = result.next_offset
        return sorted(found)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None and not os.environ.get("JAVA_HOME"), reason="no Java")
@pytest.mark.parametrize(
    ("point", "there"),
    [("in a task", BATCH), ("before the commit", BATCH), ("after the commit", 2 * BATCH)],
)
def test_a_killed_driver_copies_every_row_once(namesrv, drive, point, there):
    assert drive(point) == -signal.SIGKILL, drive.log.read_text()[-2000:]
    assert len(set(seen(namesrv, drive.topic, there))) == len(seen(namesrv, drive.topic, there)) == there
    assert drive("never") == 0, drive.log.read_text()[-2000:]
    assert seen(namesrv, drive.topic, ROWS) == list(range(ROWS))
