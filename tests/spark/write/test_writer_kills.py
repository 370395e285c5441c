"""A driver killed at one point after the other while it writes exactly once: every row is there, once."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from tests.spark.serving import cluster_in_thread, numbers_seen

from pyromq import Admin, Message, Producer

BATCH = 40
SCRIPT = Path(__file__).parent / "killed_writer.py"
# Each batch's point, and whether it is decided on when the driver is dead. A driver takes 15 s: `make spark` runs all.
POINTS = {"in a task": 0, "before the commit": 0, "half way through the commit": 1, "after the commit": 1}


@pytest.fixture
def namesrv():
    with cluster_in_thread(brokers=2) as namesrv:
        yield namesrv


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None and not os.environ.get("JAVA_HOME"), reason="no Java")
def test_a_driver_killed_at_any_point_copies_every_row_once(namesrv, tmp_path):
    points = list(POINTS)
    rows = BATCH * (len(points) + 1)
    with Admin(namesrv) as admin, Producer("kills", namesrv) as producer:
        for topic in ("source", "target"):
            admin.create_topic(topic, 2)
        for future in [producer.send_soon(Message("source", b"%05d" % number)) for number in range(rows)]:
            future.result()

    def drive(point, batch):
        command = [sys.executable, str(SCRIPT), namesrv, "source", "target", str(tmp_path / "checkpoint"), point]
        with (tmp_path / "driver.log").open("ab") as log:
            done = subprocess.run([*command, str(batch)], stdout=log, stderr=log, timeout=180, check=False)
        return done.returncode

    for batch, point in enumerate(points):
        decided = batch + POINTS[point]
        assert drive(point, batch) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-2000:]
        there = numbers_seen(namesrv, "target", decided * BATCH - (BATCH if "half" in point else 0))
        assert len(set(there)) == len(there) <= decided * BATCH
    assert drive("never", 0) == 0, (tmp_path / "driver.log").read_text()[-2000:]
    assert numbers_seen(namesrv, "target", rows) == list(range(rows))
