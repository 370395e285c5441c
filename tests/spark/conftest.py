"""Golden records for the codec; one Spark session for the tests that need one."""

import gzip
import json
import os
import shlex
import shutil
import signal
import sys
import tarfile
from pathlib import Path

import pytest

from .serving import cluster_in_thread

# Writes fewer files: 0.1 s of each micro-batch.
CHECKPOINTS = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
GOLDEN = Path(__file__).parent.parent / "golden" / "store"


@pytest.fixture(scope="session")
def java_store_records():
    """All records of the store that Java wrote, back to back, and what Java said about them."""
    pytest.importorskip("lz4")
    pytest.importorskip("zstandard")
    with tarfile.open(GOLDEN / "store-java.tar.gz") as archive:
        files = sorted((member for member in archive if "/commitlog/" in member.name), key=lambda member: member.name)
        log = b"".join(archive.extractfile(member).read() for member in files)
    first = int(Path(files[0].name).name)
    expected = json.loads(gzip.decompress((GOLDEN / "store-java.expected.json.gz").read_bytes()))["messages"]
    records = (log[m["commitLogOffset"] - first :][: m["storeSize"]] for m in expected)
    return b"".join(records), expected


@pytest.fixture(scope="session", autouse=True)
def small_java():
    """Let every Java process compile in one quick step: tests are over before more pays. Half the time of all tests."""
    before = dict(os.environ)
    os.environ["JDK_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    yield
    os.environ.clear()
    os.environ |= before


@pytest.fixture(scope="session")
def unzipped_python(tmp_path_factory):
    """Return a Python that imports pyspark from its folder.

    Spark's own path has a zip file with pyspark and a jar. Python compiles modules of a zip file in each process, and
    reads the directories of zip file and jar twenty times. Both are a quarter of a second for each Python process.
    """
    python = tmp_path_factory.mktemp("python") / "python3"
    path = shlex.quote(os.environ.get("PYTHONPATH", ""))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    return python


@pytest.fixture(scope="session")
def spark(small_java, unzipped_python):
    """A local session, small and quiet."""
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("no Java: install Java 17 or 21, or set JAVA_HOME")
    os.environ |= {"PYSPARK_PYTHON": str(unzipped_python), "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.streaming.checkpointFileManagerClass", CHECKPOINTS)
    )
    on_ctrl_c = signal.getsignal(signal.SIGINT)
    session = builder.getOrCreate()
    signal.signal(signal.SIGINT, on_ctrl_c)  # Spark sets its own; tests that follow in this process press Ctrl-C
    yield session
    session.stop()


@pytest.fixture(scope="module")
def namesrv():
    """A cluster in a thread of this process."""
    with cluster_in_thread() as namesrv:
        yield namesrv
