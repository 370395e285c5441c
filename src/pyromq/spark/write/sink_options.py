"""The options of a write: names, types and meaning, checked before any connection is opened. No Spark here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyromq.errors import UsageError
from pyromq.names import NOT_FOR_CLIENTS, check_producer_group, check_topic
from pyromq.spark import option_values as values
from pyromq.spark.connection_options import BY_ENVIRONMENT, ConnectionOptions
from pyromq.spark.declared_options import (
    checked_by,
    documentation_of,
    name_servers_option,
    option,
    read_fields,
    unknown_option,
)

AT_LEAST_ONCE, IDEMPOTENT, EXACTLY_ONCE = "atLeastOnce", "idempotent", "exactlyOnce"
FAIL, DROP, DEAD_LETTER, TOMBSTONES = "fail", "drop", "dlq", "tombstone"
QUEUE_ID, SHARDING_KEY = "queueId", "shardingKey"
MAX_MESSAGE_BYTES = 15 << 20  # the highest limit that a broker accepts in its settings


def check_writable(topic: str) -> None:
    """Raise `UsageError` for an illegal topic name, and for topics that only brokers write to."""
    check_topic(topic)
    if topic in NOT_FOR_CLIENTS:
        raise UsageError("only brokers write to this topic")


def _job(name: str, value: str) -> str:
    if not 0 < len(value) <= 128 or not value.isprintable():
        raise UsageError(f"option {name} is {value!r}; write 1 to 128 printable characters")
    return value


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Options of a write; the texts are the documentation for users."""

    namesrv: str = name_servers_option()
    topic: str | None = option(
        "topic", checked_by(check_writable), None, "the topic of all rows; default: that in column `topic`"
    )
    delivery: str = option(
        "delivery",
        values.words(AT_LEAST_ONCE, IDEMPOTENT, EXACTLY_ONCE),
        AT_LEAST_ONCE,
        "`atLeastOnce`; `idempotent`: repeated rows have equal message ids; `exactlyOnce`: visible once, by a batch "
        "transaction (pyromq brokers only)",
    )
    order_by: str | None = option(
        "orderBy",
        values.words(QUEUE_ID, SHARDING_KEY),
        None,
        "the column that chooses the queue: `queueId` or `shardingKey`; default: the one that is not null, `queueId` "
        "first",
    )
    extra_columns: str = option(
        "extraColumns",
        values.words(FAIL, "properties", DROP),
        FAIL,
        "columns that the sink does not know: `fail` at planning, send them as `properties`, or `drop` them",
    )
    null_body: str = option(
        "nullBody",
        values.words(FAIL, DROP, TOMBSTONES),
        FAIL,
        "rows with a null body: `fail`, `drop` them, or write a `tombstone`: a zero byte with property `TOMBSTONE` = "
        "`true`",
    )
    verify_tags: bool = option(
        "verifyTags",
        values.truth,
        True,
        "refuse tags that no subscription matches (with `||`, or blanks around them); `false` for copies of messages",
    )
    delay_levels: int = option(
        "delayLevels",
        values.number(1, 1000),
        18,
        "number of the brokers' delay levels (`messageDelayLevel`), the limit of column `delayLevel`",
    )
    too_large: str = option(
        "onTooLarge",
        values.words(FAIL, DROP, DEAD_LETTER),
        FAIL,
        "rows that exceed the brokers' limits: `fail`, `drop` them, or send the beginning to `deadLetterTopic` "
        "(`dlq`); both are counted and logged",
    )
    dead_letter_topic: str | None = option(
        "deadLetterTopic", checked_by(check_writable), None, "topic for too large rows, with bodies cut at 64 KiB"
    )
    max_message_bytes: int = option(
        "maxMessageBytes",
        values.size(1024, MAX_MESSAGE_BYTES),
        4 << 20,
        "the brokers' limit for one message: body and properties of a row",
    )
    batch_bytes: int = option(
        "sendBatchBytes", values.size(1024, MAX_MESSAGE_BYTES), 1 << 20, "bytes of rows for one queue in one request"
    )
    in_flight: int = option("inflight", values.number(1, 1024), 4, "concurrent requests of a task")
    deadline_ms: int = option(
        "deadlineMs", values.milliseconds(1), 60_000, "time for one request with all retries; `60s`, `5m`"
    )
    job_id: str | None = option(
        "jobId",
        _job,
        None,
        "name of a batch job, so that a repetition has no effect: the transaction's name with `exactlyOnce`, part of "
        "message ids with `idempotent`; streams use their query's id",
    )
    wait_visible: bool = option(
        "waitVisible",
        values.truth,
        True,
        "a write with `exactlyOnce` returns when all of its rows are visible; `false`: when they are committed",
    )
    ledger: str | None = option(
        "ledger",
        values.text,
        None,
        "the broker that stores commits, for `exactlyOnce`; default: the first by name",
    )
    group: str = option("group", checked_by(check_producer_group), "pyromq-spark-sink", "the producer group at brokers")
    connecting: ConnectionOptions = BY_ENVIRONMENT
    checkpoint: str | None = None  # of a stream; Spark adds both to the options
    query_name: str | None = None

    def __post_init__(self) -> None:
        if (self.too_large == DEAD_LETTER) != (self.dead_letter_topic is not None):
            raise UsageError("options onTooLarge=dlq and deadLetterTopic belong together; give both or none")
        if self.batch_bytes > self.max_message_bytes:
            raise UsageError(
                f"option sendBatchBytes is {self.batch_bytes}, more than maxMessageBytes {self.max_message_bytes}"
            )
        if self.ledger is not None and self.delivery != EXACTLY_ONCE:
            raise UsageError(f"option ledger is for delivery=exactlyOnce, and delivery is {self.delivery}")
        if self.job_id is not None and self.delivery == AT_LEAST_ONCE:
            raise UsageError("option jobId is for delivery=exactlyOnce or idempotent, and delivery is atLeastOnce")


def sink_options(given: Mapping[str, str]) -> SinkOptions:
    """Return the checked options. Raises `UsageError` naming option, value and allowed values."""
    return SinkOptions(**read_fields(SinkOptions, given, unknown=_unknown))


def _unknown(name: str) -> str:
    from pyromq.spark.read.read_options import ReadOptions

    return unknown_option(name, SinkOptions, ReadOptions, writes=True)


def sink_documentation() -> str:
    """Return the options as a Markdown table."""
    return documentation_of(SinkOptions)
