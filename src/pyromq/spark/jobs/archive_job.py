"""Job `archive`: copies topics to Parquet or Delta, each message once."""

from __future__ import annotations

from pyromq.spark.archive.tables import check_format, open_table
from pyromq.spark.jobs.runner import Tell, run_stream
from pyromq.spark.jobs.session import open_session, open_stream
from pyromq.spark.jobs.settings import Archive, Summary


def run(settings: Archive, tell: Tell) -> Summary:
    """Copy topics into an archive and return the summary, as `run_stream` does.

    Raises `UsageError` for wrong settings.
    """
    open_table(settings.to, settings.format)  # raises `UsageError` for wrong settings before Spark starts
    check_format(settings.to, settings.format)
    spark = open_session(settings.session)
    frame = open_stream(spark, "archive", settings)
    writer = frame.writeStream.format("rocketmq-archive").option("path", settings.to).option("format", settings.format)
    return run_stream("archive", writer, settings, tell)
