"""Frames of HTTP/2 (RFC 9113) as bytes. No connection here, and no gRPC.

length 3 | type 1 | flags 1 | stream 4 | payload
"""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME = struct.Struct(">HBBBI")  # length (two fields), type, flags, stream
FRAME_SIZE = FRAME.size
MAX_FRAME = 1 << 14  # limit of a payload that we receive, and send to peers that allow no more
MAX_WINDOW = (1 << 31) - 1  # also the highest number of a stream
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
    FLOW_CONTROL_ERROR = 3
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class Http2Error(Exception):
    """The peer broke the protocol: the connection ends with this code."""

    def __init__(self, text: str, code: Http2Code = Http2Code.PROTOCOL_ERROR) -> None:
        super().__init__(text)
        self.code = code


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


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return a payload without its padding. Raises `Http2Error`."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error("padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


_HTTP1_METHODS = (b"GET", b"POST", b"HEAD", b"PUT", b"OPTIONS", b"DELETE", b"CONNECT", b"PRI")


def other_protocol_answer(data: bytes, text: str) -> bytes:
    """Return the answer to a peer whose first bytes are not those of HTTP/2: in HTTP/1 if it speaks that."""
    if data[:8].partition(b" ")[0] not in _HTTP1_METHODS:
        return goaway(0, Http2Code.PROTOCOL_ERROR, text)
    head = f"HTTP/1.1 505 HTTP Version Not Supported\r\nContent-Length: {len(text) + 1}\r\n"
    return f"{head}Content-Type: text/plain\r\nConnection: close\r\n\r\n{text}\n".encode()
