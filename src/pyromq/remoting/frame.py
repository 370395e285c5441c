"""Splitting a byte stream into frames and putting frames together.

frame            bytes  type  meaning
length           4      int   of everything after this field
mark             4      int   top byte: serialization of the header (0 JSON, 1 binary); low 24 bits: its length
header           n      bytes
body             rest   bytes
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from pyromq.errors import FrameTooLarge, ProtocolError

MAX_FRAME_BYTES = 16_777_216  # upstream's limit (com.rocketmq.remoting.frameMaxLength): length word and content
RUN_HEADER_BYTES = 64 << 10  # of requests that are answered together: properties have 32 KiB, and take 2 ms at worst
JSON = 0
BINARY = 1

_WORDS = struct.Struct(">II")
_pack_words = _WORDS.pack
_unpack_words = _WORDS.unpack_from
_LARGE_PIECE = 4096  # bytes received at once of a frame that is not complete

# How the header is written, the header's bytes, the body (empty: none). A plain tuple: one is made for every command.
Frame = tuple[int, bytes, bytes]


# Whether a large frame is taken: asked with serialization, header and the frame's bytes as soon as the header is there.
Admit = Callable[[int, bytes, int], bool]


class FrameSplitter:
    """Collects received bytes and gives them back as frames; keeps what is not yet complete.

    `admit` is asked about frames of more than `header_bytes`, the most that a header may have; what it does not admit
    is passed over, and the next frame is found. `broken` after a `split` says that what follows its frames is none:
    the next call raises, with or without data.
    """

    __slots__ = (
        "_admit",
        "_is_sound",
        "_max",
        "_max_header",
        "_needed",
        "_parts",
        "_passing",
        "_small",
        "broken",
        "unfinished",
    )

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        *,
        header_bytes: int = MAX_FRAME_BYTES,
        admit: Admit | None = None,
    ) -> None:
        self.broken = False
        self.unfinished = 0  # bytes received of a frame that is not complete
        self._max = max_frame_bytes
        self._max_header = header_bytes
        self._small = max_frame_bytes if admit is None else min(header_bytes, max_frame_bytes)  # taken unasked
        self._admit = admit
        self._parts: list[bytes | bytearray] | tuple[()] = ()  # of the unfinished frame; joined once, not per packet
        self._needed = 8  # bytes the unfinished frame takes in all, or until more can be said of it
        self._is_sound = False  # whether the unfinished frame is one, and admitted
        self._passing = 0  # bytes to come of a frame that is not taken

    @property
    def is_within_frame(self) -> bool:
        """Whether more has to come of a frame that has begun."""
        return self.unfinished > 0 or self._passing > 0

    def split(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order. Raises `FrameTooLarge` or `ProtocolError`.

        After an error the stream has no known frame border any more: the connection must be closed.
        """
        frames: list[Frame] = []
        position = 0
        if self._passing:
            position = min(self._passing, len(data))
            self._passing -= position
        elif self._parts:
            missing = self._needed - self.unfinished
            if len(data) < missing:
                self._keep(data)
                return frames
            if self._is_sound:
                frames.append(self._take(data, missing))
                position = missing
            else:
                data = b"".join((*self._parts, data))
            self._parts = ()
            self.unfinished = 0
        end = len(data)
        self._needed = 8
        self._is_sound = False
        while end - position >= 8:
            length, mark = _unpack_words(data, position)
            header_at = position + 8
            body_at = header_at + (mark & 0xFFFFFF)
            frame_end = position + 4 + length
            if body_at > frame_end or length + 4 > self._small:
                if self._why_not(length, mark) is not None:
                    if not frames:
                        self._refuse(length, mark)
                    self.broken = True
                    break
                if body_at > end:
                    self._needed = body_at - position
                    break
                if self._admit is not None and not self._admit(mark >> 24, data[header_at:body_at], length + 4):
                    self._passing = max(frame_end - end, 0)
                    position = min(frame_end, end)
                    continue
            if frame_end > end:
                self._needed = frame_end - position
                self._is_sound = True
                break
            frames.append((mark >> 24, data[header_at:body_at], data[body_at:frame_end]))
            position = frame_end
        if position < end:
            if not frames:
                self._check_early(data, position, end)
            self._keep(data[position:] if position else data)
        return frames

    def _keep(self, data: bytes) -> None:
        """Keep a piece of the unfinished frame; small ones are put together, or they would take much more memory."""
        self.unfinished += len(data)
        parts = self._parts = self._parts or []
        if len(data) >= _LARGE_PIECE:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def _take(self, data: bytes, missing: int) -> Frame:
        """Return the unfinished frame, whose words are known to be sound, with the first `missing` bytes of `data`."""
        parts = [memoryview(part) for part in (*self._parts, data)]
        parts[-1] = parts[-1][:missing]
        mark = _unpack_words(parts[0])[1]
        body_at = 8 + (mark & 0xFFFFFF)
        if len(parts[0]) < body_at:
            parts = [memoryview(b"".join(parts))]
        header = bytes(parts[0][8:body_at])
        parts[0] = parts[0][body_at:]
        return mark >> 24, header, b"".join(parts)

    def _check_early(self, data: bytes, position: int, end: int) -> None:
        """Refuse an oversized frame by its length word alone, before its second word arrives."""
        if 4 <= end - position < 8:
            length = int.from_bytes(data[position : position + 4], "big")
            if length + 4 > self._max:
                self._refuse(length, 0)

    def _why_not(self, length: int, mark: int) -> ProtocolError | None:
        """Return what is wrong with a frame that has these words."""
        header_size = mark & 0xFFFFFF
        if length + 4 > self._max:
            return FrameTooLarge(f"frame of {length} bytes; the limit is {self._max - 4}")
        if 4 + header_size > length:
            return ProtocolError(f"frame of {length} bytes claims a header of {header_size}")
        if header_size > self._max_header:
            return FrameTooLarge(f"header of {header_size} bytes; the limit is {self._max_header} (maxHeaderBytes)")
        return None

    def _refuse(self, length: int, mark: int) -> None:
        why = self._why_not(length, mark)
        if why is not None:
            try:
                raise why
            finally:
                del why  # or error and frame would hold each other, and the connection, until they are collected


def run_length(frames: list[Frame], most: int) -> int:
    """Return how many of these frames are read in one go: one at least, and no more large headers than take a slice."""
    size = 0
    for count, (_, header, _) in enumerate(frames[:most]):
        size += len(header)
        if size > RUN_HEADER_BYTES:
            return max(count, 1)
    return min(len(frames), most)


def frame_words(serialization: int, header_size: int, body_size: int) -> bytes:
    """Return the two words that go before the header."""
    return _pack_words(4 + header_size + body_size, serialization << 24 | header_size)
