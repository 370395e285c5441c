"""The one way from the store to a file system: what it asks of it, and the machine's own.

Everything the store does to files goes through a `Disk`, so that tests can put one in that fails, forgets and stops at
any operation (`pyromq.testing`). Bytes of mapped files are read and written directly. It knows no formats.

Mapping, flushing and populating are system calls that release the interpreter's lock; `mmap.flush` and `mmap.madvise`
keep it for tenths of a second, and every `mmap` keeps a file descriptor, which thousands of queues would use up.
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
from pyromq.store.addresses import address_of
from pyromq.store.looking import FilePiece

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups import records
from pyromq.store.addresses import stretches

_MADV_POPULATE_READ = 22  # Linux 5.14; others answer EINVAL
_libc = ctypes.CDLL(None, use_errno=True)
_advise = _libc.madvise
_advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_compare = _libc.memcmp
_compare.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_in_core = _libc.mincore
_in_core.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)

Content = bytes | bytearray | memoryview

OWNER_ONLY, OWNER_ONLY_FOLDER = 0o600, 0o700  # modes of new files and folders: no other user reads messages
_MADV_POPULATE_WRITE = 23  # Linux 5.14; others answer EINVAL and pages are then made one by one, when written
_FAILED = ctypes.c_void_p(-1).value
_FLOCK = struct.Struct("hhqqi4x")  # struct flock: type, whence, start, length, pid
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_PIECE = 1 << 20  # bytes read, copied or cleared at once
_ZEROS = memoryview(bytes(_PIECE))
_map = _libc.mmap
_map.restype = ctypes.c_void_p
_map.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_unmap = _libc.munmap
_unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)


class Disk(Protocol):
    """Files and folders. Everything raises `OSError`; nothing is on disk for certain before its `sync`.

    `in_threads`: slow work is done in threads beside the writer's. A simulation has one thread only.
    """

    @property
    def in_threads(self) -> bool: ...

    def names(self, folder: Path) -> list[str]:
        """Return what lies in a folder, sorted; [] where there is no folder."""

    def is_folder(self, path: Path) -> bool: ...

    def size(self, path: Path) -> int | None:
        """Return a file's size; None if there is no file."""

    def changed_ms(self, path: Path) -> int:
        """Return when a file was written last, by the file system."""

    def make_folder(self, folder: Path) -> None:
        """Make a folder, and those above it, where they do not exist; for their owner only, as new files are."""

    def sync_folder(self, folder: Path) -> None:
        """Make names created, renamed or removed in a folder survive a power cut."""

    def remove_folder(self, folder: Path) -> None:
        """Delete a folder with all its files, as far as possible; views of mapped ones stay valid."""

    def remove(self, path: Path) -> None: ...

    def replace(self, source: Path, target: Path) -> None:
        """Rename, over what had that name."""

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        """Return a descriptor to read by, and to write by unless `write` is off."""

    def close(self, descriptor: int) -> None: ...

    def is_at(self, descriptor: int, path: Path) -> bool:
        """Whether the path leads to the file or folder that was opened; raises where it leads nowhere."""

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        """Return up to so many bytes; fewer only at the file's end."""

    def write(self, descriptor: int, content: Content, position: int) -> int:
        """Write; return how many bytes, perhaps not all."""

    def resize(self, descriptor: int, size: int) -> None:
        """Cut a file, or make it longer by a hole."""

    def allocate(self, descriptor: int, position: int, size: int) -> None:
        """Have room for these bytes of a file: writing them cannot fail for lack of it."""

    def clear(self, descriptor: int, position: int, end: int) -> None:
        """Make bytes zero."""

    def hole_behind(self, descriptor: int, position: int) -> int:
        """Return the first position from there on where nothing was written, at the latest the file's end."""

    def sync(self, descriptor: int) -> None:
        """Wait until a file's bytes and its size are on disk."""

    def write_out(self, descriptor: int, position: int, size: int) -> None:
        """Begin to write bytes of a file to disk, so that `sync` has less to do at once; with pauses, too."""

    def map(self, descriptor: int, size: int, *, scattered: bool, write: bool = True) -> memoryview:
        """Map a file; it is unmapped when the last view is gone. `scattered`: it is not written from front to back.

        For reading only unless `write`; the descriptor must have been opened for that.
        """

    def populate(self, memory: memoryview, position: int, size: int) -> bool:
        """Make pages of a mapped file ready to be written; False where that is unsupported.

        Raises `OSError` where the file system refuses: writing them would end the process.
        """

    def make_ready(self, descriptor: int, memory: memoryview, position: int, size: int) -> None:
        """Have room for unwritten bytes of a mapped file, zeros in them, and their pages ready to be written.

        For helpers: what takes long has pauses, in which others have the processor.
        """

    def forget(self, memory: memoryview, position: int, size: int) -> None:
        """Let go of the pages of a mapped file; the system keeps their content, and brings them back when touched."""

    def is_loaded(self, views: Sequence[memoryview]) -> bool:
        """Whether all pages of these views of mapped files are in memory, as far as that can be told. Quick."""

    def read_now(self, descriptor: int, size: int, position: int) -> bytes | None:
        """Return so many bytes if that needs no waiting; None where it might, or the file ends before."""

    def load(self, unread: Sequence[memoryview | FilePiece]) -> None:
        """Have these in memory, as far as they are there; may take as long as a disk does, and holds nobody up."""

    def lock(self, descriptor: int) -> None:
        """Lock byte 0 for this open file alone. Raises `OSError` when somebody has it."""

    def lock_holder(self, descriptor: int) -> int:
        """Return the process that has byte 0 locked, 0 if that cannot be told."""

    def boot_id(self) -> str:
        """Return what differs after each start of the machine."""


class LocalDisk:
    """The machine's own."""

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
        # Written, not cut off and added again: a kill between the two would leave a file of another size.
        while (position := _next_data(descriptor, position)) < end:
            size = min(_PIECE - position % _PIECE, end - position)
            if os.pread(descriptor, size, position).strip(b"\0"):
                os.pwrite(descriptor, bytes(size), position)
            position += size

    def hole_behind(self, descriptor: int, position: int) -> int:
        while True:
            try:
                position = os.lseek(descriptor, position, os.SEEK_HOLE)
            except OSError:  # behind the end
                return position
            page = os.pread(descriptor, mmap.PAGESIZE, position)
            if not page.strip(b"\0"):  # else the file system does not know yet what was written there
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
            _advise(address, size, mmap.MADV_RANDOM)  # only advice: it may fail
        content = (ctypes.c_ubyte * size).from_address(address)
        # Not at the interpreter's exit: a thread may still be writing, and the process ends all mappings anyway.
        weakref.finalize(content, _unmap, address, size).atexit = False
        memory = memoryview(content).cast("B")
        return memory if write else memory.toreadonly()

    def populate(self, memory: memoryview, position: int, size: int) -> bool:
        start = position - position % mmap.PAGESIZE
        first = ctypes.c_char.from_buffer(memory, start)  # keeps the mapping meanwhile
        if _advise(ctypes.addressof(first), position + size - start, _MADV_POPULATE_WRITE) == 0:
            return True
        if ctypes.get_errno() != errno.EFAULT:
            return False
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))  # nobody tells why; room is what nearly always lacks

    def make_ready(self, descriptor: int, memory: memoryview, position: int, size: int) -> None:
        if speedups.is_active:
            records.make_ready(descriptor, memory, position, size)
        else:  # without pauses: behind each it would wait for the interpreter's lock
            self.allocate(descriptor, position, size)
            written = 0
            while written < size:
                written += os.pwrite(descriptor, _ZEROS[: size - written], position + written)
            self.populate(memory, position, size)

    def forget(self, memory: memoryview, position: int, size: int) -> None:
        first = -(-position // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (position + size) // mmap.PAGESIZE * mmap.PAGESIZE
        if first < end:  # of a shared mapping nothing is lost, written to disk or not
            _advise(address_of(memory) + first, end - first, mmap.MADV_DONTNEED)

    def is_loaded(self, views: Sequence[memoryview]) -> bool:
        return is_loaded(views)

    def read_now(self, descriptor: int, size: int, position: int) -> bytes | None:
        return read_now(descriptor, size, position)

    def load(self, unread: Sequence[memoryview | FilePiece]) -> None:
        load(unread)

    def lock(self, descriptor: int) -> None:
        # Bound to this open file, not to the process: two stores in one process exclude each other as well.
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
    """Return what the disk says, and what to do about it; `then` says what works again once there is room.

    Any other refusal may have come with a failed flush, or left files mapped for reading: only a restart helps.
    """
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; make room on that disk, then {then}"
    return f"{error.strerror}; see to that disk, and restart"


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """For what reads files, and translates itself what writing raises: raises `StoreError`, naming the file."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot read {error.filename or 'a file of the store'}: {error.strerror}") from error


def read_file(disk: Disk, path: Path) -> bytes | None:
    """Return a file's content; None if there is no file."""
    size = disk.size(path)
    if size is None:
        return None
    descriptor = disk.open(path, write=False)
    try:
        return disk.read(descriptor, size, 0)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        disk.close(descriptor)


def write_file(disk: Disk, path: Path, content: bytes) -> None:
    """Replace a file's content; it is on disk when this returns, under a name that may not be."""
    descriptor = disk.open(path, create=True)
    try:
        disk.resize(descriptor, 0)
        written = 0
        while written < len(content):
            written += disk.write(descriptor, content[written:], written)
        disk.sync(descriptor)
    finally:
        disk.close(descriptor)


def remove_file(disk: Disk, path: Path) -> None:
    """Delete a file if there is one."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(path)


def make_lasting_folder(disk: Disk, folder: Path) -> None:
    """Make a folder; it survives a power cut, also where somebody made it before and died of that."""
    made = [each for each in (folder, *folder.parents) if not disk.is_folder(each)]
    disk.make_folder(folder)
    for each in folder.parents:
        try:
            disk.sync_folder(each)
        except OSError:
            if any(each in new.parents for new in made):
                raise


def rewrite(disk: Disk, path: Path, start: int, end: int) -> None:
    """Write bytes of a file once more as they are, so that the next `sync` has to write them.

    After a crash of the process they may be in memory only: and where that process could not flush them, they are
    taken for written.
    """
    descriptor = disk.open(path)
    try:
        for position in range(start, end, _PIECE):
            disk.write(descriptor, disk.read(descriptor, min(_PIECE, end - position), position), position)
    finally:
        disk.close(descriptor)


def _next_data(descriptor: int, position: int) -> int:
    """Return the first position from there on that is not in a hole, or what is behind every end."""
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError:  # only holes up to the end
        return 1 << 62


def is_loaded(views: Sequence[memoryview]) -> bool:
    """Whether all pages of these views of mapped files are in memory."""
    return all(_is_resident(start, size) for start, size in stretches(views))


def read_now(descriptor: int, size: int, position: int) -> bytes | None:
    """Read so many bytes of a file if they are in memory; None where they are not, or the file ends before."""
    content = bytearray(size)
    try:
        found = os.preadv(descriptor, [content], position, os.RWF_NOWAIT)
    except BlockingIOError:
        return None
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:  # what some file systems say, those in memory among them
            raise
        found = os.preadv(descriptor, [content], position)
    return bytes(content) if found == size else None


def load(unread: Sequence[memoryview | FilePiece]) -> None:
    """Have views of mapped files, and pieces of others, in memory."""
    for piece in unread:
        if isinstance(piece, FilePiece):
            with contextlib.suppress(OSError):  # who reads it next is told
                _read_through(piece)
    for start, size in stretches([each for each in unread if isinstance(each, memoryview)]):
        if _advise(start, size, _MADV_POPULATE_READ) != 0 and ctypes.get_errno() == errno.EINVAL:
            _compare(start, start, size)  # which touches all of it


def _is_resident(start: int, size: int) -> bool:
    pages = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    return bool(_in_core(start, size, pages) != 0 or 0 not in bytes(pages))


def _read_through(piece: FilePiece) -> None:
    descriptor = os.open(piece.path, os.O_RDONLY)
    try:
        end = piece.position + piece.size
        for position in range(piece.position, end, _PIECE):
            os.pread(descriptor, min(_PIECE, end - position), position)
    finally:
        os.close(descriptor)
