"""Job `mirror`: copies topics to another cluster, queue by queue.

Property ORIGIN of a copy names the original; copies are not mirrored back.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.column import Column

from pyromq.client.blocking.admin import Admin
from pyromq.client.cluster.namespace import namespace_of
from pyromq.errors import TopicNotFound, UsageError
from pyromq.message import MessageQueue
from pyromq.plural import counted
from pyromq.spark.columns import ORIGIN
from pyromq.spark.given_options import read_options
from pyromq.spark.jobs.job_options import copies_options, mirror_options, source_options
from pyromq.spark.jobs.runner import Tell, run_stream
from pyromq.spark.jobs.session import (
    copied_columns,
    named_copies,
    open_session,
    open_stream,
    origin_of,
    own_properties,
    read_copies,
    same_queue,
)
from pyromq.spark.jobs.settings import Mirror, Summary
from pyromq.spark.option_values import listed
from pyromq.spark.options import STREAM
from pyromq.spark.read.bounds import ReadBounds
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.worker_clients import queue_reader, with_retries

READER = "pyromq-spark-mirror"
OFFSET_SCHEMA = "topic string, brokerName string, queueId int, group string, stored long"


def run(settings: Mirror, tell: Tell) -> Summary:
    """Copy topics into another cluster and return the summary, as `run_stream` does.

    Raises `UsageError` for wrong settings.
    """
    topics, groups = settings.topics, listed(settings.groups)
    if groups:  # an unknown group would fail the job at its end
        with_retries(_source(settings), lambda: [_group_offsets(settings, topic, groups) for topic in topics])
    spark = open_session(settings.session)
    queue = with_retries(_source(settings), lambda: queue_columns(settings, topics))
    frame = copies(open_stream(spark, "mirror", settings), settings, queue)
    writer = frame.writeStream.format("rocketmq").options(**mirror_options(settings))
    summary = run_stream("mirror", writer, settings, tell)
    if not groups:
        return summary
    brokers = {row["broker"] for row in summary.rows}
    notes = [carry_over(spark, settings, topic, groups, brokers=brokers) for topic in topics]
    return Summary(summary.rows, (*summary.notes, *notes))


def _source(settings: Mirror) -> ReadOptions:
    return read_options(source_options("mirror", settings), STREAM)


def copies(messages: DataFrame, settings: Mirror, queue: Sequence[Column]) -> DataFrame:
    """Return the sink rows that copy these messages. Messages that were mirrored from the target cluster are left out.

    `queue` are the columns that choose the target queue.
    """
    origin = F.col("properties")[ORIGIN]
    home = F.coalesce(~origin.startswith(f"{settings.to_cluster}:"), F.lit(True))
    copied = messages.where(home).select(
        (F.lit(settings.to_topic) if settings.to_topic else F.col("topic")).alias("topic"),
        *copied_columns(origin_of(settings.cluster), own_properties()),
        *queue,
    )
    return named_copies(copied, settings.to_topic, settings.delivery)


def queue_columns(settings: Mirror, topics: Sequence[str]) -> list[Column]:
    """Return the columns that choose the target queue of each copy.

    Raises `Unavailable` if a target broker that had these topics is not registered: its copies would go to other queues
    until the broker is back. Raises `TopicNotFound` if a topic does not exist in the target cluster.
    """
    copies = {topic: settings.to_topic or topic for topic in topics}
    target = read_options(copies_options(settings, copies.values()))
    with queue_reader(READER, target.namesrv, target.connecting) as reader:
        ReadBounds(target, reader).check_absent()
        try:
            return same_queue(reader, copies)
        except TopicNotFound as error:
            raise TopicNotFound(
                f"a mirror needs its topics in the target cluster, {target.namesrv}: {error}; create the topic there,"
                " with the number of queues that it has in the source cluster"
            ) from error


def carry_over(
    spark: SparkSession, settings: Mirror, topic: str, groups: list[str], *, brokers: Collection[str] = ()
) -> str:
    """Commit the offsets of consumer groups at the target cluster; return a note for the summary.

    `brokers` are the source brokers that the mirror has read from; the groups' offsets there are needed. Waits until
    these brokers are registered; raises `Unavailable` after `deadlineMs`.

    The committed offset is that of the first copy whose original the group has not consumed, else the queue's end.
    Later copies in the queue, from other source queues, may be redelivered.
    """
    copy = settings.to_topic or topic
    stored = _committed_offsets(settings, topic, groups, brokers)
    target = read_options(copies_options(settings, [copy]))
    with queue_reader(READER, target.namesrv, target.connecting) as reader:
        ends = {queue: end for queue, (_, end) in reader.bounds([copy]).items()}
        unconsumed = _first_unconsumed(spark, settings, copy, stored)
        for group in sorted({group for *_, group, _ in stored}):
            reader.commit({queue: unconsumed.get((group, queue), end) for queue, end in ends.items()}, group)
    carried = counted(len({group for *_, group, _ in stored}), "group")
    return f"offsets of {carried} of {topic} carried over to {copy}"


def _committed_offsets(
    settings: Mirror, topic: str, groups: list[str], brokers: Collection[str]
) -> list[tuple[str, str, int, str, int]]:
    """Return topic, broker, queue id, group and offset for each offset that a group has at the source.

    Groups without offsets are left out. Raises `UsageError` for a group that does not exist at the source.
    """
    options = _source(settings)
    with queue_reader(READER, options.namesrv, options.connecting) as reader:
        bounds = ReadBounds(options, reader)
        with_retries(options, lambda: bounds.check_registered(brokers, "the mirror has copied its messages"))
        with_retries(options, bounds.check_absent)
    found = []
    for group, offsets in _group_offsets(settings, topic, groups).items():
        if any(offset is not None for offset in offsets.values()):
            found += [(*queue, group, offset or 0) for queue, offset in offsets.items()]
    return found


def _group_offsets(settings: Mirror, topic: str, groups: list[str]) -> dict[str, dict[MessageQueue, int | None]]:
    """Return the committed offset of each group in each queue of a source topic.

    Raises `UsageError` for a group that does not exist at the source.
    """
    options = _source(settings)
    names = namespace_of(options.connecting.namespace, options.namesrv)
    with Admin(options.namesrv, connections=options.connecting.connections()) as admin:
        known = {names.unwrap(group.name) for group in admin.groups()}
    with queue_reader(READER, options.namesrv, options.connecting) as reader:
        queues = reader.queues(topic)
        found = {group: reader.committed(queues, group) for group in groups}
    for group, offsets in found.items():
        if group not in known and not any(offsets.values()):  # brokers return 0 for unknown groups
            raise UsageError(f"group {group} is not known at {options.namesrv}; `pyromq group list` shows the groups")
    return found


def _first_unconsumed(
    spark: SparkSession, settings: Mirror, copy: str, stored: list[tuple[str, str, int, str, int]]
) -> dict[tuple[str, MessageQueue], int]:
    """Return, for each group and target queue, the offset of the first copy whose original the group has not consumed.

    A queue without such a copy is missing in the result.
    """
    table = spark.createDataFrame(stored, OFFSET_SCHEMA)
    copies = read_copies(spark, copies_options(settings, [copy]))
    unconsumed = copies.join(F.broadcast(table), ["topic", "brokerName", "queueId"]).where("origin >= stored")
    rows = unconsumed.groupBy("group", "at").agg(F.min("queueOffset").alias("first")).collect()
    return {(row.group, MessageQueue(copy, row.at.brokerName, row.at.queueId)): row.first for row in rows}
