"""Stored records, as pulls deliver them, into Arrow columns: in bulk, never through message objects.

Knows no Spark and no client. Fixed fields are gathered with numpy, bodies and property texts become views of the
pulled bytes, properties are split by Arrow's own functions. Records with IPv6 addresses, whose fields lie elsewhere,
are rewritten first.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyromq.errors import StoreCorrupt
from pyromq.message import RESERVED_PROPERTIES, Property, SysFlag, decompress, format_address
from pyromq.record import decode, decode_all, encode

TIMESTAMP = pa.timestamp("us", tz="UTC")
ARROW_TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "brokerName": pa.string(),
    "queueId": pa.int32(),
    "queueOffset": pa.int64(),
    "msgId": pa.string(),
    "uniqKey": pa.string(),
    "tags": pa.string(),
    "keys": pa.list_(pa.string()),
    "body": pa.binary(),
    "properties": pa.map_(pa.string(), pa.string()),
    "bornTimestamp": TIMESTAMP,
    "storeTimestamp": TIMESTAMP,
    "bornHost": pa.string(),
    "reconsumeTimes": pa.int32(),
    "sysFlag": pa.int32(),
    "flag": pa.int32(),
    "commitLogOffset": pa.int64(),
}

# Where a record with IPv4 addresses holds its fixed fields; see pyromq.record.
_QUEUE_ID, _FLAG, _QUEUE_OFFSET, _LOG_OFFSET, _SYS_FLAG = 12, 16, 20, 28, 36
_BORN_MS, _BORN_ADDRESS, _STORE_MS, _STORE_ADDRESS, _RECONSUME, _BODY_SIZE, _BODY = 40, 48, 56, 64, 72, 84, 88
_IPV6 = SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6
_SYSTEM = pa.array(sorted(RESERVED_PROPERTIES))
_SIZE = struct.Struct(">i")
_HEX = np.frombuffer("".join(f"{value:02X}" for value in range(256)).encode(), dtype="u2")

Ints = npt.NDArray[np.int64]


def to_batch(
    raw: bytes, broker_name: str, columns: Sequence[str], *, system_properties: bool = False, tags: frozenset[str]
) -> pa.RecordBatch:
    """Return the records of `raw` (back to back) with these columns, in order; with `tags`, only those that carry one.

    Raises `StoreCorrupt` for bytes that are no records, `IllegalMessage` for a body that cannot be decompressed.
    """
    records = Records(raw, broker_name, system_properties)
    arrays = [records.column(name) for name in columns]
    batch = pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(columns))
    if tags:  # the broker compared hashes only
        batch = batch.filter(pc.is_in(records.property_of(Property.TAGS), pa.array(sorted(tags))))
    return batch


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, ARROW_TYPES[name]) for name in columns])


class Records:
    """The records of some pulled bytes; each column is computed when asked for."""

    def __init__(self, raw: bytes, broker_name: str, system_properties: bool = False) -> None:
        starts = _starts(raw)
        bytes_ = np.frombuffer(raw, dtype=np.uint8)
        if starts.size and (_gather(bytes_, starts + _SYS_FLAG, ">i4") & _IPV6).any():
            raw = _with_ipv4(raw)
            starts = _starts(raw)
            bytes_ = np.frombuffer(raw, dtype=np.uint8)
        self._raw = raw
        self._bytes = bytes_
        self._starts = starts
        self._broker_name = broker_name
        self._system_properties = system_properties

    def __len__(self) -> int:
        return int(self._starts.size)

    def column(self, name: str) -> pa.Array:
        return _COLUMNS[name](self)

    def int_column(self, position: int, form: str, kind: pa.DataType) -> pa.Array:
        return pa.array(_gather(self._bytes, self._starts + position, form), type=kind)

    def time_column(self, position: int) -> pa.Array:
        return pa.array(_gather(self._bytes, self._starts + position, ">i8") * 1000, type=pa.int64()).cast(TIMESTAMP)

    def broker_column(self) -> pa.Array:
        return _repeated(self._broker_name, len(self))

    def topic_column(self) -> pa.Array:
        """Records of one pull have one topic: where all bytes are equal, one text is repeated."""
        sizes = self._topic_size
        if len(self) and (sizes == sizes[0]).all():
            names = _block(self._bytes, self._topic_at + 1, int(sizes[0]))
            if (names == names[0]).all():
                return _repeated(names[0].tobytes().decode(), len(self))
        return _texts(self._bytes, self._topic_at + 1, sizes)

    def body_column(self) -> pa.Array:
        bodies = _slices(self._bytes, self._starts + _BODY, self._body_size)
        flags = _gather(self._bytes, self._starts + _SYS_FLAG, ">i4")
        compressed = np.flatnonzero(flags & SysFlag.COMPRESSED)
        if not compressed.size:
            return bodies
        values = bodies.to_pylist()
        for row in compressed:
            values[row] = decompress(values[row], int(flags[row]))
        return pa.array(values, pa.binary())

    def offset_id_column(self) -> pa.Array:
        """Store address and log offset as upper-case hex: 32 characters each."""
        address = _block(self._bytes, self._starts + _STORE_ADDRESS, 8)
        offset = _block(self._bytes, self._starts + _LOG_OFFSET, 8)
        digits = _HEX[np.concatenate([address, offset], axis=1)]
        ends = np.arange(len(self) + 1, dtype=np.int32) * 32
        return pa.StringArray.from_buffers(len(self), pa.py_buffer(ends), pa.py_buffer(digits.tobytes()))

    def born_host_column(self) -> pa.Array:
        packed = _block(self._bytes, self._starts + _BORN_ADDRESS, 8).copy().view("V8").ravel()
        different, which = np.unique(packed, return_inverse=True)
        names = pa.array([format_address(address.tobytes()) for address in different], pa.string())
        return names.take(pa.array(which.ravel()))

    def property_of(self, name: str) -> pa.Array:
        """Return one property of each record; null where it has none."""
        rows = np.full(len(self), -1, np.int64)
        found = np.flatnonzero(pc.equal(self._pairs.names, name).to_numpy(zero_copy_only=False))
        rows[self._pairs.rows[found]] = found
        return self._pairs.values.take(pa.array(rows, mask=rows < 0))

    def keys_column(self) -> pa.Array:
        words = pc.split_pattern(pc.fill_null(self.property_of(Property.KEYS), ""), " ")
        rows = pc.list_parent_indices(words).to_numpy()
        keys = pc.list_flatten(words)
        kept = pc.not_equal(keys, "").to_numpy(zero_copy_only=False)
        return pa.ListArray.from_arrays(_offsets(rows[kept], len(self)), keys.filter(pa.array(kept)))

    def properties_column(self) -> pa.Array:
        pairs = self._pairs
        if not self._system_properties:
            pairs = pairs.where(~pc.is_in(pairs.names, _SYSTEM).to_numpy(zero_copy_only=False))
        return pa.MapArray.from_arrays(_offsets(pairs.rows, len(self)), pairs.names, pairs.values)

    @cached_property
    def _body_size(self) -> Ints:
        return _gather(self._bytes, self._starts + _BODY_SIZE, ">i4").astype(np.int64)

    @cached_property
    def _topic_at(self) -> Ints:
        return self._starts + _BODY + self._body_size

    @cached_property
    def _topic_size(self) -> Ints:
        return self._bytes[self._topic_at].astype(np.int64)

    @cached_property
    def _pairs(self) -> _Pairs:
        size_at = self._topic_at + 1 + self._topic_size
        sizes = _gather(self._bytes, size_at, ">i2").astype(np.int64)
        return _split_pairs(_texts(self._bytes, size_at + 2, sizes))


class _Pairs:
    """All properties of all records, flat: the record's row, name and value of each."""

    def __init__(self, rows: Ints, names: pa.Array, values: pa.Array) -> None:
        self.rows = rows
        self.names = names
        self.values = values

    def where(self, kept: npt.NDArray[np.bool_]) -> _Pairs:
        mask = pa.array(kept)
        return _Pairs(self.rows[kept], self.names.filter(mask), self.values.filter(mask))


def _split_pairs(texts: pa.Array) -> _Pairs:
    """Split `name 01 value 02 name 01 value`; broken pairs are dropped, of equal names the last one stays."""
    lists = pc.split_pattern(texts, "\x02")
    pairs = pc.list_flatten(lists)
    middle = pc.find_substring(pairs, "\x01")
    whole = pc.and_(pc.greater(middle, 0), pc.greater(pc.binary_length(pairs), pc.add(middle, 1)))
    rows = pc.list_parent_indices(lists).to_numpy()[whole.to_numpy(zero_copy_only=False)]
    parts = pc.list_flatten(pc.split_pattern(pairs.filter(whole), "\x01", max_splits=1))
    count = len(parts) // 2
    found = _Pairs(
        rows,
        parts.take(pa.array(np.arange(count) * 2)),
        parts.take(pa.array(np.arange(count) * 2 + 1)),
    )
    codes = found.names.dictionary_encode().indices.to_numpy().astype(np.int64)
    identity = rows * (codes.max(initial=0) + 1) + codes
    different, last = np.unique(identity[::-1], return_index=True)
    if different.size == count:
        return found
    kept = np.zeros(count, np.bool_)
    kept[count - 1 - last] = True
    return found.where(kept)


_COLUMNS: dict[str, Callable[[Records], pa.Array]] = {
    "topic": Records.topic_column,
    "brokerName": Records.broker_column,
    "queueId": lambda records: records.int_column(_QUEUE_ID, ">i4", pa.int32()),
    "queueOffset": lambda records: records.int_column(_QUEUE_OFFSET, ">i8", pa.int64()),
    "msgId": Records.offset_id_column,
    "uniqKey": lambda records: records.property_of(Property.UNIQUE_KEY),
    "tags": lambda records: records.property_of(Property.TAGS),
    "keys": Records.keys_column,
    "body": Records.body_column,
    "properties": Records.properties_column,
    "bornTimestamp": lambda records: records.time_column(_BORN_MS),
    "storeTimestamp": lambda records: records.time_column(_STORE_MS),
    "bornHost": Records.born_host_column,
    "reconsumeTimes": lambda records: records.int_column(_RECONSUME, ">i4", pa.int32()),
    "sysFlag": lambda records: records.int_column(_SYS_FLAG, ">i4", pa.int32()),
    "flag": lambda records: records.int_column(_FLAG, ">i4", pa.int32()),
    "commitLogOffset": lambda records: records.int_column(_LOG_OFFSET, ">i8", pa.int64()),
}


def count_records(raw: bytes) -> int:
    """Return how many records lie back to back in `raw`. Raises `StoreCorrupt`."""
    return int(_starts(raw).size)


def check_bodies(raw: bytes) -> None:
    """Compare every body with its checksum. Raises `StoreCorrupt`."""
    for start in _starts(raw):
        decode(raw, int(start), check_crc=True)


def _starts(raw: bytes) -> Ints:
    starts = []
    position, end = 0, len(raw)
    while position + _BODY <= end:
        starts.append(position)
        size = _SIZE.unpack_from(raw, position)[0]
        if size <= _BODY:
            break
        position += size
    if position != end:
        raise StoreCorrupt(
            f"record at byte {starts[-1] if starts else 0} of {end} pulled bytes does not end where it says"
        )
    return np.array(starts, np.int64)


def _with_ipv4(raw: bytes) -> bytes:
    """Rewrite records so that fields lie where IPv4 addresses leave them; an IPv6 address becomes its last part."""
    parts = []
    for message in decode_all(raw):
        message.sys_flag &= ~_IPV6
        message.born_address = message.born_address[-8:]
        message.store_address = message.store_address[-8:]
        parts.append(encode(message))
    return b"".join(parts)


def _block(data: npt.NDArray[np.uint8], at: Ints, width: int) -> npt.NDArray[np.uint8]:
    block: npt.NDArray[np.uint8] = data[at[:, None] + np.arange(width)]
    return block


def _gather(data: npt.NDArray[np.uint8], at: Ints, form: str) -> npt.NDArray[np.int64]:
    """Read one big-endian integer of each record."""
    width = np.dtype(form).itemsize
    return np.ascontiguousarray(_block(data, at, width)).view(form).ravel().astype(np.int64)


def _slices(data: npt.NDArray[np.uint8], at: Ints, sizes: Ints) -> pa.Array:
    """Return stretches of the bytes as a binary array, through Arrow's view layout: nothing is touched row by row.

    view (16 bytes)  size 4 | up to 12 bytes inline, or: first 4 bytes, buffer number 4, offset 4
    """
    count = at.size
    views = np.zeros((count, 16), np.uint8)
    views[:, :4] = sizes.astype("<i4").view(np.uint8).reshape(count, 4)
    short = sizes <= 12
    if short.any():
        places = np.minimum(at[short, None] + np.arange(12), data.size - 1)
        views[short, 4:] = np.where(np.arange(12) < sizes[short, None], data[places], 0)
    long = ~short
    if long.any():
        views[long, 4:8] = _block(data, at[long], 4)
        views[long, 12:] = at[long].astype("<i4").view(np.uint8).reshape(-1, 4)
    array = pa.Array.from_buffers(pa.binary_view(), count, [None, pa.py_buffer(views.tobytes()), pa.py_buffer(data)])
    return array.cast(pa.binary())


def _texts(data: npt.NDArray[np.uint8], at: Ints, sizes: Ints) -> pa.Array:
    return _slices(data, at, sizes).cast(pa.string())


def _repeated(text: str, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(text, pa.string()), count)


def _offsets(rows: Ints, count: int) -> pa.Array:
    """Return list offsets from the row of each item; rows are in order."""
    ends = np.zeros(count + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=count), out=ends[1:])
    return pa.array(ends)
