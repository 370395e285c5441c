"""Golden records for the codec; one Spark session for the tests that need one."""

import gzip
import json
import os
import sys
import tarfile
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent.parent / "golden" / "store"


@pytest.fixture(scope="session")
def java_store_records(tmp_path_factory):
    """All records of the store that Java wrote, back to back, and what Java said about them."""
    pytest.importorskip("lz4")
    pytest.importorskip("zstandard")
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(GOLDEN / "store-java.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    files = sorted(folder.rglob("commitlog/*"))
    log = b"".join(path.read_bytes() for path in files)
    first = int(files[0].name)
    expected = json.loads(gzip.decompress((GOLDEN / "store-java.expected.json.gz").read_bytes()))["messages"]
    records = (log[m["commitLogOffset"] - first :][: m["storeSize"]] for m in expected)
    return b"".join(records), expected


@pytest.fixture(scope="session")
def spark():
    """A local session, small and quiet."""
    sql = pytest.importorskip("pyspark.sql")
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
