"""One file of fixed size, mapped into memory when first used; it knows no records.

Flushing and populating go through system calls that release the interpreter's lock: `mmap.flush` and `mmap.madvise`
keep it for tenths of a second.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from pathlib import Path

_MADV_POPULATE_WRITE = 23  # Linux 5.14; others answer EINVAL and pages are then made one by one, when written
_PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_madvise = _libc.madvise
_madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Segment:
    """`size` is in bytes; `base` is the offset of the first byte in the whole that the file is part of.

    A dropped segment is unlinked at once and stays mapped until the last view of it is gone.
    """

    __slots__ = ("_map", "_memory", "base", "path", "size")

    def __init__(self, path: Path, size: int, base: int = 0) -> None:
        self.path = path
        self.size = size
        self.base = base
        self._map: mmap.mmap | None = None
        self._memory: memoryview | None = None

    @property
    def map(self) -> mmap.mmap:
        """The mapped file, to write into."""
        if self._map is None:
            descriptor = os.open(self.path, os.O_RDWR)
            try:
                self._map = _mapped(descriptor, self.size)
            finally:
                os.close(descriptor)
        return self._map

    @property
    def memory(self) -> memoryview:
        """The mapped file, to take views of."""
        if self._memory is None:
            self._memory = memoryview(self.map)
        return self._memory

    def create(self) -> None:
        """Make the file: sparse, all zeros."""
        descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            os.ftruncate(descriptor, self.size)
        finally:
            os.close(descriptor)

    def sync(self) -> None:
        """Wait until what was written is on disk. Called by the flusher's thread; a dropped file needs no flush."""
        try:
            descriptor = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            os.fdatasync(descriptor)
        finally:
            os.close(descriptor)

    def populate(self, start: int, end: int) -> bool:
        """Make the pages of a stretch (positions in the file) ready to be written; False where that is unsupported.

        Takes up to a millisecond per MiB and is for a helper's thread: appends then never wait for a page.
        """
        start -= start % _PAGE
        length = min(end, self.size) - start
        if length <= 0:
            return True
        anchor = ctypes.c_char.from_buffer(self.map, start)
        return bool(_madvise(ctypes.addressof(anchor), length, _MADV_POPULATE_WRITE) == 0)

    def clear_from(self, position: int) -> None:
        """Make everything from `position` on zero, and sparse."""
        descriptor = os.open(self.path, os.O_RDWR)
        try:
            os.ftruncate(descriptor, position)
            os.ftruncate(descriptor, self.size)
        finally:
            os.close(descriptor)

    def release(self) -> None:
        """Give up the mapping; it comes back when used again."""
        self._memory = None
        self._map = None

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.release()


def _mapped(descriptor: int, size: int) -> mmap.mmap:
    if sys.version_info >= (3, 13):
        return mmap.mmap(descriptor, size, trackfd=False)  # thousands of queues need no descriptors then
    return mmap.mmap(descriptor, size)
