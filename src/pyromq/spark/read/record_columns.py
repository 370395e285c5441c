"""Converts pulled records to Arrow columns in bulk, without message objects. No Spark and no client here.

numpy gathers the fixed fields; bodies and property texts become views of the pulled bytes. Records with IPv6 addresses
have other field positions, and are rewritten first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyromq.client.cluster.namespace import NO_NAMESPACE, Namespace
from pyromq.compression import MAX_BODY_BYTES, decompress
from pyromq.errors import StoreCorrupt, UndecodableBody
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of
from pyromq.message import RESERVED_PROPERTIES, Property, SysFlag, format_address
from pyromq.record import BODY_AT, FIELD_AT, IPV4_BYTES, decode, decode_all, encode, unpack_size
from pyromq.spark.columns import SOURCE_COLUMNS, TOMBSTONE, TOMBSTONE_BODY, UNDECODABLE
from pyromq.spark.read.byte_slices import Bytes, Ints, blocks, list_offsets, slices, strings
from pyromq.spark.read.property_pairs import PropertyPairs

logger = logger_of(__name__)

TIMESTAMP = pa.timestamp("us", tz="UTC")
_TYPES: dict[str, pa.DataType] = {
    "string": pa.string(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "binary": pa.binary(),
    "timestamp": TIMESTAMP,
    "array<string>": pa.list_(pa.string()),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
}
ARROW_TYPES = {name: _TYPES[kind] for name, kind in SOURCE_COLUMNS.items()}

# The fixed fields of a record with IPv4 addresses, up to the body.
_FORMATS = {
    **dict.fromkeys(("size", "queue_id", "flag", "sys_flag", "reconsume_times", "body_size"), ">i4"),
    **dict.fromkeys(("queue_offset", "log_offset", "born_ms", "store_ms"), ">i8"),
    **dict.fromkeys(("born_address", "store_address"), f"V{IPV4_BYTES}"),
}
_HEAD = np.dtype(
    {
        "names": list(_FORMATS),
        "formats": list(_FORMATS.values()),
        "offsets": [FIELD_AT[name] for name in _FORMATS],
        "itemsize": BODY_AT,
    }
)
_IPV6 = SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6
_HEX = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), dtype="u2")
_ALIKE = 16  # consecutive records of one size, after which further records are searched in bulk
# Limits of a timestamp: the years 1 to 9999, less a day for time zones.
_FIRST_MS, _LAST_MS = -62_135_510_400_000, 253_402_214_400_000


@dataclass(frozen=True, slots=True)
class RowFormat:
    """How records become rows: which properties `properties` has, and how compressed bodies are decompressed."""

    system_properties: bool = False
    tags: frozenset[str] = frozenset()  # only messages with one of these tags are returned; empty: all messages
    max_body_bytes: int = MAX_BODY_BYTES
    undecodable: str = "null"  # option onUndecodable: null, raw or fail
    # Limit of decompressed bodies in a batch (bytes): a pull of 2 MiB may decompress to 2 GiB, and is then divided.
    max_batch_bytes: int = 64 << 20
    names: Namespace = NO_NAMESPACE  # namespace that is removed from topic names


EVERYTHING = RowFormat()


class BatchTooLarge(Exception):
    """The decompressed bodies of a batch exceed `RowFormat.max_batch_bytes`."""


def to_batches(
    raw: bytes, broker_name: str, columns: Sequence[str], row_format: RowFormat = EVERYTHING
) -> Iterator[pa.RecordBatch]:
    """Yield the records of `raw` as one Arrow batch, or as several if the bodies are too large for one.

    Raises `StoreCorrupt` and `UndecodableBody` as `to_batch` does.
    """
    try:
        yield to_batch(raw, broker_name, columns, row_format)
    except BatchTooLarge:
        starts = _starts(raw)
        middle = int(starts[starts.size // 2])
        yield from to_batches(raw[:middle], broker_name, columns, row_format)
        yield from to_batches(raw[middle:], broker_name, columns, row_format)


def to_batch(
    raw: bytes, broker_name: str, columns: Sequence[str], row_format: RowFormat = EVERYTHING
) -> pa.RecordBatch:
    """Return the records of `raw` (back to back) as an Arrow batch with these columns, in order.

    Raises `StoreCorrupt` for bytes that are no records, and `BatchTooLarge` if the bodies of several records are too
    large together. Raises `UndecodableBody` if `row_format.undecodable` is fail and a body cannot be decompressed.
    """
    records = RecordColumns(raw, broker_name, row_format, decompresses="body" in columns)
    arrays = [records.column(name) for name in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    if row_format.tags:  # the broker compares only hashes of tags, and different tags may have one hash
        batch = batch.filter(pc.is_in(records.column("tags"), pa.array(sorted(row_format.tags))))
    return batch


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])


class RecordColumns:
    """Pulled records; `column(name)` computes the Arrow column of this name."""

    def __init__(self, raw: bytes, broker_name: str, row_format: RowFormat, *, decompresses: bool) -> None:
        self._read(raw)
        if (self._head["sys_flag"] & _IPV6).any():
            self._read(_with_ipv4(raw))
        self._check()
        self._broker_name = broker_name
        self._format = row_format
        self._compressed = np.flatnonzero(self._head["sys_flag"] & SysFlag.COMPRESSED) if decompresses else ()

    def _read(self, raw: bytes) -> None:
        self._starts = _starts(raw)
        self._bytes = np.frombuffer(raw, dtype=np.uint8)
        self._head = blocks(self._bytes, self._starts, _HEAD)

    def __len__(self) -> int:
        return int(self._starts.size)

    def _check(self) -> None:
        """Raise `StoreCorrupt` unless body, topic and properties exactly fill each record."""
        ends = self._starts + self._head["size"]
        sound = (self._body_size >= 0) & (self._topic_at < ends)
        if sound.all():
            sound = self._properties_at <= ends  # so that the length of the properties can be read
        if sound.all():
            sound = (self._properties_size >= 0) & (self._properties_at + self._properties_size == ends)
        if not sound.all():
            wrong = int(self._starts[np.flatnonzero(~sound)[0]])
            size = self._bytes.size
            raise StoreCorrupt(
                f"the record at byte {wrong} of {size} pulled bytes has lengths that do not fit its size"
            )

    def column(self, name: str) -> pa.Array:
        return _COLUMNS[name](self)

    def int_column(self, field: str, form: str) -> pa.Array:
        return pa.array(self._head[field].astype(form))

    def time_column(self, field: str) -> pa.Array:
        """Return a column of timestamps; null for a time outside of the years 1 to 9999.

        Producers may write any time.
        """
        times = self._head[field].astype(np.int64)
        valid = (times >= _FIRST_MS) & (times <= _LAST_MS)
        return pa.array(np.where(valid, times, 0) * 1000, mask=None if valid.all() else ~valid).cast(TIMESTAMP)

    def broker_column(self) -> pa.Array:
        return _repeated(self._broker_name, len(self))

    def topic_column(self) -> pa.Array:
        """Return the topic of each record.

        Records of one pull have one topic: if all names are equal, one name is repeated.
        """
        sizes = self._topic_size
        if len(self) and sizes[0] and (sizes == sizes[0]).all():
            names = blocks(self._bytes, self._topic_at + 1, f"S{sizes[0]}")
            if (names == names[0]).all():
                return _repeated(self._format.names.unwrap(names[0].decode(errors="replace")), len(self))
        column = strings(self._bytes, self._topic_at + 1, sizes)
        return pa.array(map(self._format.names.unwrap, column.to_pylist())) if self._format.names.name else column

    def body_column(self) -> pa.Array:
        bodies = slices(self._bytes, self._starts + BODY_AT, self._body_size)
        if len(self._compressed):
            values = bodies.to_pylist()
            for row, body in self._decompressed[0].items():
                values[row] = body
            bodies = pa.array(values, pa.binary())
        return self._without_tombstones(bodies)

    def _without_tombstones(self, bodies: pa.Array) -> pa.Array:
        """Return the bodies with null for each tombstone (a message that stands for a null body)."""
        may_be = (self._body_size == 1) & (self._bytes[self._starts + BODY_AT] == TOMBSTONE_BODY[0])
        if not may_be.any():
            return bodies
        marked = pc.fill_null(pc.equal(self.pairs.value_of(TOMBSTONE), "true"), False)
        return pc.if_else(pc.and_(pa.array(may_be), marked), pa.scalar(None, pa.binary()), bodies)

    @cached_property
    def _decompressed(self) -> tuple[dict[int, bytes | None], dict[int, str]]:
        """The decompressed bodies, and the errors of bodies that cannot be decompressed, by row number."""
        bodies: dict[int, bytes | None] = {}
        errors: dict[int, str] = {}
        left = self._format.max_batch_bytes
        for row in map(int, self._compressed):
            start = int(self._starts[row]) + BODY_AT
            stored = self._bytes[start : start + int(self._body_size[row])].tobytes()
            try:
                body: bytes | None = decompress(stored, int(self._head["sys_flag"][row]), self._format.max_body_bytes)
            except UndecodableBody as error:
                if self._format.undecodable == "fail":
                    raise
                body = stored if self._format.undecodable == "raw" else None
                errors[row] = excerpt(error)
            bodies[row] = body
            left -= len(body or b"")
            if left < 0 and len(self) > 1:
                raise BatchTooLarge
        if errors:
            first = min(errors)
            logger.warning("%d bodies cannot be decompressed; the first error: %s", len(errors), errors[first])
        return bodies, errors

    def offset_id_column(self) -> pa.Array:
        """Return the broker's message ids: store address and log offset as 32 upper-case hex characters."""
        ids = np.empty((len(self), 16), np.uint8)
        ids[:, :8] = _bytes_of(self._head["store_address"])
        ids[:, 8:] = _bytes_of(self._head["log_offset"])
        ends = np.arange(len(self) + 1, dtype=np.int32) * 32
        return pa.StringArray.from_buffers(len(self), pa.py_buffer(ends), pa.py_buffer(_HEX[ids]))

    def born_host_column(self) -> pa.Array:
        packed = np.ascontiguousarray(self._head["born_address"]).view(np.int64)
        if len(self) and (packed == packed[0]).all():
            return _repeated(format_address(packed[0].tobytes()), len(self))
        different, which = np.unique(packed, return_inverse=True)
        names = pa.array([format_address(address.tobytes()) for address in different], pa.string())
        return names.take(pa.array(which.ravel()))

    def keys_column(self) -> pa.Array:
        texts_ = self.pairs.value_of(Property.KEYS)
        if not texts_.null_count and not pc.any(pc.match_substring(texts_, " ")).as_py():
            return pa.ListArray.from_arrays(pa.array(np.arange(len(self) + 1, dtype=np.int32)), texts_)
        words = pc.split_pattern(pc.fill_null(texts_, ""), " ")
        rows = pc.list_parent_indices(words).to_numpy()
        keys = pc.list_flatten(words)
        kept = pc.not_equal(keys, "").to_numpy(zero_copy_only=False)
        return pa.ListArray.from_arrays(list_offsets(rows[kept], len(self)), keys.filter(pa.array(kept)))

    def properties_column(self) -> pa.Array:
        hidden = frozenset() if self._format.system_properties else RESERVED_PROPERTIES
        rows, names, values = self.pairs.without(hidden)
        properties = pa.MapArray.from_arrays(list_offsets(rows, len(self)), names, values)
        if not len(self._compressed) or not (errors := self._decompressed[1]):
            return properties
        pairs = properties.to_pylist()
        for row, error in errors.items():
            pairs[row] = [pair for pair in pairs[row] if pair[0] != UNDECODABLE] + [(UNDECODABLE, error)]
        return pa.array(pairs, ARROW_TYPES["properties"])

    @cached_property
    def pairs(self) -> PropertyPairs:
        return PropertyPairs(self._bytes, self._properties_at, self._properties_size)

    @cached_property
    def _body_size(self) -> Ints:
        return self._head["body_size"].astype(np.int64)

    @cached_property
    def _topic_at(self) -> Ints:
        return self._starts + BODY_AT + self._body_size

    @cached_property
    def _topic_size(self) -> Ints:
        return self._bytes[self._topic_at].astype(np.int64)

    @cached_property
    def _properties_at(self) -> Ints:
        return self._topic_at + self._topic_size + 3

    @cached_property
    def _properties_size(self) -> Ints:
        return blocks(self._bytes, self._properties_at - 2, ">i2").astype(np.int64)


_COLUMNS: dict[str, Callable[[RecordColumns], pa.Array]] = {
    "topic": RecordColumns.topic_column,
    "brokerName": RecordColumns.broker_column,
    "queueId": lambda records: records.int_column("queue_id", "i4"),
    "queueOffset": lambda records: records.int_column("queue_offset", "i8"),
    "msgId": RecordColumns.offset_id_column,
    "uniqKey": lambda records: records.pairs.value_of(Property.UNIQUE_KEY),
    "tags": lambda records: records.pairs.value_of(Property.TAGS),
    "keys": RecordColumns.keys_column,
    "body": RecordColumns.body_column,
    "properties": RecordColumns.properties_column,
    "bornTimestamp": lambda records: records.time_column("born_ms"),
    "storeTimestamp": lambda records: records.time_column("store_ms"),
    "bornHost": RecordColumns.born_host_column,
    "reconsumeTimes": lambda records: records.int_column("reconsume_times", "i4"),
    "sysFlag": lambda records: records.int_column("sys_flag", "i4"),
    "flag": lambda records: records.int_column("flag", "i4"),
    "commitLogOffset": lambda records: records.int_column("log_offset", "i8"),
}


def count_records(raw: bytes) -> int:
    """Return the number of records in `raw`. Raises `StoreCorrupt` for bytes that are not whole records."""
    return int(_starts(raw).size)


def check_bodies(raw: bytes) -> None:
    """Compare the body of every record in `raw` with its checksum. Raises `StoreCorrupt` for a difference."""
    for start in _starts(raw):
        decode(raw, int(start), check_crc=True)


def _starts(raw: bytes) -> Ints:
    """Return the byte positions of the records in `raw`. Raises `StoreCorrupt` for bytes that are not whole records.

    After 16 records of one size, further records of this size are searched in bulk.
    """
    runs: list[Ints] = []
    starts: list[int] = []
    position, end = 0, len(raw)
    last_size = alike = 0
    while position + BODY_AT <= end:
        starts.append(position)
        size = unpack_size(raw, position)[0]
        if size <= BODY_AT:
            break
        position += size
        alike = alike + 1 if size == last_size else 1
        last_size = size
        if alike >= _ALIKE:
            run = _run(raw, position, size, 2 * alike)
            runs += [np.array(starts, np.int64), run]
            starts = []
            position += run.size * size
            alike = alike + run.size if run.size else 0
    if position != end:
        raise StoreCorrupt(
            f"pulled bytes are not whole records: by their sizes, records end at byte {position} of {end}"
        )
    return np.concatenate([*runs, np.array(starts, np.int64)])


def _run(raw: bytes, position: int, size: int, limit: int) -> Ints:
    """Return the positions of at most `limit` consecutive records of `size` bytes, from byte `position` on."""
    count = min(limit, (len(raw) - position) // size)
    places = position + size * np.arange(count)
    others = np.flatnonzero(blocks(np.frombuffer(raw, np.uint8), places, ">i4") != size)
    return places[: others[0]] if others.size else places


def _with_ipv4(raw: bytes) -> bytes:
    """Return the records in the layout of IPv4 addresses.

    An IPv6 address is cut to its last four bytes and the port.
    """
    parts = []
    for message in decode_all(raw):
        message.sys_flag &= ~_IPV6
        message.born_address = message.born_address[-IPV4_BYTES:]
        message.store_address = message.store_address[-IPV4_BYTES:]
        parts.append(encode(message))
    return b"".join(parts)


def _bytes_of(values: npt.NDArray[Any]) -> Bytes:
    """Return the bytes of each item, one item per row."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(values.size, values.itemsize)


def _repeated(value: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, pa.string()), count)
