"""The options of a write: one table of names, types and meaning, checked before anything is opened. Knows no Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyromq.client.cluster.name_servers import default_namesrv
from pyromq.errors import UsageError
from pyromq.names import check_group, check_topic
from pyromq.spark import option_values as values
from pyromq.spark.connection_options import BY_ENVIRONMENT, Connecting, split
from pyromq.spark.read.options import documented, unknown_option

AT_LEAST_ONCE, IDEMPOTENT, EXACTLY_ONCE = "atLeastOnce", "idempotent", "exactlyOnce"
FAIL, DROP, DEAD_LETTER = "fail", "drop", "dlq"
QUEUE_ID, SHARDING_KEY = "queueId", "shardingKey"
MAX_MESSAGE_BYTES = 15 << 20  # no broker can be set to more


def _option(name: str, read: Callable[[str, str], Any], default: Any, doc: str) -> Any:
    return field(default=default, metadata={"name": name, "read": read, "doc": doc})


def _topic(name: str, value: str) -> str:
    try:
        check_topic(value)
    except UsageError as error:
        raise UsageError(f"option {name} is {value!r}: {error}") from error
    return value


def _group(name: str, value: str) -> str:
    try:
        check_group(value)
    except UsageError as error:
        raise UsageError(f"option {name} is {value!r}: {error}") from error
    return value


def _job(name: str, value: str) -> str:
    if not 0 < len(value) <= 128 or not value.isprintable():
        raise UsageError(f"option {name} is {value!r}; write 1 to 128 printable characters")
    return value


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """Where to write and how; the attribute docs are the user's documentation."""

    namesrv: str = _option(
        "namesrvAddr",
        values.text,
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
        values.words(FAIL, "properties"),
        FAIL,
        "columns that mean nothing here: `fail` at planning, or send them as `properties`",
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
    connecting: Connecting = BY_ENVIRONMENT  # what `connection_options` took

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
    connecting, given = split(given)
    known = {f.metadata["name"].lower(): f for f in documented(SinkOptions)}
    known["endpoints"] = known["namesrvaddr"]  # as RocketMQ 5 calls them
    found: dict[str, Any] = {"connecting": connecting}
    for name, value in ({"namesrvAddr": default_namesrv()} | given).items():
        option = known.get(name.lower())
        if option is None:
            raise UsageError(unknown_option(name, (f.metadata["name"] for f in documented(SinkOptions))))
        found[option.name] = option.metadata["read"](option.metadata["name"], value)
    return SinkOptions(**found)


def sink_documentation() -> str:
    """Return the options as a Markdown table."""
    lines = ["| option | default | meaning |", "|---|---|---|"]
    for f in documented(SinkOptions):
        default = "" if f.default is None else f"`{str(f.default).lower() if f.default is True else f.default}`"
        lines.append(f"| `{f.metadata['name']}` | {default} | {f.metadata['doc']} |")
    return "\n".join(lines)
