"""A driver killed at one point after the other while it archives: every message is in the archive, once."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

import pyarrow.dataset as ds

from pyromq import Admin, Message, Producer

POINTS = ("in a task", "before the commit", "half way through the commit", "after the commit")
BATCH_ROWS = 100
SCRIPT = Path(__file__).parent / "killed_archive.py"


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.skipif(shutil.which("java") is None and not os.environ.get("JAVA_HOME"), reason="no Java")
def test_an_archive_survives_a_driver_killed_at_every_point(namesrv, tmp_path):
    topic = f"killed-{uuid4().hex[:8]}"
    count = BATCH_ROWS * (len(POINTS) + 1)
    with Admin(namesrv) as admin, Producer("kills-test", namesrv) as producer:
        admin.create_topic(topic, 4)
        for future in [producer.send_soon(Message(topic, b"%d" % number)) for number in range(count)]:
            future.result()

    def drive(point, batch):
        command = [sys.executable, str(SCRIPT), namesrv, topic, str(tmp_path), point, str(batch)]
        with (tmp_path / "driver.log").open("ab") as log:
            return subprocess.run(command, stdout=log, stderr=log, timeout=180, check=False).returncode

    for batch, point in enumerate(POINTS):
        assert drive(point, batch) == -signal.SIGKILL, (tmp_path / "driver.log").read_text()[-2000:]
    assert drive("never", 0) == 0, (tmp_path / "driver.log").read_text()[-2000:]
    rows = ds.dataset(tmp_path / "lake", format="parquet", partitioning="hive").to_table(columns=["body"])
    assert sorted(map(int, rows.column("body").to_pylist())) == list(range(count))
