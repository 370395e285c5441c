"""Encodes and decodes messages as records of the commit log and of pull responses, and the messages of a batch.

    record          at   bytes   type   meaning
    total size       0   4       int    of the whole record, this field included
    magic            4   4       uint   0xDAA320A7
    body CRC         8   4       uint   CRC-32 of the stored body, top bit cleared
    queue id        12   4       int
    flag            16   4       int    the application's
    queue offset    20   8       long   index in the queue
    log offset      28   8       long   of this record's first byte
    sysFlag         36   4       int    see message.SysFlag
    born time       40   8       long   ms, the producer's clock
    born address    48   8/20    bytes  IP 4 (16 with BORN_HOST_IPV6), port 4; with 16, later fields are 12 later
    store time      56   8       long   ms, the broker's clock
    store address   64   8/20    bytes  IP 4 (16 with STORE_HOST_IPV6), port 4; as for the born address
    reconsume times 72   4       int
    prepared offset 76   8       long   of the half message, else 0
    body            84   4 + n          length int, bytes
    topic                1 + n          length signed byte (at most 127), UTF-8
    properties           2 + n          length signed short (at most 32767), text form of `message`

    batch member    bytes   type   meaning
    total size      4       int    of the member, this field included
    magic, CRC      4 + 4          0, not checked
    flag            4       int
    body            4 + n
    properties      2 + n

All integers are big-endian. Only this module knows the positions of the fields.
Source: RocketMQ 4.9.8, CommitLog.MessageExtEncoder and MessageDecoder.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from pyromq import speedups
from pyromq.errors import MessageRefused, StoreCorrupt
from pyromq.message import StoredMessage, SysFlag

if speedups.is_active:
    from pyromq.speedups.decoding import RecordDecoder
    from pyromq.speedups.records import crc32  # four times as fast as `zlib.crc32` for large bodies
else:
    from zlib import crc32  # type: ignore[assignment]  # asked with one argument

MAGIC = 0xDAA320A7
BLANK_MAGIC = 0xCBD43194  # magic of the blank record that fills the rest of a segment
BLANK_SIZE = 8  # least size of the blank record at the end of every segment (bytes)
FIXED_SIZE = 91  # bytes of a record with IPv4 addresses, without the content of body, topic and properties
MAX_PROPERTIES_SIZE = 32767
MAX_TOPIC_SIZE = 127

MAGIC_AT = 4
MAGIC_BYTES = MAGIC.to_bytes(4, "big")
BLANK_MAGIC_BYTES = BLANK_MAGIC.to_bytes(4, "big")
IPV4_BYTES = 8  # bytes of an IPv4 address and its port
IPV6_MORE = 12

Buffer = bytes | bytearray | memoryview

_NAMES = (
    *("size", "magic", "body_crc", "queue_id", "flag", "queue_offset", "log_offset", "sys_flag", "born_ms"),
    *("born_address", "store_ms", "store_address", "reconsume_times", "prepared_offset", "body_size"),
)
_SIZES = (4, 4, 4, 4, 4, 8, 8, 4, 8, 8, 8, 8, 4, 8, 4)
# Position of each field in a record with IPv4 addresses.
FIELD_AT = dict(zip(_NAMES, accumulate(_SIZES[:-1], initial=0), strict=True))
BODY_AT = sum(_SIZES)
_QUEUE_ID_AT = FIELD_AT["queue_id"]
_QUEUE_OFFSET_AT = FIELD_AT["queue_offset"]
_LOG_OFFSET_AT = FIELD_AT["log_offset"]
_SYS_FLAG_AT = FIELD_AT["sys_flag"]
_STORE_MS_AT = FIELD_AT["store_ms"]

_HEADS = {
    flags: struct.Struct(
        f">iIIiiqqiq{20 if flags & SysFlag.BORN_HOST_IPV6 else 8}sq{20 if flags & SysFlag.STORE_HOST_IPV6 else 8}siqi"
    )
    for flags in (0, SysFlag.BORN_HOST_IPV6, SysFlag.STORE_HOST_IPV6, SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6)
}
_HOST_FLAGS = SysFlag.BORN_HOST_IPV6 | SysFlag.STORE_HOST_IPV6
_SHORT = struct.Struct(">h")
_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_SIZE_AND_MAGIC = struct.Struct(">iI")
_PLACE = struct.Struct(">i4xq")  # queue id and queue offset, with the application's flag between
MEMBER_HEAD = struct.Struct(">iiiii")
MEMBER_BYTES = MEMBER_HEAD.size + _SHORT.size  # bytes of a message in a batch, without its body and properties

# Methods bound once, for speed: each sent message is packed and unpacked, nearly always with IPv4 addresses.
_pack_ipv4_head = _HEADS[0].pack
_IPV4_HEAD_SIZE = _HEADS[0].size
_pack_short = _SHORT.pack
_crc32 = crc32
_unpack_int = _INT.unpack_from
_unpack_short = _SHORT.unpack_from
_UNPACK_HEAD = {flags: (head.unpack_from, head.size) for flags, head in _HEADS.items()}
_HEAD_SIZES = {flags: head.size for flags, head in _HEADS.items()}

_decoder = RecordDecoder(StoredMessage) if speedups.is_active else None

# Functions that return the first fields of the record at a position, as a tuple; for walks from record to record.
unpack_size = _INT.unpack_from
unpack_size_and_magic = _SIZE_AND_MAGIC.unpack_from


class BatchMember(NamedTuple):
    """One message of a batch: flag, body and property text. All other fields are in the batch's header."""

    flag: int
    body: bytes
    property_text: str


class RecordHead(NamedTuple):
    """The fields of a record that an index needs."""

    size: int
    log_offset: int
    sys_flag: int
    store_ms: int
    topic: str
    property_text: str


@lru_cache(maxsize=1024)  # topics in use; names of deleted topics stay until others take their place
def _topic_field(topic: str) -> bytes:
    encoded = topic.encode()
    if len(encoded) > MAX_TOPIC_SIZE:
        raise MessageRefused(f"topic {topic!r} takes {len(encoded)} bytes, the limit is {MAX_TOPIC_SIZE}")
    return bytes((len(encoded),)) + encoded


def encode(message: StoredMessage) -> bytes:
    """Return the record of a message, and set its `size`. The message's offsets, store time and addresses must be set.

    Both address flags of `sys_flag` must agree with the addresses. Called once for every stored message.
    """
    body = message.stored_body
    topic = _topic_field(message.topic)
    properties = message.property_text.encode()
    flags = message.sys_flag
    if flags & _HOST_FLAGS:
        head = _HEADS[flags & _HOST_FLAGS]
        pack, size = head.pack, head.size
    else:
        pack, size = _pack_ipv4_head, _IPV4_HEAD_SIZE
    size += len(body) + len(topic) + 2 + len(properties)
    message.size = size
    return b"".join(
        (
            pack(
                size,
                MAGIC,
                _crc32(body) & 0x7FFFFFFF,
                message.queue_id,
                message.flag,
                message.queue_offset,
                message.log_offset,
                flags,
                message.born_ms,
                message.born_address,
                message.store_ms,
                message.store_address,
                message.reconsume_times,
                message.prepared_offset,
                len(body),
            ),
            body,
            topic,
            _pack_short(len(properties)),
            properties,
        )
    )


def mark_addresses(message: StoredMessage) -> None:
    """Set the flags in `sys_flag` that say whether the message's addresses are IPv6."""
    message.sys_flag &= ~_HOST_FLAGS
    if len(message.born_address) != IPV4_BYTES:
        message.sys_flag |= SysFlag.BORN_HOST_IPV6
    if len(message.store_address) != IPV4_BYTES:
        message.sys_flag |= SysFlag.STORE_HOST_IPV6


def decode(buffer: Buffer, position: int = 0, *, check_crc: bool = False) -> StoredMessage:
    """Return the record that starts at `position`. Raises `StoreCorrupt` naming the fault.

    The record is copied out of the buffer. With `check_crc` the body is compared with its checksum.
    """
    if _decoder is not None and (message := _decoder.decode(buffer, position, check_crc)) is not None:
        return message
    return decode_plainly(buffer, position, check_crc=check_crc)


def decode_plainly(buffer: Buffer, position: int = 0, *, check_crc: bool = False) -> StoredMessage:
    """Decode as `decode` does, in plain Python.

    Used without compiled parts, and for records that the compiled parts do not decode.
    """
    try:
        unpack_head, body_at = _UNPACK_HEAD[_unpack_int(buffer, position + _SYS_FLAG_AT)[0] & _HOST_FLAGS]
        (
            size,
            magic,
            crc,
            queue_id,
            flag,
            queue_offset,
            log_offset,
            sys_flag,
            born_ms,
            born_address,
            store_ms,
            store_address,
            reconsume_times,
            prepared_offset,
            body_size,
        ) = unpack_head(buffer, position)
        if magic != MAGIC:
            raise StoreCorrupt(f"no record at byte {position}: magic is {magic:#x}")
        topic_at = body_at + body_size
        properties_at = topic_at + 1 + buffer[position + topic_at]
        end = properties_at + 2 + _unpack_short(buffer, position + properties_at)[0]
        if end != size:
            raise StoreCorrupt(f"record at byte {position} says {size} bytes, its fields say {end}")
        record = bytes(buffer[position : position + size])
        body = record[body_at:topic_at]
        topic = record[topic_at + 1 : properties_at].decode()
        properties = record[properties_at + 2 :].decode()
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _broken(position, error) from error
    if check_crc and _crc32(body) & 0x7FFFFFFF != crc:
        raise StoreCorrupt(f"record at byte {position}: body does not match its checksum")
    return StoredMessage(  # arguments by position: keyword arguments take a third longer
        topic,
        body,
        properties,
        queue_id,
        flag,
        sys_flag,
        born_ms,
        born_address,
        reconsume_times,
        prepared_offset,
        queue_offset,
        log_offset,
        size,
        store_ms,
        store_address,
        "",
        crc,
    )


def decode_labels(buffer: Buffer, position: int) -> RecordHead:
    """Return a record's head, topic and property text, for an index.

    Raises `StoreCorrupt` if lengths do not fit.
    """
    try:
        flags = _unpack_int(buffer, position + _SYS_FLAG_AT)[0]
        head = _HEADS[flags & _HOST_FLAGS]
        fields = head.unpack_from(buffer, position)
        topic_at = position + head.size + fields[14]
        properties_at = topic_at + 1 + buffer[topic_at]
        return RecordHead(
            fields[0],
            fields[6],
            flags,
            fields[10],
            str(buffer[topic_at + 1 : properties_at], "utf-8"),
            str(buffer[properties_at + 2 : position + fields[0]], "utf-8"),
        )
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise _broken(position, error) from error


def blank(size: int) -> bytes:
    """Return the beginning of a blank record that fills the last `size` bytes of a segment."""
    return _SIZE_AND_MAGIC.pack(size, BLANK_MAGIC)


def place_of(record: Buffer) -> tuple[int, int]:
    """Return the queue id and the queue offset in a record."""
    queue_id, queue_offset = _PLACE.unpack_from(record, _QUEUE_ID_AT)
    return queue_id, queue_offset


def queue_offset_of(buffer: Buffer, position: int = 0) -> int:
    """Return the queue offset in the record at `position`."""
    return int(_LONG.unpack_from(buffer, position + _QUEUE_OFFSET_AT)[0])


def log_offset_of(buffer: Buffer, position: int = 0) -> int:
    """Return the log offset in the record at `position`."""
    return int(_LONG.unpack_from(buffer, position + _LOG_OFFSET_AT)[0])


def said_log_offset(buffer: Buffer, position: int) -> int:
    """Return the log offset in a possible record at `position`; -1 if the buffer ends before that field."""
    return -1 if position + _SYS_FLAG_AT > len(buffer) else log_offset_of(buffer, position)


def sys_flag_of(record: Buffer) -> int:
    """Return the flags of a record; see `SysFlag`."""
    return int(_unpack_int(record, _SYS_FLAG_AT)[0])


def store_ms_of(record: Buffer) -> int:
    """Return the store time of a record in ms since 1970."""
    shift = IPV6_MORE if sys_flag_of(record) & SysFlag.BORN_HOST_IPV6 else 0
    return int(_LONG.unpack_from(record, _STORE_MS_AT + shift)[0])


def prepared_offset_of(record: Buffer) -> int:
    """Return the log offset of the half message that a record refers to."""
    head_size = _HEAD_SIZES[sys_flag_of(record) & _HOST_FLAGS]
    return int(_LONG.unpack_from(record, head_size - _INT.size - _LONG.size)[0])


def texts_at(buffer: Buffer, position: int = 0) -> tuple[int, int]:
    """Return the positions of topic and properties in the record at `position`.

    The topic ends 2 bytes before the properties. Raises `StoreCorrupt` if lengths do not fit.
    """
    try:
        body_at = position + _HEAD_SIZES[_unpack_int(buffer, position + _SYS_FLAG_AT)[0] & _HOST_FLAGS]
        topic_at = body_at + 1 + _unpack_int(buffer, body_at - 4)[0]
        return topic_at, topic_at + buffer[topic_at - 1] + 2
    except (struct.error, IndexError) as error:
        raise _broken(position, error) from error


def _broken(position: int, error: Exception) -> StoreCorrupt:
    if isinstance(error, UnicodeDecodeError):
        return StoreCorrupt(f"record at byte {position} is broken: its topic or its properties are not UTF-8")
    return StoreCorrupt(f"record at byte {position} is broken: its lengths go beyond the end of the bytes")


def properties_of(record: memoryview) -> memoryview:
    """Return the stored properties of the record at the beginning of a view, which may be longer."""
    at = texts_at(record)[1]
    return record[at : at + (record[at - 2] << 8 | record[at - 1])]


def is_of_topic(record: Buffer, topic: bytes) -> bool:
    """Return whether a valid record has this topic. Costs a third of `decode_labels`."""
    head_size = _HEAD_SIZES[record[_SYS_FLAG_AT + 3] & _HOST_FLAGS]
    topic_at = head_size + 1 + _unpack_int(record, head_size - 4)[0]
    return record[topic_at - 1] == len(topic) and record[topic_at : topic_at + len(topic)] == topic


def decode_all(buffer: Buffer, *, check_crc: bool = False, broker_name: str = "") -> list[StoredMessage]:
    """Return the consecutive records in `buffer`, for example of a pull response.

    `broker_name` is the broker that responded.
    """
    if _decoder is not None and (found := _decoder.decode_all(buffer, check_crc, broker_name)) is not None:
        return found
    messages = []
    position, end = 0, len(buffer)
    while position < end:
        message = decode_plainly(buffer, position, check_crc=check_crc)
        message.broker_name = broker_name
        messages.append(message)
        position += message.size
    return messages


def encode_batch(members: list[BatchMember]) -> bytes:
    """Return the body of a SEND_BATCH_MESSAGE request with these messages."""
    parts: list[bytes] = []
    for flag, body, property_text in members:
        properties = property_text.encode()
        size = MEMBER_HEAD.size + len(body) + 2 + len(properties)
        parts += (MEMBER_HEAD.pack(size, 0, 0, flag, len(body)), body, _pack_short(len(properties)), properties)
    return b"".join(parts)


def decode_batch(body: Buffer) -> Iterator[BatchMember]:
    """Yield the messages of an encoded batch. Raises `MessageRefused` for a length that exceeds the body."""
    for flag, start, end, text in _members(body):
        yield BatchMember(flag, bytes(body[start:end]), text)


def batch_labels(body: Buffer) -> Iterator[tuple[int, str]]:
    """Yield body size and property text of each message of an encoded batch, for checks.

    Raises `MessageRefused` as `decode_batch` does.
    """
    for _, start, end, text in _members(body):
        yield end - start, text


def _members(body: Buffer) -> Iterator[tuple[int, int, int, str]]:
    """Yield the flag, begin and end of the body, and property text of each message of an encoded batch."""
    position, end = 0, len(body)
    unpack_head, unpack_short, head_size = MEMBER_HEAD.unpack_from, _SHORT.unpack_from, MEMBER_HEAD.size
    while position < end:
        try:
            size, _, _, flag, body_size = unpack_head(body, position)
            properties_at = position + head_size + body_size
            properties_end = properties_at + 2 + unpack_short(body, properties_at)[0]
        except struct.error as error:
            raise MessageRefused(f"batch is cut short at byte {position} of {end}") from error
        if body_size < 0 or properties_end != position + size or properties_end > end:
            raise MessageRefused(f"batch member at byte {position} of {end}: its lengths do not fit")
        try:
            text = str(body[properties_at + 2 : properties_end], "utf-8")
        except UnicodeDecodeError as error:
            raise MessageRefused(f"batch member at byte {position}: properties are not UTF-8") from error
        yield flag, position + head_size, properties_at, text
        position = properties_end
