"""One file of fixed size, mapped into memory when first used; it knows no records.

Mapping, flushing and populating are system calls that release the interpreter's lock; `mmap.flush` and `mmap.madvise`
keep it for tenths of a second, and every `mmap` keeps a file descriptor, which thousands of queues would use up.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path

_MADV_POPULATE_WRITE = 23  # Linux 5.14; others answer EINVAL and pages are then made one by one, when written
_FAILED = ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_advise = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class Segment:
    """`size` is in bytes; `base` is the offset of the first byte in the whole that the file is part of.

    `scattered` is for files that are written a little here, a little there: else the first touch of a hole takes
    milliseconds, since the file system then makes and clears up to 2 MiB at once.

    A dropped segment is unlinked at once and stays mapped until the last view of it is gone.
    """

    __slots__ = ("_memory", "base", "path", "scattered", "size")

    def __init__(self, path: Path, size: int, base: int = 0, *, scattered: bool = False) -> None:
        self.path = path
        self.size = size
        self.base = base
        self.scattered = scattered
        self._memory: memoryview | None = None

    @property
    def memory(self) -> memoryview:
        """The mapped file, to write into and to take views of."""
        if self._memory is None:
            self._memory = _mapped(self.path, self.size, scattered=self.scattered)
        return self._memory

    @property
    def is_mapped(self) -> bool:
        return self._memory is not None

    def changed_ms(self) -> int:
        """When the file was written last, by its file system. Raises `OSError`."""
        return self.path.stat().st_mtime_ns // 1_000_000

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
        start -= start % mmap.PAGESIZE
        length = min(end, self.size) - start
        if length <= 0:
            return True
        first = ctypes.c_char.from_buffer(self.memory, start)  # keeps the mapping meanwhile
        return bool(_advise(ctypes.addressof(first), length, _MADV_POPULATE_WRITE) == 0)

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

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)
        self.release()


def _mapped(path: Path, size: int, *, scattered: bool) -> memoryview:
    """Map a file; it is unmapped when the last view is gone."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        address = _map(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0)
    finally:
        os.close(descriptor)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
    if scattered:
        _advise(address, size, mmap.MADV_RANDOM)  # only advice: it may fail
    content = (ctypes.c_ubyte * size).from_address(address)
    # Not at the interpreter's exit: a thread may still be writing, and the process ends all mappings anyway.
    weakref.finalize(content, _unmap, address, size).atexit = False
    return memoryview(content).cast("B")
