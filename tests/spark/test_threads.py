"""Reads, writes and streams from threads of the driver."""

from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import functions as F

from pyromq import Admin
from pyromq.spark.jobs.settings import JOBS, build, run
from pyromq.spark.threads import use_session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module", autouse=True)
def topics(namesrv):
    with Admin(namesrv) as admin:
        for name in ("loads", "copies"):
            admin.create_topic(name, 1)


def write(spark, namesrv, tag):
    rows = spark.range(3).select(F.col("id").cast("string").alias("body"), F.lit(tag).alias("tags"))
    rows.write.format("rocketmq").options(namesrvAddr=namesrv, topic="loads").mode("append").save()


def read(spark, namesrv, topic="loads"):
    return spark.read.format("rocketmq").options(namesrvAddr=namesrv, subscribe=topic).load()


def copy(spark, namesrv, folder):
    """Copy a topic by a stream, and once more in foreachBatch, from threads of its own."""
    given = {"namesrvAddr": namesrv, "subscribe": "loads", "startingOffsets": "earliest"}
    rows = spark.readStream.format("rocketmq").options(**given).load().select("body")

    def again(batch, _):
        sink = batch.write.format("rocketmq").options(namesrvAddr=namesrv, topic="copies").mode("append")
        with ThreadPoolExecutor(1, initializer=use_session, initargs=(batch.sparkSession,)) as pool:
            pool.submit(sink.save).result()

    sink = rows.writeStream.format("rocketmq").options(namesrvAddr=namesrv, topic="copies")
    for name, writer in (("sink", sink), ("batch", rows.writeStream.foreachBatch(again))):
        place = writer.option("checkpointLocation", str(folder / name))
        place.trigger(availableNow=True).start().awaitTermination()


def test_threads_that_use_a_session_write_and_start_streams(spark, namesrv, tmp_path):
    with ThreadPoolExecutor(2, initializer=use_session, initargs=(spark,)) as pool:
        list(pool.map(lambda tag: write(spark, namesrv, tag), ["a", "b", "c", "d"]))
        assert pool.submit(lambda: read(spark, namesrv).count()).result() == 12
        pool.submit(copy, spark, namesrv, tmp_path).result()
    assert read(spark, namesrv, "copies").count() == 24


def test_a_job_runs_in_a_thread(spark, namesrv, tmp_path):
    values = {"topics": "loads", "checkpoint": str(tmp_path / "checkpoint"), "once": True, "to": str(tmp_path / "lake")}
    settings = build(JOBS["archive"], {"namesrv": namesrv} | values)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, "archive", settings, lambda _: None).result()


def test_canary_other_threads_do_not_find_data_sources(spark, namesrv):
    """When this fails, Spark gives threads a session: `use_session` can go, and its paragraph in docs/spark.md."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        pool.submit(write, spark, namesrv, "x").result()
