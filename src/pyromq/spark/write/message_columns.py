"""Converts rows in Arrow batches to messages, encoded as members of a batch message (see `pyromq.record`).

Arrow's functions join the property texts of all rows at once.

No Spark and no client here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyromq import speedups
from pyromq.errors import IllegalMessage, UsageError
from pyromq.filter.filter import check_tag
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, PAIRS, Property
from pyromq.record import MAX_PROPERTIES_SIZE, MEMBER_BYTES
from pyromq.spark.columns import BORN, SINK_COLUMNS, TOMBSTONE, TOMBSTONE_BODY
from pyromq.spark.write.sink_options import (
    DROP,
    QUEUE_ID,
    SHARDING_KEY,
    TOMBSTONES,
    SinkOptions,
    check_name,
    check_writable,
)

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.batches import write_members

Ints = npt.NDArray[np.int64]


class BatchMembers:
    """Messages encoded as members of a batch message.

    `bodies` and `texts` (of properties) have no null, and no text exceeds a record's limit.
    """

    def __init__(self, flags: Ints, bodies: pa.BinaryArray, texts: pa.BinaryArray) -> None:
        self._flags = flags.astype(np.int32)
        self._bodies = bodies
        self._texts = texts

    def __len__(self) -> int:
        return len(self._bodies)

    @cached_property
    def ends(self) -> Ints:
        """Positions of the members in the joined bytes: 0, then the end of each member."""
        ends = np.zeros(len(self) + 1, np.int64)
        np.cumsum(self._sizes(self._bodies) + self._sizes(self._texts) + MEMBER_BYTES, out=ends[1:])
        return ends

    def between(self, first: int, last: int) -> bytes | memoryview:
        """Return the joined bytes of members `first` to `last` (exclusive): the body of a batch message."""
        if speedups.is_active:
            return write_members(self._flags, self._body_buffers, self._text_buffers, first, last)
        return self._content[self.ends[first] : self.ends[last]]

    def take(self, numbers: Ints) -> BatchMembers:
        """Return the members with these numbers."""
        chosen = pa.array(numbers)
        return BatchMembers(self._flags[numbers].astype(np.int64), self._bodies.take(chosen), self._texts.take(chosen))

    @cached_property
    def _body_buffers(self) -> tuple[Any, Any]:
        return _buffers(self._bodies)

    @cached_property
    def _text_buffers(self) -> tuple[Any, Any]:
        return _buffers(self._texts)

    @cached_property
    def _content(self) -> memoryview:
        """The bytes of all members, joined by Arrow's functions. Used if the compiled `write_members` is missing."""
        count = len(self)
        body_sizes, text_sizes = self._sizes(self._bodies), self._sizes(self._texts)
        heads = np.zeros((count, 5), ">i4")
        heads[:, 0] = body_sizes + text_sizes + MEMBER_BYTES
        heads[:, 3] = self._flags
        heads[:, 4] = body_sizes
        joined = pc.binary_join_element_wise(
            _fixed(heads.tobytes(), count, 20),
            self._bodies,
            _fixed(text_sizes.astype(">i2").tobytes(), count, 2),
            self._texts,
            b"",
        )
        content = joined.buffers()[2]
        return memoryview(b"" if content is None else content)

    @staticmethod
    def _sizes(values: pa.BinaryArray) -> Ints:
        return np.diff(np.frombuffer(_buffers(values)[0], np.int32)).astype(np.int64)


def _buffers(values: pa.BinaryArray) -> tuple[Any, Any]:
    """Return two buffers: the offsets and the bytes of an Arrow array's values."""
    _, ends, content = values.buffers()
    begin, count = 4 * values.offset, 4 * (len(values) + 1)
    if ends is None:  # the array is empty
        return bytes(count), b""
    return ends.slice(begin, count), b"" if content is None else content


def _fixed(raw: bytes, count: int, width: int) -> pa.Array:
    """Return `raw` as an Arrow array of `count` binary values, each `width` bytes long."""
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(raw)]).cast(pa.binary())


logger = logger_of(__name__)

KEPT_BYTES = 64 << 10  # limit of the body in the dead letter of a too large row
ROOM_FOR_BROKER = 200  # bytes left free for properties that a broker adds, for example its cluster's name

_TEXTS = {"keys": Property.KEYS, "tags": Property.TAGS, "shardingKey": Property.SHARDING_KEY, "bornTimestamp": BORN}
_NUMBERS = ("flag", "queueId", "delayLevel")
_LETTER_PROPERTIES = tuple(name + NAME_VALUE for name in (Property.UNIQUE_KEY, Property.KEYS, Property.TAGS))

# Spark has several Arrow types for lists and maps of texts; columns are cast to these two.
_TEXT_LIST, _TEXT_MAP = pa.list_(pa.string()), pa.map_(pa.string(), pa.string())

Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class SingleMessage:
    """One message that is sent in its own request, not in a batch message."""

    topic: str
    body: bytes
    text: str  # the message's properties in text form
    flag: int = 0


class MessageColumns:
    """The messages of some rows, in order, as Arrow columns.

    A column is None if the rows lack it or the options do not use it.
    """

    def __init__(self, columns: Mapping[str, pa.Array], texts: pa.Array, options: SinkOptions) -> None:
        self._columns = columns
        self._options = options
        self.bodies = columns["body"]
        self.texts = texts
        self.topics: pa.Array | None = columns["topic"] if options.topic is None else None
        by_id, by_key = options.order_by != SHARDING_KEY, options.order_by != QUEUE_ID
        self.queue_ids: pa.Array | None = columns.get(QUEUE_ID) if by_id else None
        self.broker_names: pa.Array | None = columns.get("brokerName") if by_id else None
        self.sharding_keys: pa.Array | None = columns.get(SHARDING_KEY) if by_key else None

    def __len__(self) -> int:
        return len(self.bodies)

    @cached_property
    def members(self) -> BatchMembers:
        """The messages, encoded as members of a batch message."""
        return BatchMembers(self._flags, self.bodies, self.texts)

    @cached_property
    def sizes(self) -> Ints:
        """Size in bytes of each message as a member of a batch message."""
        return self._body_sizes + self._text_sizes + MEMBER_BYTES

    @property
    def body_bytes(self) -> int:
        """Sum of the body sizes in bytes."""
        return int(self._body_sizes.sum())

    @cached_property
    def too_large(self) -> Truths:
        """For each message, whether its size exceeds the brokers' limits."""
        too_long = self._text_sizes > MAX_PROPERTIES_SIZE - ROOM_FOR_BROKER
        return (self.sizes > self._options.max_message_bytes) | too_long

    @cached_property
    def delayed(self) -> Truths:
        """For each message, whether the message is delayed or scheduled.

        Such a message cannot be in a batch message.
        """
        if "deliverTimestamp" in self._columns:
            return ~_truths(self._columns["deliverTimestamp"].is_null())
        if "delayLevel" in self._columns:
            return _truths(pc.not_equal(pc.fill_null(self._columns["delayLevel"], 0), 0))
        return np.zeros(len(self), np.bool_)

    def row(self, index: int) -> SingleMessage:
        """Return the message in row `index`."""
        topic = self._options.topic or self._columns["topic"][index].as_py()
        text = self.texts[index].as_py().decode()
        return SingleMessage(topic, self.bodies[index].as_py(), text, int(self._flags[index]))

    def where(self, kept: Truths) -> MessageColumns:
        """Return the messages for which `kept` is true, in order."""
        mask = pa.array(kept)
        return MessageColumns(
            {n: c.filter(mask) for n, c in self._columns.items()}, self.texts.filter(mask), self._options
        )

    def refusal(self, index: int) -> str:
        """Return the sizes of the too large message in row `index`, and the exceeded limit, for an error text."""
        body, text = int(self._body_sizes[index]), int(self._text_sizes[index])
        if self.sizes[index] > self._options.max_message_bytes:
            return f"{body} bytes of body and {text} of properties; the limit is {self._options.max_message_bytes}"
        return f"{text} bytes of properties; the limit is {MAX_PROPERTIES_SIZE - ROOM_FOR_BROKER}"

    @cached_property
    def _body_sizes(self) -> Ints:
        return _lengths(self.bodies)

    @cached_property
    def _text_sizes(self) -> Ints:
        return _lengths(self.texts)

    @cached_property
    def _flags(self) -> Ints:
        flags = self._columns.get("flag")
        return np.zeros(len(self), np.int64) if flags is None else pc.fill_null(flags, 0).to_numpy().astype(np.int64)


class MessageReader:
    """Converts Arrow batches of rows to messages.

    `new_ids(count)` makes unique ids for rows without column uniqKey. `id_of(key)` returns the id of a row with value
    `key` in that column.
    """

    def __init__(self, options: SinkOptions, new_ids: Callable[[int], pa.Array], id_of: Callable[[str], str]) -> None:
        self._options = options
        self._new_ids = new_ids
        self._id_of = id_of

    def read(self, batch: pa.RecordBatch) -> MessageColumns:
        """Return the rows as messages. Raises `IllegalMessage` naming the column and value that cannot be sent."""
        if self._options.extra_columns == DROP:
            batch = batch.select([name for name in batch.schema.names if name in SINK_COLUMNS])
        if self._options.null_body == DROP:
            batch = _with_bodies(batch)
        columns = {name: _cast(name, batch.column(name)) for name in batch.schema.names}
        is_null = columns["body"].is_null()
        if self._options.null_body == TOMBSTONES:
            columns["body"] = pc.fill_null(columns["body"], TOMBSTONE_BODY)
        self._check_rows(columns)
        if "bornTimestamp" in columns and "properties" in columns:
            columns["bornTimestamp"] = _born_times(columns["bornTimestamp"], columns["properties"])
        # All pieces are joined at once, as each join copies the texts: a third of a task's time for rows of 100 B.
        pieces: list[pa.Array | str] = [Property.UNIQUE_KEY + NAME_VALUE]
        pieces.append(self._unique_ids(columns.get("uniqKey"), batch.num_rows))
        for name, column in columns.items():
            if name in _TEXTS or name not in SINK_COLUMNS:
                pieces += _property(_TEXTS.get(name, name), column)
        if "properties" in columns:
            pieces.append(_map_properties(columns["properties"]))
        pieces += _delays(columns, self._options.delay_levels)
        if is_null.true_count:
            pieces.append(pc.if_else(is_null, f"{PAIRS}{TOMBSTONE}{NAME_VALUE}true", ""))
        texts = pc.binary_join_element_wise(*pieces, "")
        return MessageColumns(columns, texts.cast(pa.binary()), self._options)

    def _check_rows(self, columns: Mapping[str, pa.Array]) -> None:
        if self._options.topic is None and columns["topic"].null_count:
            raise IllegalMessage("a row has no topic: column topic is null and option topic is not given")
        if self._options.topic is None:
            _check_topics(columns["topic"])
        if self._options.verify_tags and "tags" in columns:
            _check_tags(columns["tags"])
        lengths = pc.fill_null(pc.binary_length(columns["body"]), -1)
        if len(lengths) and (least := pc.min(lengths).as_py()) < 1:
            where = f"a row for topic {self._options.topic or columns['topic'][pc.index(lengths, least).as_py()]}"
            if least < 0:
                raise IllegalMessage(
                    f"{where} has null body; filter such rows, or set option nullBody to drop or tombstone"
                )
            raise IllegalMessage(f"{where} has empty body, which brokers refuse; filter such rows")

    def _unique_ids(self, keys: pa.Array | None, count: int) -> pa.Array:
        ids = self._new_ids(count)
        if keys is not None:
            made = [self._id_of(key) if key else None for key in keys.to_pylist()]
            ids = pc.coalesce(pa.array(made, pa.string()), ids)
        return ids


def _with_bodies(batch: pa.RecordBatch) -> pa.RecordBatch:
    kept = batch.filter(batch.column("body").is_valid())
    if kept.num_rows < batch.num_rows:
        logger.info("%d rows with a null body are dropped", batch.num_rows - kept.num_rows)
    return kept


def _check_topics(topics: pa.Array) -> None:
    for topic in pc.unique(topics).to_pylist():
        try:
            check_writable(topic)
        except UsageError as error:
            raise IllegalMessage(f"column topic is {topic!r:.150} in a row: {error}") from error


def _check_tags(tags: pa.Array) -> None:
    """Raise `IllegalMessage` for a tag that no subscription can match. Producers refuse the same tags."""
    doubtful = pc.or_(pc.match_substring(tags, "|"), pc.not_equal(tags, pc.utf8_trim_whitespace(tags)))
    for tag in pc.unique(tags.filter(doubtful)).to_pylist():
        try:
            check_tag(tag)
        except IllegalMessage as error:
            raise IllegalMessage(f"column tags in a row: {error}; option verifyTags=false writes it") from error


def dead_letter(row: SingleMessage, reason: str, options: SinkOptions) -> MessageColumns:
    """Return the dead letter of a too large row.

    The dead letter has the beginning of the row's body, its unique id, keys and tags, and the reason as a property.
    """
    properties = {"TOO_LARGE": reason, "ORIGIN_TOPIC": row.topic, "ORIGIN_BODY_BYTES": str(len(row.body))}
    pairs = [f"{name}{NAME_VALUE}{value}" for name, value in properties.items()]
    kept = [pair for pair in row.text.split(PAIRS) if len(pair) < 1024 and pair.startswith(_LETTER_PROPERTIES)]
    columns = {
        "body": pa.array([row.body[: min(KEPT_BYTES, options.max_message_bytes // 2)]], pa.binary()),
        "topic": pa.array([options.dead_letter_topic], pa.string()),
        "flag": pa.array([row.flag], pa.int32()),
    }
    text = pa.array([PAIRS.join(pairs + kept).encode()], pa.binary())
    return MessageColumns(columns, text, _letter_options(options))


def _letter_options(options: SinkOptions) -> SinkOptions:
    return SinkOptions(max_message_bytes=options.max_message_bytes, batch_bytes=options.batch_bytes)


def _cast(name: str, column: pa.Array) -> pa.Array:
    """Return column `name` cast to the Arrow type used here: binary for bodies, string for properties."""
    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    if name == "body":
        return column.cast(pa.binary())
    if name == "keys" and pa.types.is_nested(column.type):
        return _joined_keys(column.cast(_TEXT_LIST))
    if name == "properties":
        return column.cast(_TEXT_MAP)
    if name in ("bornTimestamp", "deliverTimestamp"):
        microseconds = column.cast(pa.timestamp("us", tz=column.type.tz)).cast(pa.int64())
        return pc.divide(pc.add(microseconds, 999), 1000).cast(pa.string())  # rounded up to ms
    return column if name in _NUMBERS else column.cast(pa.string())


def _joined_keys(lists: pa.ListArray) -> pa.Array:
    """Return the keys of each row joined by blanks. Raises `IllegalMessage` for a key with a blank."""
    keys = lists.flatten()
    if len(wrong := keys.filter(pc.match_substring(keys, " "))):
        raise IllegalMessage(f"column keys has {wrong[0].as_py()!r:.80} in a row: a blank separates keys; replace it")
    if keys.null_count:
        texts = [None if row is None else [key for key in row if key] for row in lists.to_pylist()]
        lists = pa.array(texts, _TEXT_LIST)
    return pc.binary_join(lists, " ")


def _born_times(born: pa.Array, maps: pa.MapArray) -> pa.Array:
    """Return the born times, null for copied messages.

    The properties of a copied message have the original's born time.
    """
    before = pc.fill_null(pc.map_lookup(maps, BORN, "last"), "")
    return pc.if_else(pc.equal(before, ""), born, pa.scalar(None, pa.string()))


def _property(name: str, values: pa.Array) -> list[pa.Array | str]:
    """Return pieces that joined are the text of property `name` of each row.

    The text is `02 name 01 value`, or '' for null and empty values. Raises `IllegalMessage` for a value with a
    separator.
    """
    _check_texts(name, values)
    values = pc.fill_null(values, "")
    pieces: list[pa.Array | str] = [PAIRS + name + NAME_VALUE, values]
    if not len(values) or pc.min(pc.binary_length(values)).as_py() > 0:
        return pieces
    return [pc.if_else(pc.equal(values, ""), "", pc.binary_join_element_wise(*pieces, ""))]


def _check_texts(name: str, values: pa.Array) -> None:
    if not _may_have_separator(values):
        return
    for separator in (NAME_VALUE, PAIRS):
        if pc.any(pc.match_substring(values, separator)).as_py():
            wrong = values.filter(pc.match_substring(values, separator))[0].as_py()
            raise IllegalMessage(f"property {name}={wrong!r} contains a separator (character 1 or 2)")


def _may_have_separator(texts: pa.StringArray) -> bool:
    """Return whether a text may contain a separator.

    The whole buffer is searched; if `texts` is a slice, the match may lie in other rows.
    """
    content = texts.buffers()[2]
    return content is not None and bool((np.frombuffer(content, np.uint8) <= ord(PAIRS)).any())


def _map_properties(maps: pa.MapArray) -> pa.Array:
    """Return column properties as text `02 name 01 value 02 name 01 value` for each row, without pairs of empty value.

    Raises `IllegalMessage` for a name or value that cannot be sent.
    """
    lists = maps.cast(pa.list_(maps.type.field(0)))
    pairs = lists.flatten()
    names, values = pairs.field(0), pc.fill_null(pairs.field(1), "")
    for name in pc.unique(names).to_pylist():
        if name != BORN:  # a copied message that is copied again has this property
            check_name(name)
    for name in (name for name in pc.unique(names).to_pylist() if _has_separator(values.filter(pc.equal(names, name)))):
        _check_texts(name, values.filter(pc.equal(names, name)))
    texts = pc.binary_join_element_wise("", names, PAIRS)
    texts = pc.if_else(pc.equal(values, ""), "", pc.binary_join_element_wise(texts, values, NAME_VALUE))
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    ends = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(counts, out=ends[1:])
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(ends), texts), "")


def _has_separator(values: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring_regex(values, f"[{NAME_VALUE}{PAIRS}]")).as_py())


def _delays(columns: Mapping[str, pa.Array], most_levels: int) -> Iterator[pa.Array | str]:
    """Yield the pieces of property texts of delayed and scheduled messages.

    Raises `IllegalMessage` for a delay level out of range.
    """
    if (levels := columns.get("delayLevel")) is not None:
        levels = pc.if_else(pc.equal(levels, 0), pa.scalar(None, pa.int32()), levels)
        bounds = pc.min_max(levels).as_py()
        if bounds["min"] is not None and not 0 < bounds["min"] <= bounds["max"] <= most_levels:
            wrong = bounds["min"] if bounds["min"] <= 0 else bounds["max"]
            raise IllegalMessage(
                f"column delayLevel is {wrong} in a row, out of range: 1 to {most_levels}, or 0 for no delay; option "
                "delayLevels says how many levels the brokers have"
            )
        yield from _property(Property.DELAY, levels.cast(pa.string()))
    if (moments := columns.get("deliverTimestamp")) is not None:
        yield from _property(Property.TIMER_DELIVER_MS, moments)


def _lengths(values: pa.Array) -> Ints:
    return np.asarray(pc.binary_length(values).to_numpy(zero_copy_only=False), dtype=np.int64)


def _truths(values: Any) -> Truths:
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.bool_)
