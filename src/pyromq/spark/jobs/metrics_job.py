"""Job `metrics`: counts messages, bytes and delays in windows of time, for each topic and tag."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.spark.jobs.job_options import window_options
from pyromq.spark.jobs.runner import Tell, run_stream
from pyromq.spark.jobs.session import open_session, open_stream
from pyromq.spark.jobs.setting_checks import spark_interval
from pyromq.spark.jobs.settings import Metrics, Summary
from pyromq.spark.micro_batch import PLANNED, StreamCheckpoint, open_root
from pyromq.spark.monitoring.lag_file import replace_file
from pyromq.spark.monitoring.query_lag import family_text

logger = logger_of(__name__)

FIGURES = ("messages", "bytes", "messages_per_second", "delay_p50_ms", "delay_p99_ms")


def run(settings: Metrics, tell: Tell) -> Summary:
    """Count messages in windows of time and return the summary, as `run_stream` does.

    Raises `UsageError` for wrong settings.
    """
    if settings.to:
        check_newer(settings.stream.checkpoint, settings.to)
    spark = open_session(settings.session)
    frame = windows(open_stream(spark, "metrics", settings), settings)
    return run_stream("metrics", _writer(frame, settings).outputMode(settings.mode), settings, tell)


def windows(messages: DataFrame, settings: Metrics) -> DataFrame:
    """Return one row of counts per window, topic and tag.

    The delay of a message is store time less born time (ms).
    """
    delay = F.col("storeTimestamp").cast("double") * 1000 - F.col("bornTimestamp").cast("double") * 1000
    counted = (
        messages.withColumn("delay", delay)
        .withWatermark("storeTimestamp", spark_interval("late", settings.late))
        .groupBy(
            F.window("storeTimestamp", spark_interval("window", settings.window)),
            "topic",
            F.coalesce("tags", F.lit("")).alias("tag"),
        )
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum(F.length("body")).alias("bytes"),
            F.percentile_approx("delay", 0.5).alias("delay_p50_ms"),
            F.percentile_approx("delay", 0.99).alias("delay_p99_ms"),
        )
    )
    seconds = F.col("window.end").cast("double") - F.col("window.start").cast("double")
    return counted.select(
        F.col("window.start").alias("start"),
        F.col("window.end").alias("end"),
        "topic",
        "tag",
        "messages",
        "bytes",
        (F.col("messages") / seconds).alias("messages_per_second"),
        "delay_p50_ms",
        "delay_p99_ms",
    )


def check_newer(checkpoint: str, folder: str) -> None:
    """Raise `UsageError` if the folder of windows holds a batch that the checkpoint has not planned.

    The checkpoint is then new, or restored from a backup. Spark's file sink would skip new batches whose numbers are in
    the folder. Locations that pyarrow cannot read are not checked.
    """
    try:
        done = max(open_root(folder).numbers("_spark_metadata"), default=-1)
        planned = max(StreamCheckpoint(checkpoint).batches(PLANNED), default=-1)
    except (OSError, UsageError) as error:
        logger.warning("cannot check whether checkpoint %s belongs to folder %s: %s", checkpoint, folder, error)
        return
    if done > planned:
        raise UsageError(
            f"folder {folder} has the windows of batches up to {done}, and the newest batch of checkpoint "
            f"{checkpoint} is {planned if planned >= 0 else 'none'}; "
            "give another folder, or restore the newest checkpoint"
        )


def _writer(frame: DataFrame, settings: Metrics) -> DataStreamWriter:
    if settings.to:
        return frame.writeStream.format("parquet").option("path", settings.to)
    if settings.to_prometheus:
        return frame.writeStream.foreachBatch(partial(_write_prometheus, Path(settings.to_prometheus)))
    messages = frame.select(
        F.to_json(F.struct(*frame.columns)).cast("binary").alias("body"),
        F.col("topic").alias("keys"),
        F.lit("metrics").alias("tags"),
    )
    options = window_options(settings)
    if settings.mode == "append":
        return messages.writeStream.format("rocketmq").options(**options)
    # Spark has no update mode for sinks in Python; named batch writes have the same effect.
    # The sink uses the checkpoint to distinguish a repeated batch from another batch of the same number.
    options["checkpointLocation"] = settings.stream.checkpoint
    return messages.writeStream.foreachBatch(partial(_write_batch, options))


def _write_batch(options: dict[str, str], frame: DataFrame, batch: int) -> None:
    """Write a micro-batch once, as a job named after the query's id and the batch's number.

    The checkpoint stores the query's id: a query with a new checkpoint has another id.
    """
    if options["delivery"] != "atLeastOnce":
        query = frame.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId")
        options = options | {"jobId": f"metrics-{query}-{batch}"}
    frame.write.format("rocketmq").mode("append").options(**options).save()


def _write_prometheus(path: Path, frame: DataFrame, _: int) -> None:
    """Replace the Prometheus file by the latest window of each topic and tag.

    A batch without rows leaves the file unchanged.
    """
    latest: dict[tuple[str, str], Any] = {}
    for row in frame.orderBy("start").collect():
        latest[row.topic, row.tag] = row
    if not latest:
        return
    content = "".join(
        family_text(
            f"pyromq_window_{name}",
            "gauge",
            f"Column {name} of the latest window.",
            [({"topic": topic, "tag": tag}, row[name]) for (topic, tag), row in sorted(latest.items())],
        )
        for name in FIGURES
    )
    replace_file(path, content)
