"""Job `audit`: counts lost, repeated and disordered messages.

The job compares each queue of an archive with the broker, or a mirrored topic with its source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.column import Column

from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import TopicNotFound, UsageError
from pyromq.message import MessageQueue
from pyromq.plural import counted
from pyromq.spark.given_options import read_options
from pyromq.spark.jobs.job_options import audit_options, copies_options
from pyromq.spark.jobs.runner import Tell
from pyromq.spark.jobs.session import open_session, read_archive, read_copies
from pyromq.spark.jobs.settings import Audit, Summary
from pyromq.spark.option_values import listed
from pyromq.spark.read.bounds import ReadBounds
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.worker_clients import queue_reader, with_retries

PLACE = ["topic", "brokerName", "queueId"]
GROUP = "pyromq-spark-audit"
WRONG = ("lost", "repeated", "disordered")

Bounds = Mapping[MessageQueue, tuple[int, int]]


def run(settings: Audit, tell: Tell) -> Summary:
    """Count lost, repeated and disordered messages and return the summary.

    `failed` is true if a count is not 0. Raises `UsageError` for a missing archive.
    """
    spark = open_session(settings.session)
    rows = _mirror(spark, settings) if settings.mirror else _archive(spark, settings)
    tell(sum(row["rows"] for row in rows))
    if settings.report and rows:
        spark.createDataFrame(rows).coalesce(1).write.mode("overwrite").parquet(settings.report)
    found = {name: sum(row[name] for row in rows) for name in WRONG}
    note = ", ".join(f"{count} {name}" for name, count in found.items())
    return Summary(rows, (f"{counted(sum(row['rows'] for row in rows), 'row')}: {note}",), failed=any(found.values()))


def _archive(spark: SparkSession, settings: Audit) -> list[dict[str, Any]]:
    frame = read_archive(spark, settings.archive, settings.format)
    if settings.topics:
        frame = frame.where(F.col("topic").isin(listed(settings.topics)))
    counted = {_queue(row): row for row in _counted(frame, settings).collect()}
    topics = {queue.topic for queue in counted} | {*listed(settings.topics)}
    bounds = _bounds(settings, settings.session.namesrv, sorted(topics), counted)
    if missing := sorted(topics - {queue.topic for queue in counted.keys() | bounds.keys()}):
        raise UsageError(
            f"topic {missing[0]} is neither in the archive {settings.archive} nor at the brokers of"
            f" {settings.session.namesrv}"
        )
    return _rows(counted, bounds, settings)


def _rows(counted: Mapping[MessageQueue, Any], bounds: Bounds, settings: Audit) -> list[dict[str, Any]]:
    return [
        _row(queue, counted.get(queue), bounds.get(queue, (0, 0)), settings)
        for queue in sorted(counted.keys() | bounds.keys())
    ]


def _counted(frame: DataFrame, settings: Audit) -> DataFrame:
    """Return one row per queue, with counts of rows and of disordered rows.

    Within a queue, store times and log offsets must ascend; within a key, the numbers in property `settings.sequence`.
    """
    before = Window.partitionBy(*PLACE).orderBy("queueOffset")
    moved_on = F.col("queueOffset") > F.lag("queueOffset").over(before)
    disorder = moved_on & (
        (F.col("storeTimestamp") < F.lag("storeTimestamp").over(before))
        | (F.col("commitLogOffset") <= F.lag("commitLogOffset").over(before))
    )
    if settings.sequence:
        number = F.col("properties")[settings.sequence].cast("long")
        of_key = Window.partitionBy(*PLACE, F.col("keys")[0]).orderBy("queueOffset")
        disorder = disorder | (moved_on & (number <= F.lag(number).over(of_key)))
    return frame.withColumn("disorder", F.coalesce(disorder, F.lit(False))).groupBy(*PLACE).agg(*_sums())


def _sums() -> list[Column]:
    return [
        F.min("queueOffset").alias("first"),
        F.max("queueOffset").alias("last"),
        F.count(F.lit(1)).alias("rows"),
        F.count_distinct("queueOffset").alias("different"),
        F.sum(F.col("disorder").cast("int")).alias("disordered"),
    ]


def _queue(row: Any) -> MessageQueue:
    return MessageQueue(row.topic, row.brokerName, row.queueId)


def _bounds(settings: Audit, namesrv: str, topics: list[str], counted: Collection[MessageQueue]) -> Bounds:
    """Return first and end offset of each queue at the brokers. Deleted topics are left out: archives outlive them.

    Raises `Unavailable` if a broker of the counted queues is not registered within `deadlineMs`.
    """
    if not topics:
        return {}
    options = read_options(audit_options(settings, namesrv, topics))
    with queue_reader(GROUP, options.namesrv, options.connecting) as reader:
        return with_retries(options, lambda: _bounds_at_brokers(options, reader, counted))


def _bounds_at_brokers(options: ReadOptions, reader: QueueReader, counted: Collection[MessageQueue]) -> Bounds:
    queues = ReadBounds(options, reader)
    queues.check_registered(options.required_brokers, "option requiredBrokers names it")
    queues.check_absent()
    found: dict[MessageQueue, tuple[int, int]] = {}
    for topic in options.subscribe:
        try:
            found |= reader.bounds([topic])
        except TopicNotFound:
            continue
    missing = {queue.broker_name for queue in counted if queue not in found}
    queues.check_registered(missing, "the rows that are counted come from it")
    return found


def _row(queue: MessageQueue, counted: Any, bounds: tuple[int, int], settings: Audit) -> dict[str, Any]:
    begin, end = bounds
    first, last = (counted.first, counted.last) if counted else (begin, begin - 1)
    rows = counted.rows if counted else 0
    different = counted.different if counted else 0
    lost = last - first + 1 - different
    if counted and not settings.late_start:
        lost += max(first - begin, 0)
    behind = max(end - last - 1, 0)
    return {
        "topic": queue.topic,
        "broker": queue.broker_name,
        "queue": queue.queue_id,
        "first": first if counted else None,
        "last": last if counted else None,
        "rows": rows,
        "lost": lost + (behind if settings.complete else 0),
        "repeated": rows - different,
        "disordered": counted.disordered if counted else 0,
        "behind": behind,
    }


def _mirror(spark: SparkSession, settings: Audit) -> list[dict[str, Any]]:
    """Return one row per source queue.

    Property ORIGIN of each copy (CLUSTER:TOPIC/BROKER/QUEUE/OFFSET) names its original.
    """
    topic = settings.mirror
    copies = read_copies(spark, copies_options(settings, [topic]))
    by_copy = Window.partitionBy(*PLACE, "at").orderBy("queueOffset")
    backwards = F.coalesce(F.col("origin") < F.lag("origin").over(by_copy), F.lit(False))
    counted = {
        _queue(row): row
        for row in copies.withColumn("disorder", backwards)
        .withColumn("queueOffset", F.col("origin"))
        .groupBy(*PLACE)
        .agg(*_sums())
        .collect()
    }
    topics = sorted({queue.topic for queue in counted} or {topic})
    return _rows(counted, _bounds(settings, settings.source_namesrv, topics, counted), settings)
