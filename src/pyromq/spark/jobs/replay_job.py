"""Job `replay`: sends archived messages again, to their topic or another one, once per job name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyromq.plural import counted
from pyromq.spark.jobs.job_options import write_options
from pyromq.spark.jobs.runner import Tell
from pyromq.spark.jobs.session import (
    copied_columns,
    open_session,
    origin_of,
    own_properties,
    read_archive,
    same_queue,
    stored_between,
)
from pyromq.spark.jobs.settings import Replay, Summary
from pyromq.spark.options import BY_ENVIRONMENT
from pyromq.spark.worker_clients import queue_reader

SOURCE = "archive"
READER = "pyromq-spark-replay"


def run(settings: Replay, tell: Tell) -> Summary:
    """Send the chosen messages and return the summary.

    Raises `UsageError` for wrong settings, and the error of Spark if a task fails.
    """
    spark = open_session(settings.session)
    chosen = _chosen(read_archive(spark, settings.archive, settings.format), settings)
    counts = chosen.groupBy("topic", "brokerName", "queueId").count().toDF("topic", "broker", "queue", "messages")
    rows = [each.asDict() for each in counts.orderBy("topic", "broker", "queue").collect()]
    total = sum(row["messages"] for row in rows)
    place = settings.to_topic or settings.topic
    if settings.dry_run or not total:
        return Summary(rows, (f"{counted(total, 'message')} would be sent to {place}",))
    frame = _messages(_in_order(chosen), settings)
    if settings.rate:
        frame = _limited(frame, settings.rate)
    frame.write.format("rocketmq").mode("append").options(**write_options(settings)).save()
    tell(total)
    return Summary(rows, (f"{counted(total, 'message')} sent to {place}",))


def _chosen(archive: DataFrame, settings: Replay) -> DataFrame:
    chosen = archive.where(F.col("topic") == settings.topic)
    chosen = stored_between(chosen, settings.since, settings.until)
    if settings.tag:
        chosen = chosen.where(F.col("tags") == settings.tag)
    if settings.key:
        chosen = chosen.where(F.array_contains("keys", settings.key))
    return chosen


def _in_order(chosen: DataFrame) -> DataFrame:
    """Return the rows with the messages of each queue in one task, in order.

    A repeated job then has equal tasks.
    """
    return chosen.repartition("brokerName", "queueId").sortWithinPartitions("brokerName", "queueId", "queueOffset")


def _messages(chosen: DataFrame, settings: Replay) -> DataFrame:
    columns = copied_columns(origin_of(SOURCE), own_properties())
    if settings.same_queues:
        with queue_reader(READER, settings.session.namesrv, BY_ENVIRONMENT) as reader:
            columns += same_queue(reader, {settings.topic: settings.to_topic or settings.topic})
    return chosen.select(*columns)


def _limited(frame: DataFrame, rate: int) -> DataFrame:
    """Return the same rows, which all tasks together read at no more than `rate` rows per second."""
    tasks = max(frame.sparkSession.sparkContext.defaultParallelism, 1)
    allowed = max(rate / tasks, 0.001)

    def slowly(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        began, passed = time.monotonic(), 0
        for batch in batches:
            for start in range(0, batch.num_rows, max(int(allowed), 1)):
                piece = batch.slice(start, max(int(allowed), 1))
                passed += piece.num_rows
                yield piece
                time.sleep(max(began + passed / allowed - time.monotonic(), 0))

    return frame.coalesce(tasks).mapInArrow(slowly, frame.schema)
