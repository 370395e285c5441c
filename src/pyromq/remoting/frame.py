"""Splits a byte stream into frames and writes the words before a frame's header.

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
JSON = 0
BINARY = 1

_WORDS = struct.Struct(">II")
_pack_words = _WORDS.pack
_unpack_words = _WORDS.unpack_from
_LARGE_PIECE = 4096  # pieces of an incomplete frame from this size on are kept as received

# Serialization, header, body (may be empty). A plain tuple, because one is made for every command.
Frame = tuple[int, bytes, bytes]


# Returns whether a large frame is taken; called with serialization, header and frame size once the header is complete.
Admit = Callable[[int, bytes, int], bool]


class FrameSplitter:
    """Splits received bytes into frames and keeps an incomplete frame until its rest arrives.

    `header_bytes` limits a header. `admit` is called for frames larger than that; a frame that it refuses is skipped.
    `broken` after a `split`: invalid bytes follow the returned frames, and the next call raises, even without data.
    """

    __slots__ = (
        "_admit",
        "_is_sound",
        "_max",
        "_max_header",
        "_needed",
        "_parts",
        "_skipped_bytes",
        "_small",
        "broken",
        "incomplete_bytes",
    )

    def __init__(
        self,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        *,
        header_bytes: int = MAX_FRAME_BYTES,
        admit: Admit | None = None,
    ) -> None:
        self.broken = False
        self.incomplete_bytes = 0  # bytes received of an incomplete frame
        self._max = max_frame_bytes
        self._max_header = header_bytes
        self._small = max_frame_bytes if admit is None else min(header_bytes, max_frame_bytes)  # no call of `admit`
        self._admit = admit
        self._parts: list[bytes | bytearray] | tuple[()] = ()  # of the incomplete frame; joined when it is complete
        self._needed = 8  # size of the incomplete frame, or of the part that must arrive before the size is known
        self._is_sound = False  # whether the incomplete frame is valid and admitted
        self._skipped_bytes = 0  # bytes still to arrive of a frame that is skipped

    @property
    def is_within_frame(self) -> bool:
        """Whether a frame has begun and is incomplete."""
        return self.incomplete_bytes > 0 or self._skipped_bytes > 0

    def split(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes, in order. Raises `FrameTooLarge` or `ProtocolError`.

        After an error the next frame's beginning is unknown: the connection must be closed.
        """
        frames: list[Frame] = []
        position = 0
        if self._skipped_bytes:
            position = min(self._skipped_bytes, len(data))
            self._skipped_bytes -= position
        elif self._parts:
            missing = self._needed - self.incomplete_bytes
            if len(data) < missing:
                self._keep(data)
                return frames
            if self._is_sound:
                frames.append(self._take(data, missing))
                position = missing
            else:
                data = b"".join((*self._parts, data))
            self._parts = ()
            self.incomplete_bytes = 0
        end = len(data)
        self._needed = 8
        self._is_sound = False
        while end - position >= 8:
            length, mark = _unpack_words(data, position)
            header_at = position + 8
            body_at = header_at + (mark & 0xFFFFFF)
            frame_end = position + 4 + length
            if body_at > frame_end or length + 4 > self._small:
                if self._fault(length, mark) is not None:
                    if not frames:
                        self._refuse(length, mark)
                    self.broken = True
                    break
                if body_at > end:
                    self._needed = body_at - position
                    break
                if self._admit is not None and not self._admit(mark >> 24, data[header_at:body_at], length + 4):
                    self._skipped_bytes = max(frame_end - end, 0)
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
        """Keep a piece of the incomplete frame; small pieces are joined, because objects take much more memory."""
        self.incomplete_bytes += len(data)
        parts = self._parts = self._parts or []
        if len(data) >= _LARGE_PIECE:
            parts.append(data)
        elif parts and isinstance(parts[-1], bytearray):
            parts[-1] += data
        else:
            parts.append(bytearray(data))

    def _take(self, data: bytes, missing: int) -> Frame:
        """Return the valid incomplete frame, completed by the first `missing` bytes of `data`."""
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
        """Refuse an oversized frame by its length, before its second word arrives."""
        if 4 <= end - position < 8:
            length = int.from_bytes(data[position : position + 4], "big")
            if length + 4 > self._max:
                self._refuse(length, 0)

    def _fault(self, length: int, mark: int) -> ProtocolError | None:
        """Return the error for a frame that has these words; None if they are valid."""
        header_size = mark & 0xFFFFFF
        if length + 4 > self._max:
            return FrameTooLarge(f"frame of {length} bytes; the limit is {self._max - 4}")
        if 4 + header_size > length:
            return ProtocolError(f"frame of {length} bytes claims a header of {header_size}")
        if header_size > self._max_header:
            return FrameTooLarge(f"header of {header_size} bytes; the limit is {self._max_header} (maxHeaderBytes)")
        return None

    def _refuse(self, length: int, mark: int) -> None:
        why = self._fault(length, mark)
        if why is not None:
            try:
                raise why
            finally:
                del why  # error and traceback would hold each other, and the connection, until garbage collection


def frame_words(serialization: int, header_size: int, body_size: int) -> bytes:
    """Return the two words before a frame's header."""
    return _pack_words(4 + header_size + body_size, serialization << 24 | header_size)
