"""Topics into another cluster, queue by queue. A copy says where it comes from, so that none goes round in circles."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from pyromq.errors import UsageError
from pyromq.spark.jobs.offset_translation import carry_over
from pyromq.spark.jobs.runner import Tell, run_stream
from pyromq.spark.jobs.session import (
    COPIES,
    ORIGIN,
    open_session,
    open_stream,
    origin_of,
    own_properties,
    with_property,
)
from pyromq.spark.jobs.settings import Mirror, Summary, pairs


def run(settings: Mirror, tell: Tell) -> Summary:
    """Copy until all is done, or until stopped. Raises what ended the query, `UsageError` for wrong settings."""
    topics = [topic.strip() for topic in settings.stream.topics.split(",")]
    if settings.to_topic and len(topics) > 1:
        raise UsageError("setting to_topic is for one topic; several keep their names")
    if settings.cluster == settings.to_cluster:
        raise UsageError(
            f"settings cluster and to_cluster are both {settings.cluster!r}; copies could not be told apart"
        )
    spark = open_session(settings.session)
    frame = copies(open_stream(spark, "mirror", settings.session, settings.stream), settings)
    options = {"namesrvAddr": settings.to_namesrv, "delivery": settings.delivery} | COPIES | pairs(settings.to_option)
    summary = run_stream("mirror", frame.writeStream.format("rocketmq").options(**options), settings, tell)
    groups = [group.strip() for group in settings.groups.split(",") if group.strip()]
    if not groups:
        return summary
    brokers = {row["broker"] for row in summary.rows}
    notes = [carry_over(spark, settings, topic, groups, brokers=brokers) for topic in topics]
    return Summary(summary.rows, (*summary.notes, *notes))


def copies(messages: DataFrame, settings: Mirror) -> DataFrame:
    """Return the messages as the other cluster gets them; not those that came from there."""
    origin = F.col("properties")[ORIGIN]
    home = F.coalesce(~origin.startswith(f"{settings.to_cluster}:"), F.lit(True))
    return messages.where(home).select(
        (F.lit(settings.to_topic) if settings.to_topic else F.col("topic")).alias("topic"),
        F.col("body"),
        F.col("tags"),
        F.array_join("keys", " ").alias("keys"),
        with_property(own_properties(), ORIGIN, origin_of(settings.cluster)).alias("properties"),
        F.col("bornTimestamp"),
        F.col("flag"),
        F.col("queueId"),
    )
