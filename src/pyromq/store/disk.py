"""The store's interface to file systems, and its implementation for the local machine. Does not know file formats.

All file operations of the store go through a `Disk`. So tests can use a disk that fails, loses unflushed data and stops
at any operation (`pyromq.testing`). Only bytes of mapped files are accessed directly. `pyromq.platforms` has the code
that differs between operating systems.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import shutil
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pyromq import speedups
from pyromq.errors import StoreError
from pyromq.platforms import platform
from pyromq.slow_work import FilePiece

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups import records

Content = bytes | bytearray | memoryview

OWNER_ONLY, OWNER_ONLY_FOLDER = 0o600, 0o700  # modes of new files and folders: other users must not read messages
_PIECE = 1 << 20  # bytes read, copied or cleared per system call
_ZEROS = memoryview(bytes(_PIECE))


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
        """Return where the first hole (unallocated range) from `position` on begins; without one, the file's end."""

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

    def make_ready(
        self, descriptor: int, memory: memoryview, position: int, size: int, urgent: Content = b"\0"
    ) -> None:
        """Allocate disk space for unwritten bytes of a mapped file, fill them with zeros and populate their pages.

        For threads: long work has pauses in which other threads can run, but none while byte 0 of `urgent` is set.
        """

    def drop_pages(self, memory: memoryview, position: int, size: int) -> None:
        """Unmap pages of a mapped file. The content of the pages is kept, and the next access maps them again."""

    def is_resident(self, memory: memoryview, position: int, size: int) -> bool:
        """Return True if a range of a mapped file is in memory, or if this is unknown. Does not block."""

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

    read = staticmethod(platform.read)
    write = staticmethod(platform.write)
    sync_folder = staticmethod(platform.sync_folder)
    close = staticmethod(platform.close)
    allocate = staticmethod(platform.allocate)
    sync = staticmethod(platform.sync)
    map = staticmethod(platform.map_file)
    populate = staticmethod(platform.populate)
    drop_pages = staticmethod(platform.drop_pages)
    is_resident = staticmethod(platform.is_resident)
    read_now = staticmethod(platform.read_now)
    lock = staticmethod(platform.lock)
    lock_holder = staticmethod(platform.lock_holder)
    boot_id = staticmethod(platform.boot_id)

    @property
    def in_threads(self) -> bool:
        return True

    def names(self, folder: Path) -> list[str]:
        try:
            with os.scandir(folder) as found:
                return sorted(each.name for each in found)
        except (FileNotFoundError, NotADirectoryError):
            return []

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

    def remove_folder(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)

    def remove(self, path: Path) -> None:
        path.unlink()

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        flags = (os.O_RDWR if write else os.O_RDONLY) | (os.O_CREAT if create else 0)
        return os.open(path, flags | platform.O_BINARY, OWNER_ONLY)

    def is_at(self, descriptor: int, path: Path) -> bool:
        return os.path.samestat(os.fstat(descriptor), path.stat())

    def resize(self, descriptor: int, size: int) -> None:
        os.ftruncate(descriptor, size)

    def clear(self, descriptor: int, position: int, end: int) -> None:
        # Zeros are written: a process killed between truncating and extending would leave a file of another size.
        while (position := platform.next_data(descriptor, position)) < end:
            size = min(_PIECE - position % _PIECE, end - position)
            if platform.read(descriptor, size, position).strip(b"\0"):
                write_all(self, descriptor, _ZEROS[:size], position)
            position += size

    def hole_behind(self, descriptor: int, position: int) -> int:
        while (hole := platform.next_hole(descriptor, position)) is not None:
            page = platform.read(descriptor, mmap.PAGESIZE, hole)
            if not page.strip(b"\0"):  # otherwise the page was written, but the file system has not allocated it yet
                return hole
            position = hole + len(page)
        return position

    def write_out(self, descriptor: int, position: int, size: int) -> None:
        if speedups.is_active:
            records.write_out(descriptor, position, size)

    def make_ready(
        self, descriptor: int, memory: memoryview, position: int, size: int, urgent: Content = b"\0"
    ) -> None:
        if speedups.is_active:
            records.make_ready(descriptor, memory, position, size, urgent)
        else:  # no pauses: after each pause the thread would wait for Python's interpreter lock
            self.allocate(descriptor, position, size)
            written = 0
            while written < size:
                written += platform.write(descriptor, _ZEROS[: size - written], position + written)
            self.populate(memory, position, size)

    def load(self, pages: Sequence[FilePiece]) -> None:
        for piece in pages:
            with contextlib.suppress(OSError):  # the next read raises the error
                platform.load(*piece)


LOCAL_DISK = LocalDisk()


def is_full(error: OSError) -> bool:
    """Return whether an error says that the disk, or a quota of the disk, is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def disk_advice(error: OSError, then: str) -> str:
    """Return the text of a disk error with advice. `then` says what works again once the disk has space.

    After an error other than a full disk, a flush may have failed or mappings are read-only, so the advice is a
    restart.
    """
    if is_full(error):
        return f"{error.strerror}; make room on that disk, then {then}"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{error.strerror}; check the owner and the permissions, then restart the broker"
    return f"{error.strerror}; check that disk, then restart the broker"


def start_advice(error: BaseException | None) -> str:
    """Return what to do about a disk error that prevents a broker's start."""
    number = error.errno if isinstance(error, OSError) else None
    return f"{_START_ADVICE.get(number, 'check its disk')}, or choose another folder"


_START_ADVICE: dict[int | None, str] = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space in its quota",
    errno.EROFS: "mount its disk for writing",
    errno.EACCES: "give this user the right to write there",
    errno.EPERM: "give this user the right to write there",
    errno.EEXIST: "a part of this path is a file: move the file",
    errno.ENOTDIR: "a part of this path is a file: move the file",
    errno.ENOENT: "create its parent folder",
}


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


def write_all(disk: Disk, descriptor: int, content: Content, position: int) -> None:
    """Write all bytes of `content` at a file position."""
    written = 0
    while written < len(content):
        written += disk.write(descriptor, content[written:], position + written)


def write_file(disk: Disk, path: Path, content: bytes) -> None:
    """Replace the content of a file and flush the content. The file's name is not flushed."""
    with opened(disk, path, create=True) as descriptor:
        disk.resize(descriptor, 0)
        write_all(disk, descriptor, content, 0)
        disk.sync(descriptor)


@lru_cache(maxsize=1024)
def path_beside(path: Path, suffix: str) -> Path:
    """Return the path of the file beside another file, with this suffix added to the name.

    The path is cached, because a new `Path` interns its name. After about 20,000 new names CPython copies its table of
    interned strings (1 MB) into the heap of the running thread. Each copy left a hole of 1 MB in another heap.
    """
    return path.with_name(path.name + suffix)


def remove_file(disk: Disk, path: Path) -> None:
    """Delete a file. A missing file is not an error."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(path)


def make_durable_folder(disk: Disk, folder: Path) -> None:
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

    After a crash of the process these bytes may be in memory only. After a failed flush the system regards them as
    flushed.
    """
    with opened(disk, path) as descriptor:
        for position in range(start, end, _PIECE):
            write_all(disk, descriptor, disk.read(descriptor, min(_PIECE, end - position), position), position)
