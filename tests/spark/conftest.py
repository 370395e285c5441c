"""Golden records for the codec; one Spark session for the tests that need one."""

import gzip
import json
import os
import shutil
import sys
import tarfile
from pathlib import Path

import pytest

from .serving import cluster_in_thread

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


@pytest.fixture(scope="session")
def spark():
    """A local session, small and quiet."""
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None and not os.environ.get("JAVA_HOME"):
        pytest.skip("no Java")
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    builder = (
        sql.SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.log.level", "ERROR")
    )
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def namesrv():
    """A cluster in a thread of this process."""
    with cluster_in_thread() as namesrv:
        yield namesrv
