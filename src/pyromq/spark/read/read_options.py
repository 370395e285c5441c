"""The options of a read: names, types and meaning.

All options are checked before a connection is opened. No Spark here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from pyromq.compression import MAX_BODY_BYTES
from pyromq.errors import UsageError
from pyromq.filter.filter import check_tag_words, subscribed_tags
from pyromq.filter.sql import check_sql
from pyromq.message import MessageQueue
from pyromq.names import check_group, check_topic
from pyromq.spark import option_values as values
from pyromq.spark.columns import SOURCE_COLUMNS
from pyromq.spark.option_values import OffsetTable
from pyromq.spark.options import (
    BATCH,
    BY_ENVIRONMENT,
    STREAM,
    ConnectionOptions,
    checked_by,
    name_servers_option,
    option,
)

DEFAULT_GROUP = "pyromq-spark"
MAX_DELAY_MS, COMMIT_INTERVAL_MS = 900_000, 5_000  # defaults of maxTriggerDelay and commitInterval


def _topics(name: str, value: str) -> tuple[str, ...]:
    topics = values.names(name, value)
    for topic in topics:
        try:
            check_topic(topic)
        except UsageError as error:
            hint = (
                "a pattern is given by option subscribePattern" if "*" in topic else "write orders or orders,payments"
            )
            raise type(error)(f"option {name} is {value!r:.150}: {error}; {hint}") from error
    return topics


def _queues(name: str, value: str) -> tuple[MessageQueue, ...]:
    queues = values.assigned(name, value)
    for queue in queues:
        values.check_value(f"option {name}", value, check_topic, queue.topic)
    return queues


def _columns(name: str, value: str) -> tuple[str, ...]:
    columns = values.names(name, value)
    for column in columns:
        values.check_value(f"option {name}", value, check_source_column, column)
    return columns


def check_source_column(column: str) -> None:
    """Raise `UsageError` if the source has no column of this name."""
    if column not in SOURCE_COLUMNS:
        raise UsageError(f"column {column!r} does not exist; {values.did_you_mean(column, SOURCE_COLUMNS)}")


def _check_tags(value: str) -> None:
    subscribed_tags(value)
    check_tag_words(value)


def _file(name: str, value: str) -> str:
    file = Path(values.not_blank(name, value))
    if not file.parent.is_dir():
        raise UsageError(f"option {name} is {value!r}, and the driver has no folder {file.parent}; make it first")
    if file.is_dir():
        raise UsageError(f"option {name} is {value!r}, which is a folder; name a file")
    return value.strip()


def _pattern(name: str, value: str) -> re.Pattern[str]:
    try:
        return re.compile(values.not_blank(name, value))
    except re.error as error:
        raise UsageError(f"option {name} is {value!r}, which is no regular expression: {error}") from None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Options of a read. The doc of each field is the option's documentation for users."""

    namesrv: str = name_servers_option()
    subscribe: tuple[str, ...] = option("subscribe", _topics, (), "topics to read, separated by commas")
    subscribe_pattern: re.Pattern[str] | None = option(
        "subscribePattern", _pattern, None, "read the topics whose whole name this regular expression matches"
    )
    assign: tuple[MessageQueue, ...] = option(
        "assign", _queues, (), 'queues to read instead of whole topics: `{"orders":{"broker-a":[0,1]}}`'
    )
    required_brokers: tuple[str, ...] = option(
        "requiredBrokers",
        values.names,
        (),
        "brokers, separated by commas, that must be registered: the read waits for them until `deadlineMs`, then fails",
    )
    retired_brokers: tuple[str, ...] = option(
        "retiredBrokers",
        values.names,
        (),
        "brokers, separated by commas, that are out of service for good: a read does not wait for them and skips their"
        " unread messages",
    )
    columns: tuple[str, ...] = option(
        "columns", _columns, (), "columns to build, separated by commas, as with `.schema(...)`; default: all"
    )
    starting_offsets: str | OffsetTable | None = option(
        "startingOffsets",
        values.beginning,
        None,
        "where queues begin: `earliest` (default of a batch), `latest` (streams only, their default), `group` (the "
        "offsets of `group`, else earliest), "
        '`{"orders":{"broker-a":{"0":23}}}` (-2 earliest, -1 latest; others earliest)',
    )
    starting_ms: int | None = option(
        "startingTimestamp",
        values.time,
        None,
        "begin with messages stored at this time or later; ms since 1970, or `2026-01-31T12:00:00Z` (with a zone)",
    )
    starting_times: OffsetTable | None = option(
        "startingOffsetsByTimestamp",
        values.time_table,
        None,
        'begin each queue with messages stored at its time or later; ms: `{"orders":{"broker-a":{"0":1700000000000}}}`',
    )
    starting_missing: str = option(
        "startingOffsetsByTimestampStrategy",
        values.words("latest", "error"),
        "latest",
        "when a queue has no message since the time: `latest` begins at its end, `error` fails",
    )
    ending_offsets: str | OffsetTable = option(
        "endingOffsets",
        values.ending,
        "latest",
        'where each queue ends, exclusive: `latest` or `{"orders":{"broker-a":{"0":23}}}`',
        only=BATCH,
    )
    ending_ms: int | None = option(
        "endingTimestamp", values.time, None, "end before messages stored at this time or later", only=BATCH
    )
    ending_times: OffsetTable | None = option(
        "endingOffsetsByTimestamp",
        values.time_table,
        None,
        "end each queue before messages stored at its time or later; ms",
        only=BATCH,
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss", values.truth, True, "fail if requested offsets do not exist; else read the rest"
    )
    new_queues: str = option(
        "newQueues",
        values.words("earliest", "latest"),
        "earliest",
        "where queues begin that are created while a stream runs",
        only=STREAM,
    )
    max_rows: int | None = option(
        "maxOffsetsPerTrigger",
        values.number(1, values.LONG),
        None,
        "limit of offsets in a micro-batch, divided among queues by backlog",
        only=STREAM,
    )
    max_bytes: int | None = option(
        "maxBytesPerTrigger",
        values.size(1, values.LONG),
        None,
        "limit of bytes in a micro-batch, estimated from the mean size of messages",
        only=STREAM,
    )
    min_rows: int | None = option(
        "minOffsetsPerTrigger", values.number(1, values.LONG), None, "wait for this number of offsets", only=STREAM
    )
    max_delay_ms: int = option(
        "maxTriggerDelay",
        values.milliseconds(0),
        MAX_DELAY_MS,
        "longest wait for `minOffsetsPerTrigger`; `15m`, `5s`, `500ms`",
        only=STREAM,
    )
    tag_filter: str = option("tagFilter", checked_by(_check_tags), "*", "only messages with these tags: `a || b`")
    sql_filter: str | None = option(
        "sqlFilter", checked_by(check_sql), None, "only messages whose properties match: `price > 5 AND region = 'EU'`"
    )
    min_partitions: int | None = option(
        "minPartitions", values.number(1), None, "split queues into at least this number of tasks"
    )
    max_partitions: int | None = option(
        "maxPartitions",
        values.number(1),
        None,
        "pack queues into at most this number of tasks; default: the CPUs of the driver",
    )
    max_records: int | None = option(
        "maxRecordsPerPartition",
        values.number(1, values.LONG),
        None,
        "split queues so that no task has more offsets than this",
    )
    early_rows: int = option(
        "maxRowsOnDriver",
        values.number(0),
        1_000,
        "the driver reads micro-batches of at most this number of messages, and 4 MiB, while it plans, which saves "
        "tasks; `0`: tasks read, as with `minPartitions` and `maxRecordsPerPartition`",
        only=STREAM,
    )
    pull_batch: int = option(
        "pullBatchSize", values.number(1), 16_384, "messages requested by one pull; the broker has limits, too"
    )
    pull_bytes: int = option(
        "pullBytes",
        values.size(1),
        2 << 20,
        "bytes requested by one pull; brokers other than pyromq return 32 messages or 256 KiB",
    )
    pull_timeout_ms: int = option("pullTimeoutMs", values.milliseconds(1), 5_000, "timeout of one request; `5s`")
    arrow_rows: int = option("arrowBatchRows", values.number(1), 16_384, "rows of an Arrow batch")
    arrow_bytes: int = option(
        "arrowBatchBytes", values.size(1), 2 << 20, "bytes of records after which a batch is closed early"
    )
    verify_crc: bool = option("verifyCrc", values.truth, False, "compare every body with its stored checksum")
    max_body_bytes: int = option(
        "maxBodyBytes",
        values.size(1, 1 << 30),
        MAX_BODY_BYTES,
        "limit of a decompressed body; a compressed megabyte can become a gigabyte",
    )
    undecodable: str = option(
        "onUndecodable",
        values.words("null", "raw", "fail"),
        "null",
        "the body of a message that cannot be decompressed, or exceeds `maxBodyBytes`: null, or the bytes as stored; "
        "`UNDECODABLE` in `properties` has the reason; `fail` ends the query",
    )
    system_properties: bool = option(
        "systemProperties", values.truth, False, "include RocketMQ's own properties in `properties`"
    )
    deadline_ms: int = option(
        "deadlineMs",
        values.milliseconds(1),
        60_000,
        "time for which a task or the driver retries to reach a broker; `60s`, `5m`",
    )
    group: str = option(
        "group", checked_by(check_group), DEFAULT_GROUP, "the group name at brokers, and for the offsets of a stream"
    )
    commit_offsets: bool | None = option(
        "commitOffsets",
        values.truth,
        None,
        "store a stream's offsets at the brokers, so that tools show its lag; default: if `group` is given",
        only=STREAM,
    )
    commit_interval_ms: int = option(
        "commitInterval",
        values.milliseconds(0),
        COMMIT_INTERVAL_MS,
        "shortest time between two commits of offsets; `5s`, `500ms`",
        only=STREAM,
    )
    lag_prometheus: str | None = option(
        "lagPrometheus",
        _file,
        None,
        "file of the driver with the stream's lag as Prometheus text, under the name of `group`",
        only=STREAM,
    )

    connecting: ConnectionOptions = BY_ENVIRONMENT

    @property
    def is_filtered(self) -> bool:
        """Whether brokers filter messages by tags or by an SQL expression."""
        return self.tag_filter != "*" or self.sql_filter is not None

    def __post_init__(self) -> None:
        if sum(map(bool, (self.subscribe, self.subscribe_pattern, self.assign))) != 1:
            raise UsageError(
                "give one of the options subscribe (topics), subscribePattern (topics by name) and assign (queues)"
            )
        if self.tag_filter != "*" and self.sql_filter is not None:
            raise UsageError(
                "options tagFilter and sqlFilter exclude each other; write tags in sqlFilter: TAGS = 'a' AND ..."
            )
        if self.min_partitions and self.max_partitions and self.min_partitions > self.max_partitions:
            raise UsageError(f"minPartitions {self.min_partitions} is more than maxPartitions {self.max_partitions}")
        if self.min_rows and self.max_rows and self.min_rows > self.max_rows:
            raise UsageError(f"minOffsetsPerTrigger {self.min_rows} is more than maxOffsetsPerTrigger {self.max_rows}")
        if self.group == DEFAULT_GROUP and (self.commit_offsets or self.starting_offsets == "group"):
            raise UsageError("commitOffsets and startingOffsets=group need option group: the name of a group")
        _one_of(
            "begin",
            startingOffsets=self.starting_offsets,
            startingTimestamp=self.starting_ms,
            startingOffsetsByTimestamp=self.starting_times,
        )
        _one_of(
            "end",
            endingOffsets=None if self.ending_offsets == "latest" else self.ending_offsets,
            endingTimestamp=self.ending_ms,
            endingOffsetsByTimestamp=self.ending_times,
        )
        _check_order(self)
        _check_partners(self)
        for name, table in _tables(self).items():
            for queue in table:
                self._check_read(name, queue)

    @property
    def does_commit(self) -> bool:
        """Whether a stream commits its offsets at the brokers."""
        return self.group != DEFAULT_GROUP if self.commit_offsets is None else self.commit_offsets

    def _check_read(self, name: str, queue: MessageQueue) -> None:
        """Raise `UsageError` if the table of option `name` has a queue that these options do not read."""
        pattern = self.subscribe_pattern
        topics = self.subscribe or {each.topic for each in self.assign}
        if queue.topic not in topics and not (pattern and pattern.fullmatch(queue.topic)):
            what = f"option {name} names topic {queue.topic!r}, which this read does not have"
            raise UsageError(f"{what}; {values.did_you_mean(queue.topic, topics)}" if topics else what)
        if self.assign and queue not in self.assign:
            raise UsageError(
                f"option {name} names queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}, which"
                " option assign does not name; leave the queue out"
            )


def _tables(options: ReadOptions) -> dict[str, OffsetTable]:
    """Return the tables of offsets and times by option name."""
    tables = {
        "startingOffsets": options.starting_offsets,
        "startingOffsetsByTimestamp": options.starting_times,
        "endingOffsets": options.ending_offsets,
        "endingOffsetsByTimestamp": options.ending_times,
    }
    return {name: table for name, table in tables.items() if isinstance(table, dict)}


def _check_partners(options: ReadOptions) -> None:
    """Raise `UsageError` for an option that has no effect without another option."""
    by_time = options.starting_ms is not None or options.starting_times is not None
    if options.starting_missing == "error" and not by_time:
        raise UsageError(
            "option startingOffsetsByTimestampStrategy needs startingTimestamp or startingOffsetsByTimestamp"
        )
    if options.max_delay_ms != MAX_DELAY_MS and options.min_rows is None:
        raise UsageError("option maxTriggerDelay needs minOffsetsPerTrigger, the number of offsets to wait for")
    if options.commit_interval_ms != COMMIT_INTERVAL_MS and not options.does_commit:
        raise UsageError(
            "option commitInterval needs group: without a group, or with commitOffsets=false, a stream commits nothing"
        )


def _one_of(what: str, **given: object) -> None:
    names = [name for name, value in given.items() if value is not None]
    if len(names) > 1:
        raise UsageError(f"options {' and '.join(names)} say where to {what}; give one of them")


def _check_order(options: ReadOptions) -> None:
    """Raise `UsageError` if the options alone show that the read ends before it begins."""
    if options.starting_ms is not None and options.ending_ms is not None and options.starting_ms > options.ending_ms:
        raise UsageError(
            f"option startingTimestamp is {options.starting_ms}, after endingTimestamp {options.ending_ms}; swap them"
        )
    for suffix, start, end in (
        ("", options.starting_offsets, options.ending_offsets),
        ("ByTimestamp", options.starting_times, options.ending_times),
    ):
        starts, ends = (table if isinstance(table, dict) else {} for table in (start, end))
        for queue in starts.keys() & ends.keys():
            if starts[queue] > ends[queue] >= 0:
                raise UsageError(
                    f"queue {queue.queue_id} of topic {queue.topic} at {queue.broker_name}: startingOffsets{suffix} is"
                    f" {starts[queue]}, after endingOffsets{suffix} {ends[queue]}; swap them"
                )
