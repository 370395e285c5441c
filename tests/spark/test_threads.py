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


def stream(spark, namesrv):
    given = {"namesrvAddr": namesrv, "subscribe": "loads", "startingOffsets": "earliest"}
    return spark.readStream.format("rocketmq").options(**given).load().select("body")


def finish(writer, folder):
    writer.option("checkpointLocation", str(folder)).trigger(availableNow=True).start().awaitTermination()


def copy_in_batches(spark, namesrv, folder):
    """Copy a topic by a stream; foreachBatch writes from a thread of its own."""

    def write_batch(batch, _):
        sink = batch.write.format("rocketmq").options(namesrvAddr=namesrv, topic="copies").mode("append")
        with ThreadPoolExecutor(1, initializer=use_session, initargs=(batch.sparkSession,)) as pool:
            pool.submit(sink.save).result()

    finish(stream(spark, namesrv).writeStream.foreachBatch(write_batch), folder)


def copy_by_sink(spark, namesrv, folder):
    sink = stream(spark, namesrv).writeStream.format("rocketmq")
    finish(sink.options(namesrvAddr=namesrv, topic="copies"), folder)


def test_threads_that_use_a_session_write_and_start_streams(spark, namesrv, tmp_path):
    with ThreadPoolExecutor(2, initializer=use_session, initargs=(spark,)) as pool:
        list(pool.map(lambda tag: write(spark, namesrv, tag), ["a", "b"]))
        pool.submit(copy_in_batches, spark, namesrv, tmp_path / "batches").result()
    assert read(spark, namesrv, "copies").count() == 6


@pytest.mark.soak
def test_a_thread_starts_a_stream_with_a_sink(spark, namesrv, tmp_path):
    with ThreadPoolExecutor(1, initializer=use_session, initargs=(spark,)) as pool:
        before = pool.submit(lambda: read(spark, namesrv, "copies").count()).result()
        pool.submit(copy_by_sink, spark, namesrv, tmp_path / "sink").result()
    assert read(spark, namesrv, "copies").count() == before + read(spark, namesrv).count()


@pytest.mark.soak
def test_a_job_runs_in_a_thread(spark, namesrv, tmp_path):
    values = {"topics": "loads", "checkpoint": str(tmp_path / "checkpoint"), "once": True, "to": str(tmp_path / "lake")}
    settings = build(JOBS["archive"], {"namesrv": namesrv} | values)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(run, "archive", settings, lambda _: None).result()


def test_canary_other_threads_do_not_find_data_sources(spark, namesrv):
    """When this fails, Spark gives threads a session: delete `use_session` and its part of docs/spark-writing.md."""
    with ThreadPoolExecutor(1) as pool, pytest.raises(Exception, match="DATA_SOURCE_NOT_FOUND"):
        pool.submit(write, spark, namesrv, "x").result()
