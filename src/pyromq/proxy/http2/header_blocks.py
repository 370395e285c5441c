"""Header blocks: those of one connection's calls, which may continue over several frames, and those of answers.

Every block must be decoded, also one of a call that is refused: blocks change the connection's table of fields.
Blocks of answers change no table, so one encoder serves all connections.
"""

from __future__ import annotations

from hpack import Decoder, Encoder, HPACKError, NeverIndexedHeaderTuple, OversizedHeaderListError

from pyromq.proxy.http2.frames import END_HEADERS, PRIORITY_FLAG, Http2Code, Http2Error, unpadded

MAX_HEADER_BYTES = 16 << 10  # limit of the header fields of a call; official clients send 700 bytes
Fields = dict[bytes, bytes]
_ENCODER = Encoder()


def header_block(*fields: tuple[str, str]) -> bytes:
    """Return the header block of an answer."""
    block: bytes = _ENCODER.encode([NeverIndexedHeaderTuple(*each) for each in fields], huffman=False)
    return block


class HeaderBlocks:
    """Decodes the header blocks of one connection."""

    def __init__(self) -> None:
        self.stream = 0  # whose block the next frame must continue, by CONTINUATION; 0: none
        self._decoder = Decoder(MAX_HEADER_BYTES)
        self._flags = 0  # of the block's HEADERS
        self._block = b""

    def take(self, flags: int, stream: int, payload: bytes) -> tuple[int, Fields] | None:
        """Take the payload of HEADERS, or of a CONTINUATION of `stream`.

        Returns the flags of HEADERS and the fields, or None if the block continues. Raises `Http2Error`.
        """
        if self.stream:
            payload = self._block + payload
            if len(payload) > 2 * MAX_HEADER_BYTES:
                text = f"header block of more than {2 * MAX_HEADER_BYTES} bytes"
                raise Http2Error(text, Http2Code.ENHANCE_YOUR_CALM)
        else:
            self._flags, payload = flags, unpadded(flags, payload)
            if flags & PRIORITY_FLAG:
                if len(payload) < 5:
                    raise Http2Error("HEADERS too short for their priority", Http2Code.FRAME_SIZE_ERROR)
                payload = payload[5:]
        self.stream, self._block = (0, b"") if flags & END_HEADERS else (stream, payload)
        return (self._flags, self._decoded(payload)) if flags & END_HEADERS else None

    def _decoded(self, block: bytes) -> Fields:
        try:
            return dict(self._decoder.decode(block, raw=True))
        except OversizedHeaderListError:
            text = f"header fields of more than {MAX_HEADER_BYTES} bytes"
            raise Http2Error(text, Http2Code.ENHANCE_YOUR_CALM) from None
        except (HPACKError, IndexError, ValueError) as error:
            raise Http2Error(f"header block cannot be decoded: {error}", Http2Code.COMPRESSION_ERROR) from error
