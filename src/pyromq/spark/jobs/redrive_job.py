"""Job `redrive`: sends a group's dead letters again, once per job name.

Messages with too many redrives go to a parking topic.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.column import Column

from pyromq.errors import TopicNotFound, UsageError
from pyromq.message import Property
from pyromq.names import check_group, dead_letter_topic
from pyromq.plural import counted
from pyromq.spark.columns import REDRIVES
from pyromq.spark.given_options import read_options
from pyromq.spark.jobs.job_options import dead_letter_options
from pyromq.spark.jobs.runner import Tell
from pyromq.spark.jobs.session import (
    copied_columns,
    open_session,
    origin_of,
    own_properties,
    sent_before,
    stored_between,
    with_property,
    write_once,
)
from pyromq.spark.jobs.settings import Redrive, Summary
from pyromq.spark.read.read_options import ReadOptions
from pyromq.spark.worker_clients import queue_reader, with_retries


def run(settings: Redrive, tell: Tell) -> Summary:
    """Send the chosen dead letters and return the summary.

    Raises `UsageError` for wrong settings, `TopicNotFound` if the group has no dead letters.
    """
    check_group(settings.group)
    source = dead_letter_options(settings)
    _check_exists(settings.group, read_options(source))
    spark = open_session(settings.session)
    chosen = _chosen(spark.read.format("rocketmq").options(**source).load(), settings)
    letters = chosen.withColumn("destination", _destination(settings))
    by = ("destination", _reason().alias("reason"), _property(Property.DAMAGED).isNotNull().alias("damaged"))
    found = letters.groupBy(*by).agg(F.count("*").alias("messages")).orderBy("destination", "reason").collect()
    refused = sum(each.messages for each in found if each.damaged)
    notes = _refusals(refused) if refused else ()
    rows = [{name: each[name] for name in ("destination", "reason", "messages")} for each in found if not each.damaged]
    if lost := sum(row["messages"] for row in rows if row["destination"] is None):
        raise UsageError(
            f"{counted(lost, 'dead letter has', 'dead letters have')} no original topic; give setting to_topic"
        )
    total = sum(row["messages"] for row in rows)
    if settings.dry_run:
        return Summary(rows, (f"{counted(total, 'dead letter')} would be sent", *notes), failed=refused > 0)
    if not total:
        return Summary(rows, ("0 dead letters sent", *notes), failed=refused > 0)
    frame = _messages(letters.where(_property(Property.DAMAGED).isNull()))
    sent = write_once(frame, settings)
    tell(total if sent else 0)
    note = f"{counted(total, 'dead letter')} sent" if sent else f"0 dead letters sent: {sent_before(settings)}"
    return Summary(rows, (note, *notes), failed=refused > 0)


def _check_exists(group: str, options: ReadOptions) -> None:
    """Raise `TopicNotFound` if the group's dead letter topic does not exist."""

    def look() -> None:
        try:
            with queue_reader(options.group, options.namesrv, options.connecting) as reader:
                reader.queues(dead_letter_topic(group))
        except TopicNotFound as error:
            raise TopicNotFound(f"group {group} has no dead letters: {error}") from error

    with_retries(options, look)


def _refusals(count: int) -> tuple[str]:
    were = counted(count, "dead letter was", "dead letters were")
    return (f"{were} damaged before dead-lettering, and not sent: property {Property.DAMAGED} has the reason",)


def _property(name: str) -> Column:
    return F.col("properties")[name]


def _reason() -> Column:
    return _property(Property.RETRY_REASON)


def _chosen(letters: DataFrame, settings: Redrive) -> DataFrame:
    if settings.reason:
        letters = letters.where(F.lower(_reason()).contains(settings.reason.lower()))
    return stored_between(letters, settings.since, settings.until)


def _redrives() -> Column:
    return F.coalesce(_property(REDRIVES).cast("int"), F.lit(0))


def _destination(settings: Redrive) -> Column:
    destination = F.lit(settings.to_topic) if settings.to_topic else _property(Property.RETRY_TOPIC)
    if not settings.attempts:
        return destination
    return F.when(_redrives() >= settings.attempts, F.lit(settings.parking_topic)).otherwise(destination)


def _messages(letters: DataFrame) -> DataFrame:
    properties = with_property(own_properties(), REDRIVES, (_redrives() + 1).cast("string"))
    return letters.select(F.col("destination").alias("topic"), *copied_columns(origin_of("dlq"), properties))
