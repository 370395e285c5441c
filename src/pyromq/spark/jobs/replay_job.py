"""Job `replay`: sends archived messages again, to their topic or another one, once per job name."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyromq.errors import UsageError
from pyromq.excerpt import excerpt
from pyromq.plural import counted
from pyromq.spark.jobs.runner import Tell
from pyromq.spark.jobs.session import (
    copied_columns,
    open_session,
    origin_of,
    own_properties,
    read_archive,
    same_queue,
    sent_before,
    stored_between,
    write_once,
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
    archive = read_archive(spark, settings.archive, settings.format)
    chosen = _chosen(archive, settings)
    counts = chosen.groupBy("topic", "brokerName", "queueId").count().toDF("topic", "broker", "queue", "messages")
    rows = [each.asDict() for each in counts.orderBy("topic", "broker", "queue").collect()]
    total = sum(row["messages"] for row in rows)
    if not total:
        _check_topic(archive, settings)
    place = settings.to_topic or settings.topic
    if settings.dry_run:
        return Summary(rows, (f"{counted(total, 'message')} would be sent to {place}",))
    if not total:
        return Summary(rows, (f"0 messages sent to {place}",))
    frame = _messages(_in_order(chosen), settings)
    if settings.rate:
        frame = _limited(frame, settings.rate)
    sent = write_once(frame, settings)
    tell(total if sent else 0)
    note = f"{counted(total, 'message')} sent to {place}"
    return Summary(rows, (note if sent else f"0 messages sent to {place}: {sent_before(settings)}",))


def _check_topic(archive: DataFrame, settings: Replay) -> None:
    """Raise `UsageError` if the archive has no message of the topic."""
    topics = sorted(row.topic for row in archive.select("topic").distinct().collect())
    if settings.topic not in topics:
        has = f"it has {', '.join(topics)}" if topics else "it has no topics"
        raise UsageError(
            f"setting topic is {settings.topic}, which is not in the archive {settings.archive}; {excerpt(has)}"
        )


def _chosen(archive: DataFrame, settings: Replay) -> DataFrame:
    chosen = archive.where(F.col("topic") == settings.topic)
    chosen = stored_between(chosen, settings.since, settings.until)
    if settings.tag:
        chosen = chosen.where(F.col("tags") == settings.tag)
    if settings.key:
        chosen = chosen.where(F.array_contains("keys", settings.key))
    return chosen


def _in_order(chosen: DataFrame) -> DataFrame:
    """Return the rows with the messages of each queue in one task, in order."""
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
