"""A disk in memory that loses unflushed bytes, tears writes, returns errors, and kills the process at any operation.

    disk = SimulatedDisk()
    disk.kill_at = 120                      # the operation at which the process dies: `Killed` is raised
    ...
    disk = disk.after_kill()                # the disk of the next process
    disk = disk.after_power_cut(random)     # the disk after a power loss

All processes see a write immediately, and the write survives the end of its process. After a successful `sync`, the
content at the beginning of the `sync` is safe on disk; a file's name is safe after a sync of its folder. A power loss
keeps any part of the other writes, in sectors. The disk knows no file formats.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from enum import Enum, auto
from pathlib import Path
from random import Random
from typing import NamedTuple

from pyromq.slow_work import FilePiece
from pyromq.store.disk import Content

SECTOR = 512  # bytes that a disk writes atomically
BLOCK = 4096  # unit of allocation of the file system
_TORN = 0.5  # probability that a power loss tears the last used sector of a mapped file


class Killed(BaseException):
    """Raised where the simulated process ends.

    The store never catches this error, and later operations have no effect.
    """


class _Change(NamedTuple):
    """A created, renamed or deleted name: `given` with its file (None for a folder), or the deleted path `taken`."""

    folders: tuple[Path, ...]
    given: Path | None
    file: SimulatedFile | None
    taken: Path | None


class SimulatedDisk:
    """A `Disk` of the store, in memory. `operations` counts the operations that can fail or change something.

    `kill_at`: the operation with this number and all later operations do not happen. `refuse(kind, path)` is called for
    every operation; an exception that `refuse` raises comes after a part of the work. `while_syncing` is called in each
    `sync`, after the content to sync was taken.
    """

    in_threads = False

    def __init__(self, *, seed: int = 0) -> None:
        self.operations = 0
        self.kill_at: int | None = None
        self.is_killed = False
        self.is_read_only = False  # if true, opening a file for writing fails
        self.refuse: Callable[[str, Path], int | None] = lambda kind, path: None
        self.while_syncing: Callable[[Path], None] = lambda path: None
        self._random = Random(seed)
        self._files: dict[Path, SimulatedFile | None] = {Path("/"): None}  # the file of each path; None for a folder
        self._lasting: dict[Path, SimulatedFile | None] = {Path("/"): None}
        self._changes: list[_Change] = []  # changes of names that may not be on disk yet
        self._open: dict[int, tuple[Path, SimulatedFile]] = {}
        self._locks: dict[int, SimulatedFile] = {}
        self._next_descriptor = 3
        self._boot = 1

    # -- faults

    def kill(self) -> Killed:
        """End the simulated process between two operations; return the exception to raise."""
        self.is_killed = True
        return Killed()

    def after_kill(self) -> SimulatedDisk:
        """Return the disk that the next process sees: with all written bytes, flushed or not."""
        other = SimulatedDisk(seed=self._random.randrange(1 << 30))
        copies: dict[int, SimulatedFile] = {}

        def copied(file: SimulatedFile | None) -> SimulatedFile | None:
            if file is None:
                return None
            if id(file) not in copies:
                copy = copies[id(file)] = SimulatedFile(bytes(file.content[: file.size]), frozenset(file.blocks))
                copy.durable = file.durable
                copy.is_mapped = file.is_mapped
                copy.neglected = dict(file.neglected)
            return copies[id(file)]

        other._files = {path: copied(file) for path, file in self._files.items()}
        other._lasting = {path: copied(file) for path, file in self._lasting.items()}
        other._changes = [change._replace(file=copied(change.file)) for change in self._changes]
        other._boot = self._boot
        return other

    def after_power_cut(self, random: Random, loss: Loss | None = None) -> SimulatedDisk:
        """Return the disk after a power loss. `loss` is the kind of loss, None for a random kind."""
        loss = loss or random.choice(list(Loss))
        other = SimulatedDisk(seed=random.randrange(1 << 30))
        names = self._names_left(loss, random)
        left: dict[int, SimulatedFile] = {}
        for path in sorted(names):
            if path.parent not in names:
                continue  # the file's folder was never on disk
            file = names[path]
            if file is not None and id(file) not in left:
                left[id(file)] = SimulatedFile(file.left(loss, random), frozenset(file.blocks))
            other._files[path] = None if file is None else left[id(file)]
        other._files = {path: file for path, file in other._files.items() if _is_reachable(path, other._files)}
        other._lasting = dict(other._files)
        other._boot = self._boot + 1
        return other

    def _names_left(self, loss: Loss, random: Random) -> dict[Path, SimulatedFile | None]:
        names = dict(self._lasting)
        kept = list(self._changes)
        if loss is Loss.ALL:
            kept = []
        elif loss is Loss.BACK:
            kept = kept[: random.randint(0, len(kept))]
        elif loss is Loss.ANY:
            kept = [change for change in kept if random.random() < 0.5]
        for change in kept:
            _apply(change, names)
        return names

    def write_back(self, random: Random) -> None:
        """Write some unflushed sectors to disk, as a kernel may do at any time."""
        for file in self._files.values():
            if file is not None and file.size == len(file.durable):
                durable = bytearray(file.durable)
                content = file.flushed()
                for at in file.unwritten():
                    if random.random() < 0.5:
                        durable[at : at + SECTOR] = content[at : at + SECTOR]
                file.durable = bytes(durable)

    def written_without_room(self) -> Path | None:
        """Return a mapped file that was written in a block that is not allocated; None if there is no such file.

        On a full disk such a write ends the process.
        """
        for path, file in self._files.items():
            if file is not None and path.name.isdecimal():
                for at in range(0, file.size, BLOCK):
                    if at // BLOCK not in file.blocks and any(file.content[at : at + BLOCK]):
                        return path
        return None

    def paths(self) -> list[Path]:
        """Return the paths of all files, sorted."""
        return sorted(path for path, file in self._files.items() if file is not None)

    # -- names

    def names(self, folder: Path) -> list[str]:
        return sorted(path.name for path in self._files if path.parent == folder and path != folder)

    def is_folder(self, path: Path) -> bool:
        return path in self._files and self._files[path] is None

    def size(self, path: Path) -> int | None:
        file = self._files.get(path)
        return None if file is None else file.size

    def changed_ms(self, path: Path) -> int:
        self._find(path)
        return 0

    def make_folder(self, folder: Path) -> None:
        for each in (*reversed(folder.parents), folder):
            if each not in self._files:
                self._begin("make_folder", each)
                self._change(_Change((each.parent,), each, None, None))

    def sync_folder(self, folder: Path) -> None:
        self._begin("sync_folder", folder)
        if not self.is_folder(folder):
            raise _error(errno.ENOENT, folder)
        waiting = []
        for change in self._changes:
            if folder in change.folders:
                _apply(change, self._lasting)
            else:
                waiting.append(change)
        self._changes = waiting

    def remove_folder(self, folder: Path) -> None:
        below = [path for path in self._files if folder in path.parents]
        for path in sorted(below, reverse=True):
            self._begin("remove", path)
            self._change(_Change((path.parent,), None, None, path))
        if folder in self._files:
            self._begin("remove", folder)
            self._change(_Change((folder.parent,), None, None, folder))

    def remove(self, path: Path) -> None:
        self._begin("remove", path)
        self._find(path)
        self._change(_Change((path.parent,), None, None, path))

    def replace(self, source: Path, target: Path) -> None:
        self._begin("replace", target)
        self._change(_Change((source.parent, target.parent), target, self._find(source), source))

    # -- content

    def open(self, path: Path, *, create: bool = False, write: bool = True) -> int:
        file = self._files.get(path)
        if write and self.is_read_only:
            raise _error(errno.EROFS, path)
        if file is None:
            if path in self._files:
                if not write:
                    return self._opened(path, SimulatedFile())
                raise _error(errno.EISDIR, path)
            if not create or not self.is_folder(path.parent):
                raise _error(errno.ENOENT, path)
            self._begin("create", path)
            file = SimulatedFile()
            self._change(_Change((path.parent,), path, file, None))
        return self._opened(path, file)

    def close(self, descriptor: int) -> None:
        self._open.pop(descriptor, None)
        self._locks.pop(descriptor, None)

    def is_at(self, descriptor: int, path: Path) -> bool:
        return self.is_folder(path) or self._files.get(path) is self._open[descriptor][1]

    def read(self, descriptor: int, size: int, position: int) -> bytes:
        file = self._open[descriptor][1]
        return bytes(file.content[position : min(position + size, file.size)])

    def write(self, descriptor: int, content: Content, position: int) -> int:
        path, file = self._open[descriptor]

        def part() -> None:
            self._put(file, bytes(content[: self._random.randint(0, len(content))]), position)

        self._begin("write", path, part)
        self._put(file, bytes(content), position)
        return len(content)

    def resize(self, descriptor: int, size: int) -> None:
        path, file = self._open[descriptor]
        self._begin("resize", path)
        file.resize(size)

    def allocate(self, descriptor: int, position: int, size: int) -> None:
        path, file = self._open[descriptor]
        self._begin("allocate", path)
        if position + size > file.size:
            file.resize(position + size)
        file.blocks.update(range(position // BLOCK, (position + size - 1) // BLOCK + 1))

    def clear(self, descriptor: int, position: int, end: int) -> None:
        path, file = self._open[descriptor]

        def part() -> None:
            middle = self._random.randint(position, max(position, end))
            file.content[position:middle] = bytes(middle - position)

        self._begin("clear", path, part)
        file.content[position:end] = bytes(max(0, end - position))

    def hole_behind(self, descriptor: int, position: int) -> int:
        file = self._open[descriptor][1]
        while position < file.size and position // BLOCK in file.blocks:
            position += BLOCK - position % BLOCK
        return min(position, file.size)

    def sync(self, descriptor: int) -> None:
        path, file = self._open[descriptor]
        self._begin("sync", path, lambda: self._neglect(file))
        content = file.flushed()
        self.while_syncing(path)
        file.durable = content

    def write_out(self, descriptor: int, position: int, size: int) -> None:
        self._begin("write_out", self._open[descriptor][0])  # a power loss may keep any part of the content

    def map(self, descriptor: int, size: int, *, scattered: bool, write: bool = True) -> memoryview:
        path, file = self._open[descriptor]
        self._begin("map", path)
        if file.size < size:
            raise _error(errno.EINVAL, path)
        file.is_mapped = True
        memory = memoryview(file.content)[:size]
        return memory if write else memory.toreadonly()

    def make_ready(
        self, descriptor: int, memory: memoryview, position: int, size: int, urgent: Content = b"\0"
    ) -> None:
        self.allocate(descriptor, position, size)  # the allocated bytes are zero

    def populate(self, memory: memoryview, position: int, size: int) -> bool:
        return True

    def is_resident(self, memory: memoryview, position: int, size: int) -> bool:
        return True

    def read_now(self, descriptor: int, size: int, position: int) -> bytes | None:
        content = self.read(descriptor, size, position)
        return content if len(content) == size else None

    def load(self, pages: Sequence[FilePiece]) -> None:
        """Do nothing: all content of a simulated disk is in memory."""

    def drop_pages(self, memory: memoryview, position: int, size: int) -> None:
        """Do nothing: a simulated file has no page cache."""

    def lock(self, descriptor: int) -> None:
        path, file = self._open[descriptor]
        if any(other is file for other in self._locks.values()):
            raise _error(errno.EAGAIN, path)
        self._locks[descriptor] = file

    def lock_holder(self, descriptor: int) -> int:
        return 0

    def boot_id(self) -> str:
        return f"boot-{self._boot}"

    # -- internal

    def _begin(self, kind: str, path: Path, part: Callable[[], None] = lambda: None) -> None:
        """Count an operation. An operation that fails, or is killed, has done a `part` of its work."""
        if self.is_killed:
            raise Killed
        self.operations += 1
        if self.operations == self.kill_at:
            if kind != "sync":
                part()
            raise self.kill()
        if (number := self.refuse(kind, path)) is not None:
            part()
            raise _error(number, path)

    def _opened(self, path: Path, file: SimulatedFile) -> int:
        self._next_descriptor += 1
        self._open[self._next_descriptor] = (path, file)
        return self._next_descriptor

    def _find(self, path: Path) -> SimulatedFile:
        file = self._files.get(path)
        if file is None:
            raise _error(errno.EISDIR if path in self._files else errno.ENOENT, path)
        return file

    def _change(self, change: _Change) -> None:
        self._changes.append(change)
        _apply(change, self._files)

    def _put(self, file: SimulatedFile, content: bytes, position: int) -> None:
        end = position + len(content)
        if end > file.size:
            file.resize(end)
        file.content[position:end] = content
        for at in range(position - position % SECTOR, end, SECTOR):
            file.neglected.pop(at, None)  # the sector was written again, so the next flush includes the sector
        file.blocks.update(range(position // BLOCK, max(0, end - 1) // BLOCK + 1))

    def _neglect(self, file: SimulatedFile) -> None:
        """Fail a flush: some sectors are on disk, and the other sectors count as flushed from now on."""
        durable = bytearray(file.durable.ljust(file.size, b"\0"))[: file.size]
        for at in file.unwritten():
            content = bytes(file.content[at : min(at + SECTOR, file.size)])
            if self._random.random() < 0.5:
                file.neglected[at] = content
            else:
                durable[at : at + len(content)] = content
        file.durable = bytes(durable)


def _apply(change: _Change, names: dict[Path, SimulatedFile | None]) -> None:
    if change.taken is not None:
        names.pop(change.taken, None)
    if change.given is not None:
        names[change.given] = change.file


def _is_reachable(path: Path, names: dict[Path, SimulatedFile | None]) -> bool:
    return all(parent in names for parent in path.parents)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


class Loss(Enum):
    """The part of the unflushed bytes that a power loss takes."""

    ALL = auto()
    NOTHING = auto()
    BACK = auto()  # the latter part of each file and of the changes of names
    ANY = auto()  # each sector and each name, by chance


class SimulatedFile:
    """A file of the simulated disk.

    `content` may be longer than the file, with zeros after `size`. `durable` is the content on disk.
    """

    __slots__ = ("blocks", "content", "durable", "is_mapped", "neglected", "size")

    def __init__(self, content: bytes = b"", blocks: frozenset[int] = frozenset()) -> None:
        self.content = bytearray(content)
        self.size = len(content)
        self.is_mapped = False  # the kernel may write a mapped file in the middle of a change
        self.durable = bytes(content)
        self.neglected: dict[int, bytes] = {}  # sectors that count as flushed although their write failed
        self.blocks = set(blocks)  # blocks that the file system has allocated

    def resize(self, size: int) -> None:
        self.content[size : self.size] = bytes(max(0, self.size - size))
        if size > len(self.content):
            # A new object, so that views of the old content stay valid.
            self.content = self.content + bytes(size - len(self.content))
        self.size = size

    def unwritten(self) -> list[int]:
        """Return the positions of the sectors that differ from those on disk."""
        now, then = self.content, self.durable
        if now == then:
            return []
        return [
            at for at in range(0, self.size, SECTOR) if now[at : min(at + SECTOR, self.size)] != then[at : at + SECTOR]
        ]

    def flushed(self) -> bytes:
        """Return the content on disk after a flush at this moment."""
        content = bytearray(self.content[: self.size])
        for at, neglected in self.neglected.items():
            if content[at : at + SECTOR] == neglected:
                content[at : at + SECTOR] = self.durable[at : at + SECTOR].ljust(len(neglected), b"\0")
        return bytes(content)

    def left(self, loss: Loss, random: Random) -> bytes:
        """Return the content on disk after a power loss."""
        new = self.flushed()
        old = self.durable
        if loss is Loss.ALL or new == old:
            return old
        if loss is Loss.NOTHING:
            return new
        size = len(new) if random.random() < 0.5 else len(old)
        content = bytearray(old[:size].ljust(size, b"\0"))
        changed = [at for at in self.unwritten() if at < size]
        if loss is Loss.BACK:
            kept = changed[: random.randint(0, len(changed))]
        else:
            share = random.random()
            kept = [at for at in changed if random.random() < share]
        for at in kept:
            end = min(at + SECTOR, size)
            is_tail = at == kept[-1] and not any(old[end:])
            if loss is Loss.BACK and is_tail and self.is_mapped and random.random() < _TORN:
                end = random.randint(at, end)
            content[at:end] = new[at:end].ljust(end - at, b"\0")
        return bytes(content)
