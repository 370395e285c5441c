"""The Spark session of a job, and the DataFrames and columns that several jobs use."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress

from pyspark import SparkContext
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.column import Column

from pyromq.client.blocking.consumers import QueueReader
from pyromq.clock import SystemClock
from pyromq.errors import UsageError
from pyromq.message import RESERVED_PROPERTIES
from pyromq.spark.archive.sink import ArchiveSink
from pyromq.spark.archive.tables import DeltaTable, holds_delta
from pyromq.spark.columns import ORIGIN
from pyromq.spark.given_options import read_options, sink_options
from pyromq.spark.jobs.job_options import StreamJob, source_options, write_options
from pyromq.spark.jobs.setting_checks import in_utc, pairs
from pyromq.spark.jobs.settings import Redrive, Replay, SessionSettings
from pyromq.spark.micro_batch import PLANNED, StreamCheckpoint
from pyromq.spark.options import STREAM
from pyromq.spark.read.stream_offset import StreamOffset
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.spark.threads import use_session
from pyromq.spark.worker_clients import queue_reader, with_retries
from pyromq.spark.write.sink_options import IDEMPOTENT
from pyromq.spark.write.writer import decided_before

DEFAULTS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.log.level": "OFF",  # a job shows its error in one line; Spark would log pages of Java stack traces before
}
LOCAL = {
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    # Job metrics has a task and a state file per shuffle partition in each micro-batch; Spark's default is 200.
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
}


def open_session(settings: SessionSettings) -> SparkSession:
    """Return the Spark session of this process, else a new one with the job's settings.

    The session becomes active in the calling thread. Raises `UsageError` for a setting of Spark that a session which
    exists already has not.
    """
    exists = SparkContext._active_spark_context is not None
    builder = SparkSession.builder.master(settings.master)
    defaults = DEFAULTS | (LOCAL if settings.master.startswith("local") else {})
    for name, value in (defaults | pairs(settings.conf)).items():
        builder = builder.config(name, value)
    spark: SparkSession = SparkSession.getActiveSession() or builder.getOrCreate()
    if exists:
        _check_conf(spark, pairs(settings.conf))
    use_session(spark)  # makes the session active in this thread: a job may run in any thread
    spark.dataSource.register(ArchiveSink)
    return spark


def _check_conf(spark: SparkSession, conf: Mapping[str, str]) -> None:
    for name, value in conf.items():
        if spark.conf.get(name, None) != value:  # the value may be a secret, which an error must not show
            raise UsageError(
                f"setting conf has {name}, and a Spark session exists already, with another value; set it in the"
                " session, or leave it out"
            )


def open_stream(spark: SparkSession, job: str, settings: StreamJob) -> DataFrame:
    """Return a streaming DataFrame of the job's topics.

    The job's offsets are stored at the brokers under the job's group.
    """
    return spark.readStream.format("rocketmq").options(**source_options(job, settings)).load()


def beginning(job: str, settings: StreamJob) -> StreamOffset:
    """Return the offset where a job without a checkpoint begins, which Spark does not report.

    Raises the brokers' errors. Return an empty offset for a job with a checkpoint: no broker is asked, since the topics
    may have been deleted.
    """
    with suppress(OSError, UsageError):  # Spark may know file systems that pyarrow does not
        if StreamCheckpoint(settings.stream.checkpoint).batches(PLANNED):
            return StreamOffset({})
    options = read_options(source_options(job, settings), STREAM)
    with queue_reader(options.group, options.namesrv, options.connecting) as reader:
        planning = StreamPlanning(options, reader, SystemClock())
        if settings.stream.once:
            planning.end_here()
        return with_retries(options, planning.first)


def read_archive(spark: SparkSession, location: str, form: str) -> DataFrame:
    """Return a DataFrame of the rows of an archive; columns topic and date have type string.

    Raises `UsageError` if there is no archive of this format.
    """
    is_delta = holds_delta(location)
    if form == "delta" and is_delta is False:
        raise UsageError(f"there is no Delta archive at {location}; correct the setting archive, or the format")
    # A file in the folder may be deleted from the table, or left by a failed attempt.
    if form == "parquet" and is_delta:
        raise UsageError(f"the archive at {location} is a Delta table; give --format delta")
    spark.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", "false")
    if form == "delta":
        return spark.read.option("basePath", location).parquet(*DeltaTable(location).file_uris())
    try:
        return spark.read.parquet(location)
    except AnalysisException as error:
        raise UsageError(f"there is no archive at {location}; correct the setting archive") from error


def own_properties(properties: str = "properties") -> Column:
    """Return a column with each message's properties, without the reserved properties, which senders may not set."""
    reserved = sorted(RESERVED_PROPERTIES)
    return F.map_filter(F.col(properties), lambda name, _: ~name.isin(reserved))


def with_property(properties: Column, name: str, value: Column) -> Column:
    """Return the map column `properties` with property `name` set to `value`."""
    kept = F.map_filter(properties, lambda each, _: each != F.lit(name))
    return F.map_concat(kept, F.create_map(F.lit(name), value))


def stored_between(frame: DataFrame, since: str, until: str) -> DataFrame:
    """Return the rows of messages stored at `since` or later and before `until`; an empty string means no limit."""
    stored = F.col("storeTimestamp")
    if since:
        frame = frame.where(stored >= F.lit(in_utc(since)))
    return frame.where(stored < F.lit(in_utc(until))) if until else frame


def copied_columns(origin: Column, properties: Column) -> list[Column]:
    """Return the sink columns of a copy of each message.

    `origin` becomes property ORIGIN of the copy: the place of the original.
    """
    return [
        F.col("body"),
        F.col("tags"),
        F.array_join("keys", " ").alias("keys"),
        with_property(properties, ORIGIN, origin).alias("properties"),
        F.col("bornTimestamp"),
        F.col("flag"),
    ]


def named_copies(copies: DataFrame, name: str, delivery: str) -> DataFrame:
    """Return the copies with column uniqKey if delivery is idempotent: equal message ids in each run of this name.

    The key is made from the original's place and born time. The sink's own ids depend on the division into tasks. The
    born time distinguishes messages at one place, if the topic was created again.
    """
    if delivery != IDEMPOTENT:
        return copies
    place, born = F.col("properties")[ORIGIN], F.unix_millis("bornTimestamp")
    return copies.withColumn("uniqKey", F.to_json(F.struct(F.lit(name), place, born)))


def write_once(rows: DataFrame, settings: Redrive | Replay) -> bool:
    """Write the rows of a batch job. Return False if an earlier run of the same name has written them.

    The runs of a name are known only with delivery exactlyOnce. Raises the error of Spark if other rows were written
    under the name.
    """
    options = write_options(settings)
    before = decided_before(sink_options(options))
    rows = named_copies(rows, f"{settings.job}:{settings.to_topic}", settings.delivery)
    rows.write.format("rocketmq").mode("append").options(**options).save()
    return before is None


def sent_before(settings: Redrive | Replay) -> str:
    return f"an earlier run of job {settings.job} has sent them"


def same_queue(reader: QueueReader, topics: Mapping[str, str]) -> list[Column]:
    """Return the sink columns queueId and brokerName of copies.

    `topics` maps each source topic to the topic of its copies. A copy has the queue id and broker name of its original.
    If no broker of that name has the topic, the broker is chosen by the source broker's name alone, so that copies of
    one queue stay in one queue. Raises `TopicNotFound`.
    """
    name, chosen = F.col("brokerName"), F.lit(None).cast("string")
    for source, copy in topics.items():
        brokers = sorted({queue.broker_name for queue in reader.queues(copy)})
        place = F.pmod(F.crc32(name.cast("binary")), F.lit(len(brokers))).cast("int") + 1
        other = F.element_at(F.array(*map(F.lit, brokers)), place)
        at = F.when(name.isin(brokers), name).otherwise(other)
        chosen = F.when(F.col("topic") == source, at).otherwise(chosen)
    return [F.col("queueId"), chosen.alias("brokerName")]


def origin_of(cluster: str) -> Column:
    """Return a column with the value of property ORIGIN for each source row: CLUSTER:TOPIC/BROKER/QUEUE/OFFSET."""
    place = F.concat_ws("/", "topic", "brokerName", F.col("queueId"), F.col("queueOffset"))
    return F.concat(F.lit(f"{cluster}:"), place)


def read_copies(spark: SparkSession, options: dict[str, str]) -> DataFrame:
    """Return the copies in mirrored topics, with the place of each original as property ORIGIN has it.

    Columns of the original: topic, brokerName, queueId, origin (a queue offset). Columns of the copy: at (brokerName,
    queueId), queueOffset.
    """
    options = options | {"columns": "brokerName,queueId,queueOffset,properties"}
    place = F.split(F.substring_index(F.col("properties")[ORIGIN], ":", -1), "/")
    copies = spark.read.format("rocketmq").options(**options).load().withColumn("place", place)
    return copies.where("place is not null").select(
        F.col("place")[0].alias("topic"),
        F.col("place")[1].alias("brokerName"),
        F.col("place")[2].cast("int").alias("queueId"),
        F.col("place")[3].cast("long").alias("origin"),
        F.struct("brokerName", "queueId").alias("at"),
        "queueOffset",
    )
