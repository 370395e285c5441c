"""Rows into messages: which columns a sink takes, and Arrow batches into the members of runs, queue by queue.

Knows no Spark and no client: who chooses queues, makes ids and sends is given.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pyromq.errors import IllegalMessage, UsageError
from pyromq.message import NAME_VALUE, PAIRS, RESERVED_PROPERTIES, Property
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.spark.sink_options import EXACTLY_ONCE, FAIL, QUEUE_ID, SHARDING_KEY, SinkOptions

BORN = "BORN_TIMESTAMP"  # the property that column bornTimestamp becomes, in ms: a batch has one time of its own
KEPT_BYTES = 64 << 10  # of the body of a row that is too large
ROOM_FOR_BROKER = 200  # bytes of properties that a broker adds, such as its cluster's name

# What Spark calls the types that a column may have.
SINK_COLUMNS: dict[str, tuple[str, ...]] = {
    "body": ("binary", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "keys": ("string", "array<string>"),
    "properties": ("map<string,string>",),
    "flag": ("int",),
    "uniqKey": ("string",),
    "shardingKey": ("string",),
    "queueId": ("int",),
    "brokerName": ("string",),
    "delayLevel": ("int",),
    "deliverTimestamp": ("timestamp",),
    "bornTimestamp": ("timestamp",),
}
_EXTRA_TYPES = ("string", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "date", "timestamp")

_HEAD = struct.Struct(">iiiii")  # of a batch's member, see pyromq.record
_SHORT = struct.Struct(">h")


def check_columns(columns: Mapping[str, str], options: SinkOptions) -> None:
    """Check names and types (as Spark writes them) against what a sink takes. Raises `UsageError` naming both."""
    for name, kind in columns.items():
        allowed = SINK_COLUMNS.get(name)
        if allowed is None:
            _check_extra(name, kind, options)
        elif kind not in allowed:
            raise UsageError(f"column {name} is {kind}; the sink takes {' or '.join(allowed)}")
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


def _check_extra(name: str, kind: str, options: SinkOptions) -> None:
    if options.extra_columns == FAIL:
        raise UsageError(
            f"column {name!r} means nothing to the sink, which takes {', '.join(SINK_COLUMNS)}; drop it, or set option "
            "extraColumns to properties"
        )
    if kind not in _EXTRA_TYPES and not kind.startswith("decimal"):
        raise UsageError(f"column {name} is {kind}, which makes no property; cast it to string")
    _check_name(name)


def _check_name(name: str) -> None:
    if not name.strip() or NAME_VALUE in name or PAIRS in name:
        raise IllegalMessage(f"property {name!r} is blank or contains a separator (character 1 or 2)")
    if name in RESERVED_PROPERTIES or name == BORN:
        raise IllegalMessage(f"property {name!r} is used by the system; choose another name")


@dataclass(slots=True)
class Row:
    """One row as a message; `text` is that of its properties. `delayed`: one of them lets it wait."""

    topic: str
    body: bytes
    text: bytes
    flag: int
    sharding_key: str | None
    broker_name: str | None
    queue_id: int | None
    delayed: bool = False

    @property
    def size(self) -> int:
        """Bytes it takes in a run."""
        return 22 + len(self.body) + len(self.text)

    def encode(self) -> bytes:
        """Return it as the member of a run."""
        text = self.text
        head = _HEAD.pack(self.size, 0, 0, self.flag, len(self.body))
        return b"".join((head, self.body, _SHORT.pack(len(text)), text))


class RowReader:
    """Turns Arrow batches into rows. `new_id` makes the unique id of a message whose row has none, `id_of` that of one
    whose row has a key of its own."""

    def __init__(self, options: SinkOptions, new_id: Callable[[], str], id_of: Callable[[str], str]) -> None:
        self._options = options
        self._new_id = new_id
        self._id_of = id_of
        self._checked_names: set[str] = set()

    def rows(self, batch: pa.RecordBatch) -> Iterator[Row]:
        """Yield the rows in order. Raises `IllegalMessage` naming the row and what cannot be sent of it."""
        columns = {name: _values(name, batch.column(name)) for name in batch.schema.names}
        count = batch.num_rows
        nothing: list[Any] = [None] * count
        extra = [name for name in columns if name not in SINK_COLUMNS]
        options = self._options
        by_key = columns.get(SHARDING_KEY, nothing)
        by_id = columns.get(QUEUE_ID, nothing)
        routed = zip(
            by_key,
            nothing if options.order_by == SHARDING_KEY else by_id,
            nothing if options.order_by == SHARDING_KEY else columns.get("brokerName", nothing),
            strict=True,
        )
        texts = self._texts(columns, extra, nothing)
        topics = [options.topic] * count if options.topic is not None else columns["topic"]
        delays = _delays(columns, nothing)
        ignores_key = options.order_by == QUEUE_ID
        for topic, body, text, flag, delay, (key, queue_id, broker) in zip(
            topics, columns["body"], texts, columns.get("flag", nothing), delays, routed, strict=True
        ):
            if topic is None:
                raise IllegalMessage("a row has no topic: column topic is null and option topic is not given")
            if not body:
                what = "null" if body is None else "empty"
                raise IllegalMessage(f"a row for topic {topic} has {what} body; brokers take none: filter such rows")
            yield Row(
                topic,
                body,
                (text + delay).encode(),
                flag or 0,
                None if ignores_key else key,
                broker,
                queue_id,
                bool(delay),
            )

    def _texts(self, columns: dict[str, list[Any]], extra: list[str], nothing: list[Any]) -> Iterator[str]:
        """Yield the property text of each row, without what makes it wait."""
        plain = [
            (name, columns[column])
            for name, column in (
                (Property.KEYS, "keys"),
                (Property.TAGS, "tags"),
                (Property.SHARDING_KEY, "shardingKey"),
                (BORN, "bornTimestamp"),
            )
            if column in columns
        ]
        plain += [(name, columns[name]) for name in extra]
        maps = columns.get("properties", nothing)
        given_ids = columns.get("uniqKey", nothing)
        unique = Property.UNIQUE_KEY + NAME_VALUE
        new_id, id_of = self._new_id, self._id_of
        for index, given in enumerate(given_ids):
            identity = new_id() if not given else id_of(given)
            parts = [unique + identity]
            for name, values in plain:
                value = values[index]
                if value:
                    if NAME_VALUE in value or PAIRS in value:
                        raise IllegalMessage(f"{name}={value!r} contains a separator (character 1 or 2)")
                    parts.append(f"{name}{NAME_VALUE}{value}")
            if pairs := maps[index]:
                parts += self._free(pairs)
            yield PAIRS.join(parts)

    def _free(self, pairs: Iterable[tuple[str, str | None]]) -> Iterator[str]:
        for name, value in pairs:
            if name not in self._checked_names:
                _check_name(name)
                if len(self._checked_names) < 10_000:
                    self._checked_names.add(name)
            if not value:  # nothing: a property without a value is none
                continue
            if NAME_VALUE in value or PAIRS in value:
                raise IllegalMessage(f"property {name}={value!r} contains a separator (character 1 or 2)")
            yield f"{name}{NAME_VALUE}{value}"


def refusal_of(row: Row, options: SinkOptions) -> str | None:
    """Return why no broker takes a row of this size; None: it may go."""
    if row.size > options.max_message_bytes:
        return (
            f"{len(row.body)} bytes of body and {len(row.text)} of properties; the limit is {options.max_message_bytes}"
        )
    if len(row.text) > MAX_PROPERTIES_SIZE - ROOM_FOR_BROKER:
        return f"{len(row.text)} bytes of properties; the limit is {MAX_PROPERTIES_SIZE - ROOM_FOR_BROKER}"
    return None


def dead_letter(row: Row, reason: str, options: SinkOptions) -> Row:
    """Return what is kept of a row that is too large: the beginning of its body, and what it was."""
    assert options.dead_letter_topic is not None
    properties = {"TOO_LARGE": reason, "ORIGIN_TOPIC": row.topic, "ORIGIN_BODY_BYTES": str(len(row.body))}
    pairs = [f"{name}{NAME_VALUE}{value}" for name, value in properties.items()]
    kept = [pair for pair in row.text.decode().split(PAIRS) if len(pair) < 1024 and pair.startswith(_KEPT)]
    body = row.body[: min(KEPT_BYTES, options.max_message_bytes // 2)]
    return Row(options.dead_letter_topic, body, PAIRS.join(pairs + kept).encode(), row.flag, None, None, None)


_KEPT = tuple(name + NAME_VALUE for name in (Property.UNIQUE_KEY, Property.KEYS, Property.TAGS))


def _values(name: str, column: pa.Array) -> list[Any]:
    """Return a column as what `rows` works with: bytes, texts, ints, pairs; None for null."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if name == "body":
        return list(column.cast(pa.binary()).to_pylist())
    if name == "keys" and pa.types.is_list(column.type):
        return list(pc.binary_join(_without_nulls(column), " ").to_pylist())
    if name in ("bornTimestamp", "deliverTimestamp"):
        microseconds = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64()).to_pylist()
        return [None if us is None else str(-(-us // 1000)) for us in microseconds]
    return list((column if name in SINK_COLUMNS else column.cast(pa.string())).to_pylist())


def _without_nulls(lists: pa.ListArray) -> pa.ListArray:
    if not lists.flatten().null_count:
        return lists
    return pa.array(
        [None if row is None else [word for word in row if word] for row in lists.to_pylist()], pa.list_(pa.string())
    )


def _delays(columns: dict[str, list[Any]], nothing: list[Any]) -> Iterator[str]:
    """Yield what to add to a row's property text to let it wait, or ''."""
    levels, moments = columns.get("delayLevel", nothing), columns.get("deliverTimestamp", nothing)
    for level, moment in zip(levels, moments, strict=True):
        if level:
            if not 0 < level <= 1000:
                raise IllegalMessage(f"delayLevel {level} is out of range: 1 to 18")
            yield f"{PAIRS}{Property.DELAY}{NAME_VALUE}{level}"
        elif moment is not None:
            yield f"{PAIRS}{Property.TIMER_DELIVER_MS}{NAME_VALUE}{moment}"
        else:
            yield ""
