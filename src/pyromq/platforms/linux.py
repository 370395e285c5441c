"""Linux: page cache and disk space of mapped files, locks of open files, and what /proc says.

Populating uses system calls that release Python's interpreter lock (GIL). `mmap.flush` and `mmap.madvise` hold the lock
for tenths of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import resource
import socket
import struct
import time
from collections.abc import Iterator
from pathlib import Path

from pyromq.platforms.posix import *  # noqa: F403  the names of its `__all__`
from pyromq.platforms.posix import libc
from pyromq.platforms.posix import map_file as _map_file
from pyromq.platforms.posix import pages as _pages

_advise = libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_in_core = libc.mincore
_in_core.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

HAS_COMPILED_PARTS = True

_MADV_POPULATE_READ = 22  # since Linux 5.14; before, EINVAL: `load` then reads the pages
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; before, EINVAL: the first write makes each page
_FLOCK = struct.Struct("hhqqi4x")  # C struct flock: type, whence, start, length, pid
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_STAT = Path("/proc/self/stat")
_STATM = Path("/proc/self/statm")
_DESCRIPTORS = Path("/proc/self/fd")
_ASKED_BYTES = 128 << 10  # bytes per call of posix_fadvise: the kernel may ignore more bytes
_PIECE = 1 << 20  # bytes read per system call
_LISTEN = "0A"  # state of a listening socket in /proc/net/tcp
_ESTABLISHED = 1  # TCP_ESTABLISHED in tcp_states.h

allocate = os.posix_fallocate
close = os.close


def sync(descriptor: int) -> None:
    """Flush a file's bytes and size to disk."""
    os.fdatasync(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the creation, renaming and removal of files in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def map_file(descriptor: int, size: int, *, scattered: bool, write: bool = True) -> memoryview:
    """Map a file into memory until the last view is deleted. `scattered`: writes are not sequential."""
    memory = _map_file(descriptor, size, write=write)
    if scattered:
        _advise(*_pages(memory, 0, size), mmap.MADV_RANDOM)  # the result is ignored: advice may fail
    return memory


def populate(memory: memoryview, position: int, size: int) -> bool:
    """Make pages writable without page faults. Return False if the kernel does not support that."""
    if _advise(*_pages(memory, position, size), _MADV_POPULATE_WRITE) == 0:
        return True
    if ctypes.get_errno() != errno.EFAULT:
        return False
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # EFAULT has no reason; usually the disk is full


def drop_pages(memory: memoryview, position: int, size: int) -> None:
    """Unmap whole pages of a mapped file. No data is lost, as the mapping is shared."""
    first = -(-position // mmap.PAGESIZE) * mmap.PAGESIZE
    end = (position + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if first < end:
        _advise(*_pages(memory, first, end - first), mmap.MADV_DONTNEED)


def is_resident(memory: memoryview, position: int, size: int) -> bool:
    """Return True if a range of a mapped file is in memory, or if the kernel does not report that."""
    start, size = _pages(memory, position, size)
    found = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    return bool(_in_core(start, size, found) != 0 or 0 not in bytes(found))


def read_now(descriptor: int, size: int, position: int) -> bytes | None:
    """Return `size` bytes from a file position on; None if the read would block or if the file ends before."""
    content = bytearray(size)
    try:
        found = os.preadv(descriptor, [content], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # EOPNOTSUPP comes from some file systems, such as tmpfs
            raise
        found = os.preadv(descriptor, [content], position)
    return bytes(content) if found == size else None


def load(path: Path, start: int, size: int, memory: memoryview | None, ahead: int) -> None:
    """Load a range of a file into memory, and begin to load the next `ahead` bytes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        # Without the kernel's read-ahead: a page fault at the end of one read-ahead starts the next, and takes 5 ms.
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
        for position in range(start, start + size + ahead, _ASKED_BYTES):
            asked = min(_ASKED_BYTES, start + size + ahead - position)
            os.posix_fadvise(descriptor, position, asked, os.POSIX_FADV_WILLNEED)
        if memory is None or _advise(*_pages(memory, start, size), _MADV_POPULATE_READ) != 0:
            for position in range(start, start + size, _PIECE):
                os.pread(descriptor, min(_PIECE, start + size - position), position)
    finally:
        os.close(descriptor)


def lock(descriptor: int) -> None:
    """Lock byte 0 of an open file. Two stores in one process exclude each other too."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))


def lock_holder(descriptor: int) -> int:
    """Return the id of the process that holds the lock of byte 0; 0 if unknown."""
    query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    return max(0, int(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))[4]))


def boot_id() -> str:
    """Return an id that changes with each boot of the machine; "unknown" without /proc."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return "unknown"


def boot_seconds() -> float:
    """Return the seconds of a clock that also counts while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def process_age() -> float | None:
    """Return the seconds since this process started; None without /proc."""
    try:
        ticks = int(_STAT.read_text().rpartition(")")[2].split()[19])  # since the machine's start
        return boot_seconds() - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None


def resident_bytes() -> int | None:
    """Return the memory of this process; None without /proc."""
    try:
        return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return None


def open_descriptors() -> int | None:
    """Return the number of open descriptors of this process; None without /proc."""
    try:
        return sum(1 for _ in _DESCRIPTORS.iterdir())
    except OSError:
        return None


def mapping_limit() -> int:
    """Return how many memory mappings a process may have."""
    return int(Path("/proc/sys/vm/max_map_count").read_text())


def raise_descriptor_limit() -> None:
    """Raise the limit of open files to the permitted maximum: each connection and mapped file takes a descriptor."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def may_still_send(accepted: socket.socket) -> bool:
    """Return whether the peer has not closed its side. The first byte of TCP_INFO is the state of the connection."""
    return accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _ESTABLISHED


def port_owner(port: int) -> str | None:
    """Return `name (pid N)` of the process that listens at the port; None if unknown or another user's process."""
    try:
        inodes = {f"socket:[{inode}]" for inode in _listening_inodes(port)}
        for process in filter(str.isdigit, os.listdir("/proc")) if inodes else ():  # noqa: PTH208  see `_has_open`
            if _has_open(f"/proc/{process}/fd/", inodes):
                name = Path(f"/proc/{process}/comm").read_text().strip()
                return f"{name} (pid {process})"
    except OSError:
        return None
    return None


def _listening_inodes(port: int) -> Iterator[str]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        path = Path(table)
        if not path.exists():
            continue
        with path.open() as lines:
            next(lines, None)  # names of the columns
            for columns in map(str.split, lines):
                if columns[3] != _LISTEN:
                    break  # listening sockets come first; thousands of connections may follow
                if int(columns[1].rpartition(":")[2], 16) == port:
                    yield columns[9]


def _has_open(folder: str, files: set[str]) -> bool:
    """Return whether a process has one of these files open. A Path for each descriptor would be slow, hence strings."""
    with contextlib.suppress(OSError):  # another user's process, or an ended one
        for number in os.listdir(folder):  # noqa: PTH208
            with contextlib.suppress(OSError):  # closed meanwhile, as the descriptor that listed this folder
                if os.readlink(folder + number) in files:  # noqa: PTH115
                    return True
    return False
