"""Frames of HTTP/2 (RFC 9113) as bytes, and the header blocks that a gRPC server sends. No connection here.

    length 3 | type 1 | flags 1 | stream 4 | payload

Header blocks are literals without indexing, so sending needs no table of header fields.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from urllib.parse import quote

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME = struct.Struct(">HBBBI")  # length (two fields), type, flags, stream
FRAME_SIZE = FRAME.size
MAX_FRAME = 1 << 14  # limit of a payload that we receive, and send to peers that allow no more
# Bytes of a message that a peer may send at once; a larger message first gets its share of the server's memory.
STREAM_WINDOW = 64 << 10
MAX_MESSAGE_BYTES = 16 << 20  # limit of one message; a body of 4 MiB has room, and a batch of small ones
MAX_WINDOW = (1 << 31) - 1
DEFAULT_WINDOW = 65_535  # of connections and streams, until a peer says otherwise

END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY_FLAG = 0x1, 0x1, 0x4, 0x8, 0x20


class Frame(IntEnum):
    """Types of frames."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class SettingId(IntEnum):
    """Settings of a peer that the server uses."""

    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class Http2Code(IntEnum):
    """Why a stream or a connection ends."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, code: Http2Code, text: str) -> None:
        super().__init__(text)
        self.code = code


class GrpcCode(IntEnum):
    """Statuses of gRPC. RocketMQ's refusals have `OK` and a status in the answer."""

    OK = 0
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return frame_header(len(payload), kind, flags, stream) + payload


def frame_header(size: int, kind: int, flags: int, stream: int) -> bytes:
    return FRAME.pack(size >> 8, size & 0xFF, kind, flags, stream)


def settings(values: dict[SettingId, int]) -> bytes:
    return frame(Frame.SETTINGS, 0, 0, b"".join(struct.pack(">HI", name, value) for name, value in values.items()))


def window_update(stream: int, size: int) -> bytes:
    return frame(Frame.WINDOW_UPDATE, 0, stream, size.to_bytes(4, "big"))


def reset(stream: int, code: Http2Code) -> bytes:
    return frame(Frame.RST_STREAM, 0, stream, code.to_bytes(4, "big"))


def goaway(last_stream: int, code: Http2Code, text: str = "") -> bytes:
    return frame(Frame.GOAWAY, 0, 0, struct.pack(">II", last_stream, code) + text.encode())


def _literal(name: str, value: str) -> bytes:
    """Return a literal header field without indexing; name and value have less than 127 bytes, or the value 16 KiB."""
    data = value.encode("ascii")
    size = bytes([len(data)]) if len(data) < 127 else bytes([127]) + _varint(len(data) - 127)
    return b"\x00" + bytes([len(name)]) + name.encode() + size + data


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


_STATUS_200 = b"\x88"  # index 8 of the static table
RESPONSE_BLOCK = _STATUS_200 + _literal("content-type", "application/grpc")
OK_BLOCK = _literal("grpc-status", "0")
MAX_STATUS_TEXT = 1024  # limit of a status text, whose percent-encoding is up to three times as long


def trailers_block(code: GrpcCode, text: str) -> bytes:
    """Return the header block that ends a stream; the text is percent-encoded."""
    if code is GrpcCode.OK:
        return OK_BLOCK
    message = quote(text[:MAX_STATUS_TEXT], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~")
    return _literal("grpc-status", str(int(code))) + _literal("grpc-message", message)


def refusal_block(http_status: int, text: str) -> bytes:
    """Return the header block of a response to a request that is not gRPC."""
    return _literal(":status", str(http_status)) + _literal("content-type", "text/plain") + _literal("x-reason", text)


_HTTP1_METHODS = (b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"DELETE", b"CONNECT", b"PRI")


def other_protocol_answer(data: bytes, text: str) -> bytes:
    """Return the answer to a peer whose first bytes are not those of HTTP/2: in HTTP/1 if it speaks that."""
    if data[:8].partition(b" ")[0] not in _HTTP1_METHODS:
        return goaway(0, Http2Code.PROTOCOL_ERROR, text)
    head = f"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Length: {len(text) + 1}\r\n"
    return f"{head}Content-Type: text/plain\r\nConnection: close\r\n\r\n{text}\n".encode()


def broken(text: str) -> Http2Error:
    """Return the error for a peer that broke the protocol."""
    return Http2Error(Http2Code.PROTOCOL_ERROR, text)
