"""Bytes in consecutive files of equal size, addressed by one offset. This module does not know records."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.slow_work import FilePiece, NotInMemory, PagesToLoad
from pyromq.store.disk import LOCAL_DISK, Content, Disk, make_durable_folder, opened, rewrite

logger = logger_of(__name__)

_NAME_DIGITS = 20


def file_name(base: int) -> str:
    """Return the name of the file that begins at offset `base`."""
    return f"{base:0{_NAME_DIGITS}}"


def is_file_name(name: str) -> bool:
    return len(name) == _NAME_DIGITS and name.isdecimal()


class Segment:
    """One file of fixed size, mapped into memory at first use.

    `size` is the file's size in bytes; `base` is the offset of the file's first byte in the log. `scattered` is for
    files with small writes at many places. Without it, the first write to a hole takes milliseconds: the file system
    allocates and clears up to 2 MiB. `levels` is the number of folders created with the file. `is_fresh` means that a
    power loss may remove the names of the file and of these folders.

    `delete` unlinks the file immediately. The memory stays mapped as long as this object or a view exists.
    """

    __slots__ = ("_disk", "_levels", "_memory", "base", "is_fresh", "path", "scattered", "size")

    def __init__(
        self,
        path: Path,
        size: int,
        base: int = 0,
        *,
        scattered: bool = False,
        levels: int = 2,
        disk: Disk = LOCAL_DISK,
    ) -> None:
        self.path = path
        self.size = size
        self.base = base
        self.scattered = scattered
        self.is_fresh = False
        self._levels = levels
        self._disk = disk
        self._memory: memoryview | None = None

    @property
    def memory(self) -> memoryview:
        """The mapped file; a read-only view if the file system refuses writes."""
        if self._memory is None:
            try:
                self._memory = self._mapped(write=True)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
                self._memory = self._mapped(write=False)  # a read-only file system can still be read
        return self._memory

    def _mapped(self, *, write: bool) -> memoryview:
        with opened(self._disk, self.path, write=write) as descriptor:
            try:
                return self._disk.map(descriptor, self.size, scattered=self.scattered, write=write)
            except OSError as error:
                error.filename = str(self.path)
                raise

    def written(self, start: int) -> memoryview:
        """Return the mapped file up to the first hole (unallocated range) after file position `start`.

        Reading a hole of a mapped file allocates a page, which kills the process if the disk is full.
        """
        with opened(self._disk, self.path, write=False) as descriptor:
            return self.memory[: self._disk.hole_behind(descriptor, start)]

    @property
    def is_mapped(self) -> bool:
        return self._memory is not None

    def changed_ms(self) -> int:
        """Return the modification time of the file in ms since 1970. Raises `OSError`."""
        return self._disk.changed_ms(self.path)

    def create(self) -> None:
        """Create the file: sparse, all zeros. Until a flush of the folder, a power loss may remove the file."""
        self.is_fresh = True
        with opened(self._disk, self.path, create=True) as descriptor:
            self._disk.resize(descriptor, self.size)

    def sync(self) -> None:
        """Flush the file to disk; blocks. Does nothing if the file is deleted."""
        with contextlib.suppress(FileNotFoundError), opened(self._disk, self.path) as descriptor:
            self._disk.sync(descriptor)

    def write_out(self, start: int, end: int) -> None:
        """Start writing the bytes from log offset `start` to `end` to disk, in small steps.

        A following `sync` then takes less time. Prepared bytes after `end` are left out, as they would be written
        twice. The kernel write-protects written pages, so each would cost the next append a page fault.
        """
        position, size = max(start - self.base, 0), min(end - self.base, self.size)
        with contextlib.suppress(FileNotFoundError), opened(self._disk, self.path) as descriptor:
            self._disk.write_out(descriptor, position, size - position)

    def allocate(self, start: int, end: int) -> None:
        """Allocate disk space for file positions `start` to `end`. Raises `OSError`."""
        with opened(self._disk, self.path) as descriptor:
            self._disk.allocate(descriptor, start, min(end, self.size) - start)

    def prepare(self, start: int, end: int) -> None:
        """Allocate disk space and writable pages for file positions `start` to `end`. Raises `OSError`.

        Allocated space alone is not enough: a file system may need more space at the first write to a page. If the disk
        is full then, the process is killed. Takes up to 1 ms per MiB, so a large range must be prepared in a thread.
        """
        end = min(end, self.size)
        if start < end:
            self.allocate(start, end)
            self._disk.populate(self.memory, start, end - start)

    def prepare_unwritten(self, start: int, end: int, urgent: Content = b"\0") -> None:
        """Prepare as `prepare` does, with pauses while byte 0 of `urgent` is 0.

        The file positions must never have been written, nor be written meanwhile. The processor time per GiB is 0.3 s
        for pages that are written first and mapped afterwards, and 1 to 2 s for pages mapped first. This was measured
        on a virtual machine whose host allocates memory on demand.
        """
        end = min(end, self.size)
        if start < end:
            with opened(self._disk, self.path) as descriptor:
                self._disk.make_ready(descriptor, self.memory, start, end - start, urgent)

    def read(self, pieces: Iterable[tuple[int, int]], *, wait: bool = True) -> list[bytes]:
        """Return copies of ranges of the file; each piece is a file position and a size in bytes.

        Maps no pages, unlike views. Without `wait`, raises `NotInMemory` if a piece must be read from the disk.
        """
        with opened(self._disk, self.path, write=False) as descriptor:
            if wait:
                return [self._disk.read(descriptor, size, position) for position, size in pieces]
            asked = list(pieces)
            found = [self._disk.read_now(descriptor, size, position) for position, size in asked]
        resident = [content for content in found if content is not None]
        if len(resident) < len(found):
            missing = (piece for piece, content in zip(asked, found, strict=True) if content is None)
            raise NotInMemory([FilePiece(self.path, position, size) for position, size in missing])
        return resident

    def to_load(self, start: int, end: int) -> PagesToLoad:
        """Return the part of the file from position `start` to `end` as a piece to load; [] if the part is resident."""
        start, end = max(start, 0), min(end, self.size)
        is_resident = self._disk.is_resident(self.memory, start, end - start)
        return [] if is_resident else [FilePiece(self.path, start, end - start, self.memory)]

    def drop_pages(self, start: int, end: int) -> None:
        """Unmap the pages of a range of file positions that is rarely read. The next read maps the pages again."""
        memory = self._memory
        if memory is not None:
            self._disk.drop_pages(memory, start, min(end, self.size) - start)

    def clear_from(self, position: int) -> None:
        """Fill the file with zeros from file position `position` to the end."""
        with opened(self._disk, self.path) as descriptor:
            self._disk.clear(descriptor, position, self.size)

    def rewrite(self, start: int, end: int) -> None:
        """Make the next `sync` write a range of log offsets, which after a crash may be missing on the disk."""
        rewrite(self._disk, self.path, max(start - self.base, 0), min(end - self.base, self.size))

    def release(self) -> None:
        """Unmap the file. The next use maps the file again."""
        self._memory = None

    def delete(self) -> None:
        """Delete the file durably: a power loss does not restore the file. A missing file is not an error."""
        with contextlib.suppress(FileNotFoundError):  # the file was deleted earlier, perhaps with its folder
            self._disk.remove(self.path)
            self._disk.sync_folder(self.path.parent)

    def take_folders(self) -> list[Path]:
        """Return the folders that must be synced to make the file's name durable. The next call returns []."""
        if not self.is_fresh:
            return []
        self.is_fresh = False
        return self.folders

    @property
    def folders(self) -> list[Path]:
        """The folders created with the file, the innermost folder first."""
        return list(self.path.parents[: self._levels])


def sync_all(segments: Iterable[Segment], disk: Disk, *, between: Callable[[], None] = lambda: None) -> None:
    """Flush the files and their names to disk; blocks. `between` is called before each flush."""
    folders: dict[Path, None] = {}
    for segment in segments:
        between()
        segment.sync()
        folders.update(dict.fromkeys(segment.take_folders()))
    sync_folders(folders, disk, between=between)


def sync_folders(folders: Iterable[Path], disk: Disk, *, between: Callable[[], None] = lambda: None) -> None:
    for folder in folders:
        between()
        with contextlib.suppress(FileNotFoundError):  # the folder was deleted meanwhile
            disk.sync_folder(folder)


class SegmentedLog:
    """The files of a log in one folder; a file's name is the offset of its first byte.

    Creating the first file creates the folder. `setting` is the name of the file size option in error texts. The other
    parameters are passed to each `Segment`.
    """

    __slots__ = (
        "_disk",
        "_is_folder_durable",
        "_levels",
        "_scattered",
        "folder",
        "segment_bytes",
        "segments",
        "setting",
    )

    def __init__(
        self,
        folder: Path,
        segment_bytes: int,
        setting: str,
        *,
        scattered: bool = False,
        levels: int = 2,
        disk: Disk = LOCAL_DISK,
    ) -> None:
        self.folder = folder
        self.segment_bytes = segment_bytes
        self.setting = setting
        self._scattered = scattered
        self._levels = levels
        self._disk = disk
        self._is_folder_durable = False  # True once this process has flushed the names of the log's folders
        self.segments: list[Segment] = []

    def load(self, *, remade: bool = False) -> bool:
        """Find the files of the log. Raises `StoreCorrupt` with the name of a file that is missing or has another size.

        `remade` is for a log that recovery rebuilds after a crash: files after an empty or missing file are deleted.
        Return False if a file was missing, so that the number of lost bytes is unknown; otherwise True.
        """
        self.segments = []
        for name in self._disk.names(self.folder):
            if is_file_name(name):
                self.segments.append(self._segment(int(name)))
            else:
                logger.warning("%s is not a file of the store and is ignored", self.folder / name)
        self._remove_unfinished()
        is_complete = not remade or self._drop_after_gap()
        self._check_sizes()
        self._check_order()
        return is_complete

    def read_only_file(self, pieces: Sequence[tuple[int, int]]) -> list[bytes] | None:
        """Take the file at offset 0 as the only file of the log, and return ranges of the file as `Segment.read` does.

        Return None, with nothing loaded, if the file is missing or has another size.
        """
        segment = self._segment(0)
        if self._disk.size(segment.path) != self.segment_bytes:
            return None
        found = segment.read(pieces)
        self.segments = [segment]
        return found

    def _drop_after_gap(self) -> bool:
        for number, segment in enumerate(self.segments):
            is_missing = number > 0 and segment.base != self.segments[number - 1].base + self.segment_bytes
            if is_missing or self._disk.size(segment.path) == 0:
                while len(self.segments) > number:
                    self.segments.pop().delete()
                return not is_missing
        return True

    def _remove_unfinished(self) -> None:
        # A crash between creation and resizing of a file leaves an empty file, always the last file.
        if self.segments and self._disk.size(self.segments[-1].path) == 0:
            self.segments.pop().delete()

    def _check_sizes(self) -> None:
        for segment in self.segments:
            size = self._disk.size(segment.path)
            if size != self.segment_bytes:
                raise StoreCorrupt(
                    f"{segment.path} has {size} bytes, expected {self.segment_bytes}: {self._advice_on_size(size)}"
                )

    def _advice_on_size(self, size: int | None) -> str:
        sizes = {self._disk.size(segment.path) for segment in self.segments}
        distances = {
            later.base - earlier.base for earlier, later in zip(self.segments, self.segments[1:], strict=False)
        }
        if sizes == distances == {size}:
            return f"all files have this size: set {self.setting} to {size}"
        return (
            f"open the store with the {self.setting} of its creation; if the file was cut short, restore it from a"
            " backup, or run `pyromq store repair`, which keeps the remaining records"
        )

    def _check_order(self) -> None:
        for earlier, later in zip(self.segments, self.segments[1:], strict=False):
            if later.base != earlier.base + self.segment_bytes:
                raise StoreCorrupt(
                    f"{self.folder} lacks file {file_name(earlier.base + self.segment_bytes)}: restore it, or"
                    f" open the store with the {self.setting} of its creation (now {self.segment_bytes} bytes a file),"
                    " or run `pyromq store repair`, which keeps the remaining records"
                )

    @property
    def base(self) -> int:
        """Offset of the first byte of the log; 0 without files."""
        return self.segments[0].base if self.segments else 0

    @property
    def capacity_end(self) -> int:
        """Offset after the last byte of the last file; 0 without files."""
        return self.segments[-1].base + self.segment_bytes if self.segments else 0

    def find(self, offset: int) -> Segment | None:
        """Return the file that holds the byte at `offset`; None if no file holds that byte."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].base) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the files that hold bytes from offset `start` up to, not including, `end`. Thread-safe."""
        return [
            segment for segment in list(self.segments) if segment.base < end and segment.base + segment.size > start
        ]

    def fresh(self) -> list[Segment]:
        """Return a list of the last file if its name may not be on disk; otherwise [].

        Names of earlier files are on disk.
        """
        return [segment for segment in self.segments[-1:] if segment.is_fresh]

    def create(self, base: int) -> Segment:
        """Create the file that begins at offset `base`. The caller must then pass the file to `add`. Thread-safe."""
        self._disk.make_folder(self.folder)
        segment = self._segment(base)
        segment.create()
        return segment

    def create_durable(self, base: int) -> Segment:
        """Create the file that begins at offset `base` and flush its name.

        A power loss then leaves no gap before later files. Blocks. Raises `OSError` and deletes the file if a flush
        fails.
        """
        if not self._is_folder_durable:
            make_durable_folder(self._disk, self.folder)
            self._is_folder_durable = True
        segment = self.create(base)
        try:
            segment.sync()
            self._disk.sync_folder(self.folder)
            segment.is_fresh = False
        except OSError:
            with contextlib.suppress(OSError):
                # The next attempt needs a new file: the kernel may report this file as flushed although it is not.
                segment.delete()
            raise
        return segment

    def path_of(self, base: int) -> Path:
        """Return the path of the file that begins at offset `base`. The file need not exist."""
        return self.folder / file_name(base)

    def _segment(self, base: int) -> Segment:
        path = self.path_of(base)
        return Segment(path, self.segment_bytes, base, scattered=self._scattered, levels=self._levels, disk=self._disk)

    def add(self, segment: Segment) -> None:
        assert not self.segments or segment.base == self.capacity_end  # `find` needs files without gaps
        for full in self.segments[-1:]:
            full.drop_pages(0, full.size)
        self.segments.append(segment)

    def drop_pages_before(self, offset: int) -> None:
        """Unmap the pages of all bytes before `offset`. The next read maps the pages again. Thread-safe."""
        for segment in self.between(0, offset):
            segment.drop_pages(0, offset - segment.base)

    def drop_first(self) -> Segment:
        """Remove the oldest file from the log and return the file, which the caller must delete.

        Views of the file stay valid.
        """
        return self.segments.pop(0)

    def mark_dirty(self, start: int, end: int) -> None:
        """Make the next flush write the bytes from offset `start` to `end` and the names of their files.

        Used after a crash, when these bytes may be missing on the disk.
        """
        for segment in self.between(start, end):
            segment.rewrite(start, end)
            segment.is_fresh = True

    def cut(self, offset: int) -> None:
        """Truncate the log at `offset`: delete later files, and fill the file of `offset` with zeros from there."""
        while self.segments and self.segments[-1].base > offset:
            self.segments.pop().delete()
        if self.segments and offset < self.capacity_end:
            self.segments[-1].clear_from(offset - self.segments[-1].base)

    def release(self) -> None:
        """Unmap all files of the log. The next use of a file maps the file again."""
        for segment in self.segments:
            segment.release()

    def delete(self) -> None:
        """Delete all files of the log. Views of the files stay valid."""
        while self.segments:
            self.segments.pop().delete()
