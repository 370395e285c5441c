"""Splitting a byte stream into frames and putting frames together.

frame            bytes  type  meaning
length           4      int   of everything after this field
mark             4      int   top byte: serialization of the header (0 JSON, 1 binary); low 24 bits: its length
header           n      bytes
body             rest   bytes
"""

from __future__ import annotations

import struct

from pyromq.errors import FrameTooLarge, ProtocolError

MAX_FRAME_BYTES = 16_777_216  # upstream's limit (com.rocketmq.remoting.frameMaxLength): length word and content
JSON = 0
BINARY = 1

_WORDS = struct.Struct(">II")
_pack_words = _WORDS.pack
_unpack_words = _WORDS.unpack_from


# How the header is written, the header's bytes, the body (empty: none). A plain tuple: one is made for every command.
Frame = tuple[int, bytes, bytes]


class FrameSplitter:
    """Collects received bytes and gives them back as frames; keeps what is not yet complete.

    `broken` after a `split` says that what follows its frames is none: the next call raises, with or without data.
    """

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self.broken = False
        self._max = max_frame_bytes
        self._rest = bytearray()
        self._needed = 0  # bytes the unfinished frame takes in all; so a big frame is joined once, not per packet

    @property
    def unfinished(self) -> int:
        """Bytes received of a frame that is not complete."""
        return len(self._rest)

    def split(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order. Raises `FrameTooLarge` or `ProtocolError`.

        After an error the stream has no known frame border any more: the connection must be closed.
        """
        if self._rest:
            self._rest += data
            if len(self._rest) < self._needed:
                return []
            if len(self._rest) == self._needed > 8:
                return [self._take_only()]
            data = bytes(self._rest)
            self._rest.clear()
        frames: list[Frame] = []
        position, end = 0, len(data)
        self._needed = 8
        while end - position >= 8:
            length, mark = _unpack_words(data, position)
            header_at = position + 8
            body_at = header_at + (mark & 0xFFFFFF)
            frame_end = position + 4 + length
            if body_at > frame_end or length + 4 > self._max:
                if not frames:
                    self._refuse(length, mark)
                self.broken = True
                break
            if frame_end > end:
                self._needed = frame_end - position
                break
            frames.append((mark >> 24, data[header_at:body_at], data[body_at:frame_end]))
            position = frame_end
        if position < end:
            if not frames:
                self._check_early(data, position, end)
            self._rest += data[position:] if position else data
        return frames

    def _take_only(self) -> Frame:
        """Return what was kept, which is one checked frame: mostly a big one, which should be copied once only."""
        mark = _unpack_words(self._rest)[1]
        body_at = 8 + (mark & 0xFFFFFF)
        with memoryview(self._rest) as rest:
            frame = mark >> 24, bytes(rest[8:body_at]), bytes(rest[body_at:])
        self._rest.clear()
        self._needed = 8
        return frame

    def _check_early(self, data: bytes, position: int, end: int) -> None:
        """Refuse an oversized frame by its length word alone, before its second word arrives."""
        if 4 <= end - position < 8:
            length = int.from_bytes(data[position : position + 4], "big")
            if length + 4 > self._max:
                self._refuse(length, 0)

    def _refuse(self, length: int, mark: int) -> None:
        if length + 4 > self._max:
            raise FrameTooLarge(f"frame of {length} bytes; the limit is {self._max - 4}")
        raise ProtocolError(f"frame of {length} bytes claims a header of {mark & 0xFFFFFF}")


def frame_words(serialization: int, header_size: int, body_size: int) -> bytes:
    """Return the two words that go before the header."""
    return _pack_words(4 + header_size + body_size, serialization << 24 | header_size)
