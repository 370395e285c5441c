"""Decodes the header blocks of one connection, which may continue over several frames.

Every block must be decoded, also one of a call that is refused: blocks change the connection's table of fields.
"""

from __future__ import annotations

from typing import NamedTuple

from hpack import Decoder, HPACKError, OversizedHeaderListError

from pyromq.proxy.http2.frames import END_HEADERS, PADDED, PRIORITY_FLAG, Http2Code, Http2Error

MAX_HEADER_BYTES = 16 << 10  # limit of the header fields of a call; official clients send 700 bytes
Fields = dict[bytes, bytes]


class Opening(NamedTuple):
    """A complete header block: the stream, the flags of HEADERS, and the fields."""

    stream: int
    flags: int
    fields: Fields


class HeaderBlocks:
    """Decodes the header blocks of one connection. While `is_open`, the next frame must continue a block."""

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_HEADER_BYTES)
        self._begun: tuple[int, int, bytearray] | None = None

    @property
    def is_open(self) -> bool:
        return self._begun is not None

    def begin(self, flags: int, stream: int, payload: bytes) -> Opening | None:
        """Take the payload of HEADERS; return None if the block continues. Raises `Http2Error`."""
        payload = unpadded(flags, payload)
        if flags & PRIORITY_FLAG:
            if len(payload) < 5:
                raise Http2Error(Http2Code.FRAME_SIZE_ERROR, "HEADERS too short for their priority")
            payload = payload[5:]
        if flags & END_HEADERS:
            return Opening(stream, flags, self._decoded(payload))
        self._begun = stream, flags, bytearray(payload)
        return None

    def go_on(self, flags: int, stream: int, payload: bytes) -> Opening | None:
        """Take the payload of CONTINUATION; return None if the block continues. Raises `Http2Error`."""
        if self._begun is None or self._begun[0] != stream:
            raise Http2Error(Http2Code.PROTOCOL_ERROR, "CONTINUATION continues no header block")
        _, first_flags, block = self._begun
        block += payload
        if len(block) > 2 * MAX_HEADER_BYTES:
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, f"header block of more than {2 * MAX_HEADER_BYTES} bytes")
        if not flags & END_HEADERS:
            return None
        self._begun = None
        return Opening(stream, first_flags, self._decoded(bytes(block)))

    def _decoded(self, block: bytes) -> Fields:
        try:
            return dict(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            text = f"header fields of more than {MAX_HEADER_BYTES} bytes"
            raise Http2Error(Http2Code.ENHANCE_YOUR_CALM, text) from None
        except (HPACKError, IndexError, ValueError) as error:
            raise Http2Error(Http2Code.COMPRESSION_ERROR, f"header block cannot be decoded: {error}") from error


def unpadded(flags: int, payload: bytes) -> bytes:
    """Return a payload without its padding. Raises `Http2Error`."""
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(Http2Code.PROTOCOL_ERROR, "padding longer than its frame")
    return payload[1 : len(payload) - payload[0]]


def not_grpc(fields: Fields) -> tuple[int, str] | None:
    """Return the HTTP status and the reason for a request that is no gRPC call. Raises `Http2Error`."""
    if b":path" not in fields:
        raise Http2Error(Http2Code.PROTOCOL_ERROR, "a request without :path")
    if fields.get(b":method") != b"POST":
        return 405, "gRPC calls are POST requests"
    if not fields.get(b"content-type", b"").startswith(b"application/grpc"):
        return 415, "content-type must be application/grpc"
    return None
