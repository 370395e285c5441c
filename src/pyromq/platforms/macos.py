"""macOS: flushes that reach the disk, locks of a process, and no view of the page cache.

`is_resident`, `populate`, `read_now` and `drop_pages` know nothing of the page cache: a read of an old message can
block the event loop for one disk access. Constants that Python lacks are from Apple's <sys/fcntl.h> and <sys/mman.h>.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import resource
import socket
import struct
import time
import weakref
from pathlib import Path

from pyromq.platforms.posix import *  # noqa: F403  the names of its `__all__`
from pyromq.platforms.posix import libc, next_data, next_hole
from pyromq.platforms.posix import map_file as _map_file

HAS_COMPILED_PARTS = False

_MS_SYNC = 0x10  # msync returns when the pages are written
_F_PREALLOCATE = 42
_F_FULLFSYNC = 51
_FSTORE = struct.Struct("Iiqqq")  # C struct fstore: flags, mode, offset, length, bytes allocated
_F_ALLOCATEALL = 4  # all of the space or none
_F_PEOFPOSMODE = 3  # allocate from the end of the space that the file has already
_FLOCK = struct.Struct("qqihh")  # C struct flock: start, length, pid, type, whence
_NOT_SUPPORTED = {errno.ENOTSUP, errno.ENOTTY, errno.EINVAL}
_PIECE = 1 << 20  # bytes cleared or read per system call
_MAX_DESCRIPTORS = 10_240  # OPEN_MAX: setrlimit refuses more even if the maximum is unlimited
_BOOT_SESSION = b"kern.bootsessionuuid"

_flush_pages = libc.msync
_flush_pages.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

# Mapped bytes of each file, by device and inode: `sync` flushes them, as F_FULLFSYNC need not.
_mapped: dict[tuple[int, int], list[weakref.ref[ctypes.Array[ctypes.c_ubyte]]]] = {}
_locked: dict[tuple[int, int], int] = {}  # descriptor of each file that this process has locked


def map_file(descriptor: int, size: int, *, scattered: bool, write: bool = True) -> memoryview:
    """Map a file into memory until the last view is deleted."""
    memory = _map_file(descriptor, size, write=write)
    if write:
        key = _file_of(descriptor)
        _mapped.setdefault(key, []).append(weakref.ref(memory.obj, lambda gone: _forget(key, gone)))  # type: ignore[arg-type]
    return memory


def sync(descriptor: int) -> None:
    """Flush a file's bytes and size to disk; plain fsync leaves them in the drive's volatile cache."""
    for content in [view() for view in _mapped.get(_file_of(descriptor), ())]:
        if content is not None and _flush_pages(ctypes.addressof(content), ctypes.sizeof(content), _MS_SYNC) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
    _full_sync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the creation, renaming and removal of files in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        _full_sync(descriptor)
    finally:
        os.close(descriptor)


def _full_sync(descriptor: int) -> None:
    try:
        fcntl.fcntl(descriptor, _F_FULLFSYNC)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        os.fsync(descriptor)  # for example a network drive


def allocate(descriptor: int, position: int, size: int) -> None:
    """Allocate disk space for a range of a file: after the end by F_PREALLOCATE, in holes by writing zeros."""
    end, length = position + size, os.fstat(descriptor).st_size
    if end > length:
        wanted = _FSTORE.pack(_F_ALLOCATEALL, _F_PEOFPOSMODE, 0, end - length, 0)
        try:
            fcntl.fcntl(descriptor, _F_PREALLOCATE, wanted)
        except OSError as error:
            if error.errno not in _NOT_SUPPORTED:
                raise
        os.ftruncate(descriptor, end)
    while (hole := next_hole(descriptor, position)) is not None and hole < end:
        position = min(next_data(descriptor, hole), end)
        while hole < position:
            hole += os.pwrite(descriptor, bytes(min(_PIECE, position - hole)), hole)


def populate(memory: memoryview, position: int, size: int) -> bool:
    return False


def drop_pages(memory: memoryview, position: int, size: int) -> None:
    pass


def is_resident(memory: memoryview, position: int, size: int) -> bool:
    return True


def read_now(descriptor: int, size: int, position: int) -> bytes | None:
    """Return `size` bytes from a file position on; None if the file ends before. Blocks if they are not in memory."""
    content = os.pread(descriptor, size, position)
    return content if len(content) == size else None


def load(path: Path, start: int, size: int, memory: memoryview | None, ahead: int) -> None:
    """Load a range of a file into memory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        for position in range(start, start + size, _PIECE):
            os.pread(descriptor, min(_PIECE, start + size - position), position)
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Lock byte 0 of a file for this process, and for this descriptor within the process."""
    key = _file_of(descriptor)
    holder = _locked.get(key)
    if holder is not None and holder != descriptor and _is_open_at(holder, key):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    _locked[key] = descriptor


def lock_holder(descriptor: int) -> int:
    """Return the id of the process that holds the lock of byte 0; 0 if unknown."""
    if _file_of(descriptor) in _locked:
        return os.getpid()
    query = _FLOCK.pack(0, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    return max(0, int(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))[2]))


def close(descriptor: int) -> None:
    """Close a file. The process loses its lock of a file with any descriptor of it, so the lock is taken again."""
    key = _file_of(descriptor) if _locked else None
    os.close(descriptor)
    holder = _locked.get(key) if key is not None else None
    if key is None or holder is None:
        return
    if holder != descriptor and _is_open_at(holder, key):
        fcntl.lockf(holder, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
    else:
        del _locked[key]


def boot_id() -> str:
    """Return an id that changes with each boot of the machine; "unknown" if the kernel has none."""
    content, size = ctypes.create_string_buffer(64), ctypes.c_size_t(64)
    with contextlib.suppress(AttributeError):
        if libc.sysctlbyname(_BOOT_SESSION, content, ctypes.byref(size), None, ctypes.c_size_t(0)) == 0:
            return content.value.decode()
    return "unknown"


def boot_seconds() -> float:
    """Return the seconds of a clock that also counts while the machine is suspended.

    On macOS this clock is CLOCK_MONOTONIC; the clock of `time.monotonic` stops during suspension.
    """
    return time.clock_gettime(time.CLOCK_MONOTONIC)


def process_age() -> float | None:
    return None


def resident_bytes() -> int | None:
    return None


def open_descriptors() -> int | None:
    """Return the number of open descriptors of this process."""
    try:
        return sum(1 for _ in Path("/dev/fd").iterdir())
    except OSError:
        return None


def mapping_limit() -> int:
    """Return how many memory mappings a process may have: the limit of Linux, as macOS has none."""
    return 65_530


def raise_descriptor_limit() -> None:
    """Raise the limit of open files: each connection and mapped file takes a descriptor, and 256 are usual."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def may_still_send(accepted: socket.socket) -> bool:
    """Return True: only a read shows whether the peer has closed its side."""
    return True


def port_owner(port: int) -> str | None:
    return None


def _file_of(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _is_open_at(descriptor: int, key: tuple[int, int]) -> bool:
    with contextlib.suppress(OSError):
        return _file_of(descriptor) == key
    return False


def _forget(key: tuple[int, int], gone: weakref.ref[ctypes.Array[ctypes.c_ubyte]]) -> None:
    views = _mapped[key]
    views[:] = [view for view in views if view is not gone]
    if not views:
        del _mapped[key]
