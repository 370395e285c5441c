"""Golden records for the codec; one Spark session for the tests that need one."""

import asyncio
import gzip
import json
import os
import shutil
import sys
import tarfile
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

import pytest

from pyromq.clock import SystemClock
from pyromq.testing import Cluster

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
    """A cluster in a thread of this process; Spark's workers reach it over loopback."""
    ready: Future[str] = Future()
    stopping: Future[asyncio.Event] = Future()

    async def serve():
        async with Cluster(clock=SystemClock()) as cluster:
            stop = asyncio.Event()
            stopping.set_result(stop)
            ready.set_result(cluster.namesrv)
            await stop.wait()

    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    yield ready.result(10)
    loop.call_soon_threadsafe(stopping.result().set)
    thread.join()
    loop.close()
