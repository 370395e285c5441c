"""Codec of the stream between two replicas of a set. No sockets.

Both sides send the preamble first. Its first byte makes the first 8 bytes a negative number, which no slave of RocketMQ
4.9 sends and no master of 4.9 accepts. Messages follow:

    preamble    FF 'PYROMQ1'
    message     kind u8 | size u32 | payload of that size
      1 hello          JSON of `Hello`; each side begins with one, and repeats it when its epoch or role changes
      2 request        JSON of `FrameRequest`
      3 frame          epoch u64 | log offset u64 | confirmed end u64 | bytes of the log; none: a heartbeat
      4 report         epoch u64 | written end u64 | flushed end u64
      5 table piece    version u64 | stamp u64 | is last u8 | length of name u8 | name | bytes of JSON
      6 table stored   version u64 | name
      7 refusal        text; the connection is closed behind it

All numbers are big-endian.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from pyromq.broker.replication.set_record import SetSettings
from pyromq.errors import ProtocolError
from pyromq.excerpt import excerpt
from pyromq.store.epoch_file import EpochStart

PREAMBLE = b"\xffPYROMQ1"
VERSION = 1  # version of the stream; a replica reads this version and the previous one
UNDERSTOOD = (1,)
MAX_FRAME_BYTES = 1 << 20  # limit of log bytes in one frame; a larger frame would delay the next heartbeat
MAX_PAYLOAD_BYTES = MAX_FRAME_BYTES + 4096  # limit of a message's bytes, which are kept in memory until it is complete
HEARTBEAT_SECONDS = 0.2

_HEAD = struct.Struct(">BI")
_FRAME = struct.Struct(">QQQ")
_REPORT = struct.Struct(">QQQ")
_PIECE = struct.Struct(">QQBB")
_STORED = struct.Struct(">Q")
_HELLO_KIND, _REQUEST_KIND, _FRAME_KIND, _REPORT_KIND, _PIECE_KIND, _STORED_KIND, _REFUSAL_KIND = range(1, 8)


class RecordMark(NamedTuple):
    """The fields that distinguish two records at the same log offset."""

    offset: int
    crc: int
    store_time_ms: int


class Hello(msgspec.Struct, frozen=True, rename="camel"):
    """A replica's introduction: its set, number, epoch, role and log at the time of sending.

    `epoch` is the highest epoch that the replica has promised. `is_master`: the replica acts as master of that epoch.
    `end` is the log offset after its last complete record. `sync_flush`: the replica's reports count what is flushed.
    `is_leaving`: the replica stops soon and asks the master to remove it from the in-sync list.
    `account` and `signature` are set if the brokers check permissions.
    """

    version: int
    cluster: str
    set_name: str
    number: int
    incarnation: int
    epoch: int
    is_master: bool
    lines: tuple[EpochStart, ...]
    first: int
    end: int
    sync_flush: bool
    settings: SetSettings
    is_leaving: bool = False
    account: str = ""
    signature: str = ""


class FrameRequest(msgspec.Struct, frozen=True, rename="camel"):
    """A follower's request for the log of a master of `epoch` from `start` on; `mark` is its last record, if any."""

    epoch: int
    start: int
    mark: RecordMark | None


class Frame(NamedTuple):
    """Bytes of the master's log from `offset`. Without bytes: a heartbeat, and `offset` is the sender's end."""

    epoch: int
    offset: int
    confirmed: int
    data: bytes


class Report(NamedTuple):
    """The log offsets up to which a follower has written and flushed the log of `epoch`."""

    epoch: int
    written: int
    flushed: int


class TablePiece(NamedTuple):
    """A part of a table's JSON. `stamp` is the master's log end when the table was copied.

    `version` counts the copies of all tables of one master; `is_last` ends the table.
    """

    name: str
    version: int
    stamp: int
    is_last: bool
    data: bytes


class TableStored(NamedTuple):
    """The follower has this version of the table on disk."""

    name: str
    version: int


class Refusal(NamedTuple):
    """Why the sender closes the connection."""

    text: str


Message = Hello | FrameRequest | Frame | Report | TablePiece | TableStored | Refusal


def encode_message(message: Message) -> bytes:
    """Return a message with its head. A frame's bytes are copied; `frame_head` avoids that."""
    match message:
        case Frame():
            return frame_head(message, len(message.data)) + message.data
        case Report():
            return _HEAD.pack(_REPORT_KIND, _REPORT.size) + _REPORT.pack(*message)
        case Hello():
            return _with_head(_HELLO_KIND, msgspec.json.encode(message))
        case FrameRequest():
            return _with_head(_REQUEST_KIND, msgspec.json.encode(message))
        case TablePiece():
            name = message.name.encode()
            head = _PIECE.pack(message.version, message.stamp, message.is_last, len(name))
            return _with_head(_PIECE_KIND, head + name + message.data)
        case TableStored():
            return _with_head(_STORED_KIND, _STORED.pack(message.version) + message.name.encode())
        case Refusal():
            return _with_head(_REFUSAL_KIND, message.text.encode())


def frame_head(frame: Frame, size: int) -> bytes:
    """Return what precedes `size` bytes of the log, so that they can be sent as views of the log."""
    head = _HEAD.pack(_FRAME_KIND, _FRAME.size + size)
    return head + _FRAME.pack(frame.epoch, frame.offset, frame.confirmed)


def check_version(version: int) -> None:
    """Raise `ProtocolError` with both versions if this replica does not read the peer's version of the stream."""
    if version not in UNDERSTOOD:
        mine = " and ".join(map(str, UNDERSTOOD))
        which = "this replica" if version > VERSION else "the other replica"
        text = f"the other replica speaks version {version} of the replication stream, this replica reads {mine}"
        raise ProtocolError(f"{text}: upgrade {which} first")


class StreamDecoder:
    """Splits the bytes of one connection into messages. Raises `ProtocolError` for bytes that do not fit the format."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._has_preamble = False

    def feed(self, data: bytes | bytearray | memoryview) -> list[Message]:
        """Return the messages that these bytes complete, in order. An incomplete message is kept for the next call."""
        buffer = self._buffer
        buffer += data
        if not self._has_preamble and not self._read_preamble():
            return []
        messages: list[Message] = []
        at = 0
        while len(buffer) - at >= _HEAD.size:
            kind, size = _HEAD.unpack_from(buffer, at)
            if size > MAX_PAYLOAD_BYTES:
                raise ProtocolError(f"a message of {size} bytes in the replication stream; {MAX_PAYLOAD_BYTES} at most")
            end = at + _HEAD.size + size
            if end > len(buffer):
                break
            messages.append(_decode(kind, bytes(memoryview(buffer)[at + _HEAD.size : end])))
            at = end
        del buffer[:at]
        return messages

    def _read_preamble(self) -> bool:
        begin = bytes(self._buffer[: len(PREAMBLE)])
        if not PREAMBLE.startswith(begin):
            text = f"the peer begins with {begin.hex(' ')}, not with {PREAMBLE.hex(' ')} of the replication stream"
            raise ProtocolError(f"{text}: a slave of RocketMQ 4.9, or another version of pyromq")
        if len(begin) < len(PREAMBLE):
            return False
        del self._buffer[: len(PREAMBLE)]
        self._has_preamble = True
        return True


def _with_head(kind: int, payload: bytes) -> bytes:
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"a message of {len(payload)} bytes does not fit; {MAX_PAYLOAD_BYTES} at most")
    return _HEAD.pack(kind, len(payload)) + payload


def _decode(kind: int, payload: bytes) -> Message:
    try:
        return _decoded(kind, payload)
    except (struct.error, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"a message of kind {kind} in the replication stream: {excerpt(error)}") from error


def _decoded(kind: int, payload: bytes) -> Message:
    if kind == _FRAME_KIND:
        epoch, offset, confirmed = _FRAME.unpack_from(payload)
        return Frame(epoch, offset, confirmed, payload[_FRAME.size :])
    if kind == _REPORT_KIND:
        return Report(*_REPORT.unpack(payload))
    if kind == _HELLO_KIND:
        check_version(msgspec.json.decode(payload, type=_HelloVersion).version)
        return msgspec.json.decode(payload, type=Hello)
    if kind == _REQUEST_KIND:
        return msgspec.json.decode(payload, type=FrameRequest)
    if kind == _PIECE_KIND:
        version, stamp, is_last, length = _PIECE.unpack_from(payload)
        end = _PIECE.size + length
        if end > len(payload):
            raise ProtocolError(f"a table piece ends inside its name of {length} bytes")
        return TablePiece(payload[_PIECE.size : end].decode(), version, stamp, bool(is_last), payload[end:])
    if kind == _STORED_KIND:
        (version,) = _STORED.unpack_from(payload)
        return TableStored(payload[_STORED.size :].decode(), version)
    if kind == _REFUSAL_KIND:
        return Refusal(payload.decode())
    raise ProtocolError(f"a message of kind {kind} in the replication stream; kinds are 1 to {_REFUSAL_KIND}")


class _HelloVersion(msgspec.Struct):
    """The fields of a hello that all versions of the stream have."""

    version: int
