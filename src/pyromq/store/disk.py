"""The store's interface to file systems, and its implementation for the local machine. Does not know file formats.

All file operations of the store go through a `Disk`. So tests can use a disk that fails, loses unflushed data and stops
at any operation (`pyromq.testing`). Only bytes of mapped files are accessed directly.

Mapping, flushing and populating use system calls that release Python's interpreter lock (GIL). `mmap.flush` and
`mmap.madvise` hold the lock for tenths of a second. Each `mmap` object keeps a file descriptor, which a store with
thousands of queues would exhaust.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import shutil
import struct
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyromq import speedups
from pyromq.errors import StoreError
from pyromq.slow_work import FilePiece

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups import records

_libc = ctypes.CDLL(None, use_errno=True)
_advise = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_in_core = _libc.mincore
_in_core.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

Content = bytes | bytearray | memoryview

OWNER_ONLY, OWNER_ONLY_FOLDER = 0o600, 0o700  # modes of new files and folders: other users must not read messages
_MADV_POPULATE_READ = 22  # since Linux 5.14; before, EINVAL: `_load` then reads the pages
_MADV_POPULATE_WRITE = 23  # since Linux 5.14; before, EINVAL: the first write makes each page
_FAILED = ctypes.c_void_p(-1).value  # address that a failed mmap returns
_FLOCK = struct.Struct("hhqqi4x")  # C struct flock: type, whence, start, length, pid
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_ASKED_BYTES = 128 << 10  # bytes per call of posix_fadvise: the kernel may ignore further bytes
_PIECE = 1 << 20  # bytes read, copied or cleared per system call
_ZEROS = memoryview(bytes(_PIECE))
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Disk(Protocol):
    """Files and folders as the store uses them. Every method may raise `OSError`. Only `sync` makes writes durable.

    `in_threads`: slow work runs in threads. False in a simulation, which has only one thread.
    """

    @property
    def in_threads(self) -> bool: ...

    def names(self, folder: Path) -> list[str]:
        """Return the names of files and folders in a folder, sorted; [] if the folder does not exist."""

    def is_folder(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int | None:
        """Return the size of a file in bytes; None if the file does not exist."""

    def changed_ms(self, path: Path) -> int:
        """Return the modification time of a file in ms since 1970."""

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its missing parents. Only the owner has access to new folders and files."""

    def sync_folder(self, folder: Path) -> None:
        """Make the creation, renaming and removal of files in a folder durable. Blocks."""

    def remove_folder(self, folder: Path) -> None:
        """Delete a folder with all its files; errors are ignored. Views of mapped files stay valid."""

    def remove(self, path: Path) -> None: ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename a file to `target`. An existing target is replaced."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """Open a file and return its descriptor, for reading and, with `write`, for writing.

        `create`: a missing file is created.
        """

    def close(self, descriptor: int) -> None: ...

    def is_at(self, descriptor: int, path: Path) -> bool:
        """Return True if the path leads to the opened file or folder.

        Raises `FileNotFoundError` if nothing is at the path.
        """

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        """Return `size` bytes from a file position on, or fewer bytes at the file's end."""

    def write(self, descriptor: int, content: Content, position: int) -> int:
        """Write bytes at a file position. Return how many bytes were written, possibly not all."""

    def resize(self, descriptor: int, size: int) -> None:
        """Truncate a file to `size` bytes, or extend the file by a hole (unallocated zeros)."""

    def allocate(self, descriptor: int, position: int, size: int) -> None:
        """Allocate disk space for a range of a file. Later writes to the range do not fail for lack of space."""

    def clear(self, descriptor: int, position: int, end: int) -> None:
        """Fill the file from `position` to `end` with zeros."""

    def hole_behind(self, descriptor: int, position: int) -> int:
        """Return the begin of the first hole (unallocated range) from `position` on; without one, the file's end."""

    def sync(self, descriptor: int) -> None:
        """Flush a file's bytes and size to disk; blocks."""

    def write_out(self, descriptor: int, position: int, size: int) -> None:
        """Start writing a range of a file to disk in small steps, with pauses. A later `sync` then takes less time."""

    def map(self, descriptor: int, size: int, *, scattered: bool, write: bool = True) -> memoryview:
        """Map a file into memory until the last view of the mapping is deleted. `scattered`: writes are not sequential.

        The view is writable only with `write`; then the descriptor must have been opened for writing.
        """

    def populate(self, memory: memoryview, position: int, size: int) -> bool:
        """Make pages of a mapped file writable without page faults. Return False if the system does not support that.

        Raises `OSError` if the file system refuses, usually as the disk is full: writing these pages would kill the
        process.
        """

    def make_ready(self, descriptor: int, memory: memoryview, position: int, size: int) -> None:
        """Allocate disk space for unwritten bytes of a mapped file, fill them with zeros and populate their pages.

        For threads: long work has pauses in which other threads can run.
        """

    def drop_pages(self, memory: memoryview, position: int, size: int) -> None:
        """Unmap pages of a mapped file. The content of the pages is kept, and the next access maps them again."""

    def is_resident(self, memory: memoryview, position: int, size: int) -> bool:
        """Return True if a range of a mapped file is in memory, or if the system cannot tell. Does not block."""

    def read_now(self, descriptor: int, size: int, position: int) -> bytes | None:
        """Return `size` bytes from a file position on; None if the read would block or if the file ends before."""

    def load(self, pages: Sequence[FilePiece]) -> None:
        """Load pieces of files into memory. Blocks, but other Python threads can run. Read errors are ignored."""

    def lock(self, descriptor: int) -> None:
        """Lock byte 0 of a file exclusively for this open file. Raises `OSError` if the byte is locked."""

    def lock_holder(self, descriptor: int) -> int:
        """Return the id of the process that holds the lock of byte 0; 0 if unknown."""

    def boot_id(self) -> str:
        """Return an id that changes with each start of the machine; "unknown" if the system has none."""


class LocalDisk:
    """The disk of the local machine."""

    @property
    def in_threads(self) -> bool:
        return True

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []

    def is_folder(self, path: Path) -> bool:
        return path.is_dir()

    def size(self, path: Path) -> int | None:
        try:
            return path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            return None

    def changed_ms(self, path: Path) -> int:
        return path.stat().st_mtime_ns // 1_000_000

    def make_folder(self, folder: Path) -> None:
        for each in (*reversed(folder.parents), folder):
            if not each.is_dir():
                each.mkdir(OWNER_ONLY_FOLDER, exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def remove_folder(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def remove(self, path: Path) -> None:
        path.unlink()

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0), OWNER_ONLY)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def is_at(self, descriptor: int, path: Path) -> bool:
        return os.path.samestat(os.fstat(descriptor), path.stat())

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        return os.pread(descriptor, size, position)

    def write(self, descriptor: int, content: Content, position: int) -> int:
        return os.pwrite(descriptor, content, position)

    def resize(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def allocate(self, descriptor: int, position: int, size: int) -> None:
        os.posix_fallocate(descriptor, position, size)

    def clear(self, descriptor: int, position: int, end: int) -> None:
        # Zeros are written: a process killed between truncating and extending would leave a file of another size.
        while (position := _next_data(descriptor, position)) < end:
            size = min(_PIECE - position % _PIECE, end - position)
            if os.pread(descriptor, size, position).strip(b"\0"):
                os.pwrite(descriptor, bytes(size), position)
            position += size

    def hole_behind(self, descriptor: int, position: int) -> int:
        while True:
            try:
                position = os.lseek(descriptor, position, os.SEEK_HOLE)
            except OSError:  # `position` is after the file's end
                return position
            page = os.pread(descriptor, mmap.PAGESIZE, position)
            if not page.strip(b"\0"):  # otherwise the page was written, but the file system has not allocated it yet
                return position
            position += len(page)

    def sync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def write_out(self, descriptor: int, position: int, size: int) -> None:
        if speedups.is_active:
            records.write_out(descriptor, position, size)

    def map(self, descriptor: int, size: int, *, scattered: bool, write: bool = True) -> memoryview:
        protection = mmap.PROT_READ | mmap.PROT_WRITE if write else mmap.PROT_READ
        address = _map(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
        if address == _FAILED:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        if scattered:
            _advise(address, size, mmap.MADV_RANDOM)  # the result is ignored: advice may fail
        content = (ctypes.c_ubyte * size).from_address(address)
        # No unmapping at the interpreter's exit: a thread may still write, and the end of the process unmaps.
        weakref.finalize(content, _unmap, address, size).atexit = False
        memory = memoryview(content).cast("B")  # `memory.obj` is `content`, which knows the address
        return memory if write else memory.toreadonly()

    def populate(self, memory: memoryview, position: int, size: int) -> bool:
        if _advise(*_pages(memory, position, size), _MADV_POPULATE_WRITE) == 0:
            return True
        if ctypes.get_errno() != errno.EFAULT:
            return False
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # EFAULT tells no reason; nearly always the disk is full

    def make_ready(self, descriptor: int, memory: memoryview, position: int, size: int) -> None:
        if speedups.is_active:
            records.make_ready(descriptor, memory, position, size)
        else:  # no pauses: after each pause the thread would wait for Python's interpreter lock
            self.allocate(descriptor, position, size)
            written = 0
            while written < size:
                written += os.pwrite(descriptor, _ZEROS[: size - written], position + written)
            self.populate(memory, position, size)

    def drop_pages(self, memory: memoryview, position: int, size: int) -> None:
        first = -(-position // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (position + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < end:  # no data is lost, as the mapping is shared
            _advise(*_pages(memory, first, end - first), mmap.MADV_DONTNEED)

    def is_resident(self, memory: memoryview, position: int, size: int) -> bool:
        start, size = _pages(memory, position, size)
        pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
        return bool(_in_core(start, size, pages) != 0 or 0 not in bytes(pages))

    def read_now(self, descriptor: int, size: int, position: int) -> bytes | None:
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

    def load(self, pages: Sequence[FilePiece]) -> None:
        for piece in pages:
            with contextlib.suppress(OSError):  # the next read raises the error
                _load(piece)

    def lock(self, descriptor: int) -> None:
        # The lock belongs to the open file, not to the process: two stores in one process exclude each other too.
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0))

    def lock_holder(self, descriptor: int) -> int:
        query = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
        return max(0, int(_FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, query))[4]))

    def boot_id(self) -> str:
        try:
            return _BOOT_ID.read_text().strip()
        except OSError:
            return "unknown"


LOCAL_DISK = LocalDisk()


def complaint(error: OSError, then: str) -> str:
    """Return the text of a disk error with advice. `then` says what works again once the disk has space.

    After an error other than a full disk, a flush may have failed or mappings are read-only, so the advice is a
    restart.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; make room on that disk, then {then}"
    return f"{error.strerror}; check that disk, then restart the broker"


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Context manager that turns an `OSError` of reading into a `StoreError` with the file's name."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or 'a file of the store'}: {error.strerror}") from error


@contextlib.contextmanager
def opened(disk: Disk, path: Path, *, create: bool = False, write: bool = True) -> Iterator[int]:
    """Context manager that opens a file, yields its descriptor and closes the file."""
    descriptor = disk.open(path, create=create, write=write)
    try:
        yield descriptor
    finally:
        disk.close(descriptor)


def read_file(disk: Disk, path: Path) -> bytes | None:
    """Return the content of a file; None if the file does not exist. An `OSError` names the file."""
    size = disk.size(path)
    if size is None:
        return None
    with opened(disk, path, write=False) as descriptor:
        try:
            return disk.read(descriptor, size, 0)
        except OSError as error:
            error.filename = str(path)
            raise


def write_file(disk: Disk, path: Path, content: bytes) -> None:
    """Replace the content of a file and flush the content. The file's name is not flushed."""
    with opened(disk, path, create=True) as descriptor:
        disk.resize(descriptor, 0)
        written = 0
        while written < len(content):
            written += disk.write(descriptor, content[written:], written)
        disk.sync(descriptor)


def remove_file(disk: Disk, path: Path) -> None:
    """Delete a file. A missing file is no error."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(path)


def make_lasting_folder(disk: Disk, folder: Path) -> None:
    """Create a folder and flush its name to disk. An existing folder's name is flushed too."""
    made = [each for each in (folder, *folder.parents) if not disk.is_folder(each)]
    disk.make_folder(folder)
    for each in folder.parents:
        try:
            disk.sync_folder(each)
        except OSError:
            if any(each in new.parents for new in made):
                raise


def rewrite(disk: Disk, path: Path, start: int, end: int) -> None:
    """Write the bytes of a file from `start` to `end` again unchanged, so that the next `sync` flushes them.

    After a crash of the process these bytes may be in memory only. After a failed flush the system takes them as
    flushed.
    """
    with opened(disk, path) as descriptor:
        for position in range(start, end, _PIECE):
            disk.write(descriptor, disk.read(descriptor, min(_PIECE, end - position), position), position)


def _next_data(descriptor: int, position: int) -> int:
    """Return the first position from `position` on that is not in a hole; 1 << 62 if only holes follow."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:  # only holes follow up to the file's end
        return 1 << 62


def _load(piece: FilePiece) -> None:
    path, start, size, memory, ahead = piece
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


def _pages(memory: memoryview, position: int, size: int) -> tuple[int, int]:
    """Return memory address and size of a range of a mapped file, extended to the begin of the first page."""
    before = position % mmap.PAGESIZE
    return ctypes.addressof(memory.obj) + position - before, size + before  # type: ignore[arg-type]  # made by `map`
