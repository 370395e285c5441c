"""The options of a write: one table of names, types and meaning, checked before anything is opened. Knows no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyromq.errors import UsageError
from pyromq.names import NOT_FOR_CLIENTS, check_producer_group, check_topic
from pyromq.spark import option_values as values
from pyromq.spark.connection_options import BY_ENVIRONMENT, ConnectionOptions
from pyromq.spark.declared_options import (
    checked,
    documentation_of,
    name_servers,
    read_fields,
    unknown_option,
)

AT_LEAST_ONCE, IDEMPOTENT, EXACTLY_ONCE = "atLeastOnce", "idempotent", "exactlyOnce"
FAIL, DROP, DEAD_LETTER, TOMBSTONES = "fail", "drop", "dlq", "tombstone"
QUEUE_ID, SHARDING_KEY = "queueId", "shardingKey"
MAX_MESSAGE_BYTES = 15 << 20  # no broker can be set to more


def _option(name: str, read: Callable[[str, str], Any], default: Any, doc: str) -> Any:
    return field(default=default, metadata={"name": name, "read": read, "doc": doc, "only": None})


def check_writable(topic: str) -> None:
    """Raise `UsageError` for what is no topic name, and for topics that only brokers write."""
    check_topic(topic)
    if topic in NOT_FOR_CLIENTS:
        raise UsageError("only brokers write to this topic")


def _topic(name: str, value: str) -> str:
    return checked(name, value.strip(), check_writable)


def _group(name: str, value: str) -> str:
    return checked(name, value.strip(), check_producer_group)


def _job(name: str, value: str) -> str:
    if not 0 < len(value) <= 128 or not value.isprintable():
        raise UsageError(f"option {name} is {value!r}; write 1 to 128 printable characters")
    return value


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write and how; the attribute docs are the user's documentation."""

    namesrv: str = _option(
        "namesrvAddr",
        name_servers,
        "127.0.0.1:9876",
        "name servers, `host:port;host:port`, or the URL they are looked up at; where the driver has `NAMESRV_ADDR`, "
        "that is the default",
    )
    topic: str | None = _option("topic", _topic, None, "the topic of all rows; without it, column `topic` says so")
    delivery: str = _option(
        "delivery",
        values.words(AT_LEAST_ONCE, IDEMPOTENT, EXACTLY_ONCE),
        AT_LEAST_ONCE,
        "`atLeastOnce`; `idempotent`: repeated rows have the same message id; `exactlyOnce`: seen once, by a batch "
        "transaction (brokers of pyromq only)",
    )
    order_by: str | None = _option(
        "orderBy",
        values.words(QUEUE_ID, SHARDING_KEY),
        None,
        "the column that chooses the queue: `queueId` or `shardingKey`; without it either does where it is not null, "
        "`queueId` first",
    )
    extra_columns: str = _option(
        "extraColumns",
        values.words(FAIL, "properties", DROP),
        FAIL,
        "columns that mean nothing here: `fail` at planning, send them as `properties`, or `drop` them",
    )
    null_body: str = _option(
        "nullBody",
        values.words(FAIL, DROP, TOMBSTONES),
        FAIL,
        "rows with a null body: `fail`, `drop` them, or write a `tombstone`: property `TOMBSTONE` is `true`, the body "
        "one zero byte",
    )
    verify_tags: bool = _option(
        "verifyTags",
        values.truth,
        True,
        "refuse tags that no subscription finds (with `||`, or blanks around them); `false` for copies of messages",
    )
    delay_levels: int = _option(
        "delayLevels",
        values.number(1, 1000),
        18,
        "how many delay levels the brokers have (`messageDelayLevel`); column `delayLevel` has no higher one",
    )
    too_large: str = _option(
        "onTooLarge",
        values.words(FAIL, DROP, DEAD_LETTER),
        FAIL,
        "rows that no broker takes: `fail`, `drop` them, or send what fits to `deadLetterTopic` (`dlq`); both are "
        "counted and logged",
    )
    dead_letter_topic: str | None = _option(
        "deadLetterTopic", _topic, None, "where too large rows go, their body cut after 64 KiB"
    )
    max_message_bytes: int = _option(
        "maxMessageBytes",
        values.size(1024, MAX_MESSAGE_BYTES),
        4 << 20,
        "the brokers' limit for one message; a row with its properties must fit",
    )
    batch_bytes: int = _option(
        "sendBatchBytes", values.size(1024, MAX_MESSAGE_BYTES), 1 << 20, "bytes of rows for one queue sent together"
    )
    in_flight: int = _option("inflight", values.number(1, 1024), 4, "batches of a task under way at once")
    deadline_ms: int = _option(
        "deadlineMs", values.milliseconds(1), 60_000, "how long one batch may take with all repetitions; `60s`, `5m`"
    )
    job_id: str | None = _option(
        "jobId",
        _job,
        None,
        "name of a batch job, for writing it again without effect: `exactlyOnce` knows its name, `idempotent` makes "
        "ids from it; streams have their query's id",
    )
    wait_visible: bool = _option(
        "waitVisible",
        values.truth,
        True,
        "a write with `exactlyOnce` returns when all of its rows can be read; false: as soon as they count",
    )
    ledger: str | None = _option(
        "ledger",
        values.text,
        None,
        "the broker that decides what counts, for `exactlyOnce`; default: the first by name",
    )
    group: str = _option("group", _group, "pyromq-spark-sink", "the producer group that brokers see")
    connecting: ConnectionOptions = BY_ENVIRONMENT  # what `connection_options` took
    checkpoint: str | None = None  # a stream's checkpoint and name, which Spark itself adds to the options
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
    """Return the checked options. Raises `UsageError` naming option, value and what is allowed."""
    return SinkOptions(**read_fields(SinkOptions, given, unknown=_unknown))


def _unknown(name: str) -> str:
    from pyromq.spark.read.options import ReadOptions

    return unknown_option(name, SinkOptions, ReadOptions, writes=True)


def sink_documentation() -> str:
    """Return the options as a Markdown table."""
    return documentation_of(SinkOptions)
