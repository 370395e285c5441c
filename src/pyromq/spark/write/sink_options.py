"""The options of a write: names, types and meaning.

All options are checked before a connection is opened. No Spark here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyromq.errors import IllegalMessage, UsageError
from pyromq.message import NAME_VALUE, PAIRS, RESERVED_PROPERTIES
from pyromq.names import NOT_FOR_CLIENTS, check_producer_group, check_topic
from pyromq.spark import option_values as values
from pyromq.spark.columns import BORN, SINK_COLUMNS
from pyromq.spark.options import BATCH, BY_ENVIRONMENT, ConnectionOptions, checked_by, name_servers_option, option

AT_LEAST_ONCE, IDEMPOTENT, EXACTLY_ONCE = "atLeastOnce", "idempotent", "exactlyOnce"
FAIL, DROP, DEAD_LETTER, TOMBSTONES = "fail", "drop", "dlq", "tombstone"
QUEUE_ID, SHARDING_KEY = "queueId", "shardingKey"
MAX_MESSAGE_BYTES = 15 << 20  # limit of option maxMessageBytes: the highest limit that a broker accepts in its settings


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
    """Options of a write. The doc of each field is the option's documentation for users."""

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
        only=BATCH,
    )
    wait_visible: bool = option(
        "waitVisible",
        values.truth,
        True,
        "a write with `exactlyOnce` returns when all of its rows are visible; `false`: when they are committed",
    )
    ledger: str | None = option(
        "ledger",
        values.not_blank,
        None,
        "the broker that stores commits, for `exactlyOnce`; default: the first by name",
    )
    group: str = option("group", checked_by(check_producer_group), "pyromq-spark-sink", "the producer group at brokers")
    connecting: ConnectionOptions = BY_ENVIRONMENT
    checkpoint: str | None = None  # option checkpointLocation of a stream, which Spark adds, like queryName
    query_name: str | None = None

    def __post_init__(self) -> None:
        if (self.too_large == DEAD_LETTER) != (self.dead_letter_topic is not None):
            raise UsageError("options onTooLarge=dlq and deadLetterTopic belong together; give both or none")
        if self.batch_bytes > self.max_message_bytes:
            raise UsageError(
                f"option sendBatchBytes is {self.batch_bytes}, more than maxMessageBytes {self.max_message_bytes}"
            )
        for name, is_given in (("ledger", self.ledger is not None), ("waitVisible", not self.wait_visible)):
            if is_given and self.delivery != EXACTLY_ONCE:
                raise UsageError(f"option {name} is for delivery=exactlyOnce, and delivery is {self.delivery}")
        if self.job_id is not None and self.delivery == AT_LEAST_ONCE:
            raise UsageError("option jobId is for delivery=exactlyOnce or idempotent, and delivery is atLeastOnce")


_LOWER = {name.lower(): name for name in SINK_COLUMNS}
_EXTRA_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp")


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check the names and types (in Spark's spelling) of the columns to write.

    Raises `UsageError` naming column and type.
    """
    extra = [name for name in columns if name not in SINK_COLUMNS]
    _check_extra(extra, columns, options)
    for name in columns.keys() - extra:
        if columns[name] not in SINK_COLUMNS[name]:
            raise UsageError(f"column {name} is {columns[name]}; the sink takes {' or '.join(SINK_COLUMNS[name])}")
    if "body" not in columns:
        raise UsageError(f"the sink needs column body; there are {', '.join(columns) or 'none'}")
    if "topic" not in columns and options.topic is None:
        raise UsageError("give option topic, or a column topic")
    if options.order_by is not None and options.order_by not in columns:
        raise UsageError(f"option orderBy is {options.order_by}, but there is no such column")
    delays = [name for name in ("delayLevel", "deliverTimestamp") if name in columns]
    if len(delays) > 1:
        raise UsageError("give column delayLevel or column deliverTimestamp, not both")
    if delays and options.delivery == EXACTLY_ONCE:
        raise UsageError(f"column {delays[0]} is not possible with delivery=exactlyOnce: batches cannot be delayed")


def _check_extra(extra: list[str], columns: Mapping[str, str], options: SinkOptions) -> None:
    if extra and options.extra_columns == FAIL:
        quoted = ", ".join(repr(name) for name in extra)
        what = f"column {quoted} is" if len(extra) == 1 else f"columns {quoted} are"
        raise UsageError(
            f"{what} unknown to the sink; {values.did_you_mean(extra[0], SINK_COLUMNS)}. Leave them out, or set option "
            "extraColumns to drop or properties"
        )
    for name in extra:
        if options.extra_columns != DROP:
            if columns[name] not in _EXTRA_TYPES and not columns[name].startswith("decimal"):
                raise UsageError(f"column {name} is {columns[name]}, which cannot be a property; cast it to string")
            check_name(name)
        elif name.lower() in _LOWER:
            raise UsageError(f"column {name!r} would be dropped; rename it to {_LOWER[name.lower()]}, or leave it out")


def check_name(name: str) -> None:
    if not name.strip() or NAME_VALUE in name or PAIRS in name:
        raise IllegalMessage(f"property {name!r} is blank or contains a separator (character 1 or 2)")
    if name in RESERVED_PROPERTIES or name == BORN:
        raise IllegalMessage(f"property {name!r} is used by the system; choose another name")
