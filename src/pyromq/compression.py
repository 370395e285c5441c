"""Compresses bodies, and decompresses them up to a limit, because any client may have sent them.

A megabyte of zlib can decompress to a gigabyte. A message whose body exceeds the limit, or is damaged, is still a
message: see `StoredMessage.body_error`.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable

from pyromq.errors import UndecodableBody
from pyromq.sys_flag import SysFlag

# Limit of a decompressed body: producers send 4 MiB by default, and 16 MiB at most, because no frame holds more.
MAX_BODY_BYTES = 16 << 20

_PIECE = 1 << 16  # bytes decompressed in one step if they are only checked
_MAX_WINDOW = 1 << 24  # limit of Zstandard's window (bytes), which is allocated as a whole
# Limit of blocks in a Zstandard body: counting takes 30 ms; a body compressed in one call has at most 128.
_MAX_BLOCKS = 100_000


def compress(body: bytes, level: int = 5) -> bytes:
    """Return the body compressed as a zlib stream."""
    return zlib.compress(body, level)


def decompress(body: bytes, sys_flag: int, max_bytes: int = MAX_BODY_BYTES) -> bytes:
    """Return the decompressed body, as the application sent it.

    Raises `UndecodableBody` for a damaged body, an unknown kind of compression, a codec that is not installed, and more
    than `max_bytes`.
    """
    pieces: list[bytes] = []
    _unpack(body, sys_flag, max_bytes, pieces.append)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def decompress_start(body: bytes, sys_flag: int, max_bytes: int) -> bytes:
    """Return at most the first `max_bytes` of the decompressed body; little more is decompressed.

    Raises `UndecodableBody` as `decompress` does, but not for faults after these bytes.
    """
    pieces: list[bytes] = []
    left = max_bytes
    try:
        read = _reader(body, sys_flag & SysFlag.COMPRESSION_MASK)
        while left and (piece := read(left)):
            pieces.append(piece)
            left -= len(piece)
    except (UndecodableBody, MemoryError):
        raise
    except Exception as error:  # every codec has its own exception class; one border for all
        raise UndecodableBody(f"body of {len(body)} bytes cannot be decompressed: {error}") from error
    return b"".join(pieces)


def check_compressed(body: bytes, sys_flag: int, max_bytes: int = MAX_BODY_BYTES) -> None:
    """Raise `UndecodableBody` if `decompress` would; the decompressed bytes are not kept."""
    _unpack(body, sys_flag, max_bytes, lambda piece: None, at_once=_PIECE)


def _unpack(
    body: bytes, sys_flag: int, max_bytes: int, keep: Callable[[bytes], None], *, at_once: int | None = None
) -> None:
    try:
        kind = sys_flag & SysFlag.COMPRESSION_MASK
        read = _reader(body, kind)
        if kind == SysFlag.ZSTD:
            _check_frames(body)
        left = max_bytes
        while piece := read(min(at_once or left + 1, left + 1)):
            left -= len(piece)
            if left < 0:
                raise UndecodableBody(f"body of {len(body)} bytes decompresses to more than {max_bytes}, the limit")
            keep(piece)
    except (UndecodableBody, MemoryError):
        raise
    except Exception as error:  # every codec has its own exception class; one border for all
        raise UndecodableBody(f"body of {len(body)} bytes cannot be decompressed: {error}") from error


def _reader(body: bytes, kind: int) -> Callable[[int], bytes]:
    """Return a function that returns at most the given number of the next decompressed bytes; b"" at the end."""
    if kind in (0, SysFlag.ZLIB):
        return _ZlibReader(body).read
    try:
        if kind == SysFlag.LZ4:
            import lz4.frame  # optional: only bodies compressed by clients that chose LZ4 need it

            return lz4.frame.open(io.BytesIO(body)).read  # type: ignore[no-any-return]  # it has no types
        if kind == SysFlag.ZSTD:
            import zstandard  # optional: only bodies compressed by clients that chose Zstandard need it

            unpacking = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW)
            return unpacking.stream_reader(io.BytesIO(body), read_across_frames=True).read
    except ImportError as error:
        codec, package = ("LZ4", "lz4") if kind == SysFlag.LZ4 else ("zstd", "zstandard")
        raise UndecodableBody(f"body is compressed with {codec}; install {package} to read it") from error
    raise UndecodableBody(f"body is compressed in a way that is not known here: sysFlag says {kind:#x}")


def _check_frames(body: bytes) -> None:
    """Raise `ValueError` if a Zstandard frame is cut off. The library would accept its start as the whole frame.

    A frame is a head, blocks, and 4 bytes if the head promises a checksum. A block begins with 3 bytes, little endian:
    bit 0 for the last block, 2 bits for its kind (1: one byte, repeated), then its size.
    """
    import zstandard

    view = memoryview(body)
    place = blocks = 0
    while place < len(view) or not blocks:
        has_checksum = zstandard.get_frame_parameters(view[place:]).has_checksum
        place += zstandard.frame_header_size(view[place:])
        is_last = False
        while not is_last and place + 3 <= len(view):
            head = int.from_bytes(view[place : place + 3], "little")
            place += 3 + (1 if head >> 1 & 3 == 1 else head >> 3)
            is_last = bool(head & 1)
            blocks += 1
            if blocks > _MAX_BLOCKS:
                raise ValueError(f"it has more than {_MAX_BLOCKS} blocks")
        place += 4 if has_checksum else 0
        if not is_last or place > len(view):
            raise ValueError("its end is missing")


class _ZlibReader:
    """Decompresses a zlib stream piece by piece.

    Bytes after the end of the stream are ignored, as by `zlib.decompress`.
    """

    def __init__(self, body: bytes) -> None:
        self._stream = zlib.decompressobj()
        self._rest = body

    def read(self, most: int) -> bytes:
        if self._stream.eof:
            return b""
        piece = self._stream.decompress(self._rest, most)
        self._rest = self._stream.unconsumed_tail
        if not piece and not self._stream.eof:
            raise ValueError("its end is missing")
        return piece
