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

from pyromq import Admin, PullConsumer

FILES, LINES = 4, 40
SCRIPT = Path(__file__).parent / "killed_writer.py"


@pytest.fixture
def drive(namesrv, tmp_path):
    """Run the driver with a fresh topic and checkpoint; return its exit code, as often as wanted."""
    topic = f"killed-{uuid4().hex[:8]}"
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(FILES):
        lines = range(number * LINES, (number + 1) * LINES)
        (folder / f"{number}.txt").write_text("".join(f"{line}\n" for line in lines))
        os.utime(folder / f"{number}.txt", (number, number))  # Spark reads the oldest first
    with Admin(namesrv) as admin:
        admin.create_topic(topic, 4)

    def run(point):
        command = [sys.executable, str(SCRIPT), namesrv, topic, str(folder), str(tmp_path / "checkpoint"), point, "1"]
        with (tmp_path / "driver.log").open("ab") as log:
            return subprocess.run(command, stdout=log, stderr=log, timeout=180, check=False).returncode

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
    [("in a task", LINES), ("before the commit", LINES), ("after the commit", 2 * LINES)],
)
def test_a_killed_driver_writes_every_row_once(namesrv, drive, point, there):
    assert drive(point) == -signal.SIGKILL
    assert seen(namesrv, drive.topic, there) == list(range(there))
    assert drive("never") == 0, drive.log.read_text()[-2000:]
    assert seen(namesrv, drive.topic, FILES * LINES) == list(range(FILES * LINES))
