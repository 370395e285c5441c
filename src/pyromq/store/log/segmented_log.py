"""Bytes in consecutive files of equal size, addressed by one offset. Knows no records."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.slow_work import FilePiece, NotInMemory, PagesToLoad
from pyromq.store.disk import LOCAL_DISK, Disk, make_lasting_folder, opened, rewrite

logger = logger_of(__name__)

_NAME_DIGITS = 20


class Segment:
    """One file of fixed size, mapped into memory at first use.

    `size` is in bytes; `base` is the offset of its first byte in the log that the file is part of.
    `scattered` is for files with small writes at many places: otherwise the first write to a hole takes milliseconds,
    as the file system allocates and clears up to 2 MiB. `levels` is the number of folders created with the file;
    `is_fresh` means that a power loss may remove the names of file and folders.

    A deleted segment is unlinked at once. It stays mapped as long as this object or a view exists.
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
        """The mapped file; read-only if the file system refuses writes."""
        if self._memory is None:
            try:
                self._memory = self._mapped(write=True)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
                self._memory = self._mapped(write=False)  # a file system that became read-only can still be read
        return self._memory

    def _mapped(self, *, write: bool) -> memoryview:
        with opened(self._disk, self.path, write=write) as descriptor:
            try:
                return self._disk.map(descriptor, self.size, scattered=self.scattered, write=write)
            except OSError as error:
                error.filename = str(self.path)
                raise

    def written(self, start: int) -> memoryview:
        """Return the mapped file up to the first hole after `start`.

        Reading a hole of a mapped file allocates a page: without free space that kills the process.
        """
        with opened(self._disk, self.path, write=False) as descriptor:
            return self.memory[: self._disk.hole_behind(descriptor, start)]

    @property
    def is_mapped(self) -> bool:
        return self._memory is not None

    def changed_ms(self) -> int:
        """Return the file's modification time. Raises `OSError`."""
        return self._disk.changed_ms(self.path)

    def create(self) -> None:
        """Create the file: sparse, all zeros."""
        self.is_fresh = True
        with opened(self._disk, self.path, create=True) as descriptor:
            self._disk.resize(descriptor, self.size)

    def sync(self) -> None:
        """Flush the file; blocks. Does nothing if the file is deleted."""
        with contextlib.suppress(FileNotFoundError), opened(self._disk, self.path) as descriptor:
            self._disk.sync(descriptor)

    def write_out(self, start: int) -> None:
        """Start writing the bytes from log offset `start` to disk, in small steps, before `sync`."""
        position = max(start - self.base, 0)
        with contextlib.suppress(FileNotFoundError), opened(self._disk, self.path) as descriptor:
            self._disk.write_out(descriptor, position, self.size - position)

    def allocate(self, start: int, end: int) -> None:
        """Allocate disk space for a range of file positions. Raises `OSError`."""
        with opened(self._disk, self.path) as descriptor:
            self._disk.allocate(descriptor, start, min(end, self.size) - start)

    def prepare(self, start: int, end: int) -> None:
        """Allocate disk space and writable pages for a range of file positions. Raises `OSError`.

        Allocated space is not enough: a file system may need more at the first write to a page, and the process is
        killed if there is none. Takes up to 1 ms per MiB: large ranges belong in a thread.
        """
        end = min(end, self.size)
        if start < end:
            self.allocate(start, end)
            self._disk.populate(self.memory, start, end - start)

    def prepare_unwritten(self, start: int, end: int) -> None:
        """Do the work of `prepare`, with pauses, for a range that nothing was or is written to.

        Pages that are written and then mapped took 0.3 s of processor time per GiB, on a virtual machine whose host
        allocates memory on demand. Pages that are mapped first took 1 to 2 s.
        """
        end = min(end, self.size)
        if start < end:
            with opened(self._disk, self.path) as descriptor:
                self._disk.make_ready(descriptor, self.memory, start, end - start)

    def read(self, pieces: Iterable[tuple[int, int]], *, wait: bool = True) -> list[bytes]:
        """Return copies of pieces of the file, given as position and size. Unlike views, they map no pages.

        Without `wait`, raises `NotInMemory` if a piece must be read from the disk.
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
        """Return a range of file positions, clipped to the file, if it is not resident."""
        start, end = max(start, 0), min(end, self.size)
        is_resident = self._disk.is_resident(self.memory, start, end - start)
        return [] if is_resident else [FilePiece(self.path, start, end - start, self.memory)]

    def drop_pages(self, start: int, end: int) -> None:
        """Unmap the pages of a range that is rarely read; the next read maps them again."""
        memory = self._memory
        if memory is not None:
            self._disk.drop_pages(memory, start, min(end, self.size) - start)

    def clear_from(self, position: int) -> None:
        """Fill the file with zeros from `position` on."""
        with opened(self._disk, self.path) as descriptor:
            self._disk.clear(descriptor, position, self.size)

    def rewrite(self, start: int, end: int) -> None:
        """Make the next `sync` write a range of log offsets: after a crash it may not be on disk."""
        rewrite(self._disk, self.path, max(start - self.base, 0), min(end - self.base, self.size))

    def release(self) -> None:
        """Unmap the file; the next use maps it again."""
        self._memory = None

    def delete(self) -> None:
        """Delete the file durably: it does not come back after a power loss."""
        with contextlib.suppress(FileNotFoundError):  # deleted before, perhaps with its folder
            self._disk.remove(self.path)
            self._disk.sync_folder(self.path.parent)

    def take_folders(self) -> list[Path]:
        """Return the folders to sync so that the file's name is durable; [] at the next call."""
        if not self.is_fresh:
            return []
        self.is_fresh = False
        return self.folders

    @property
    def folders(self) -> list[Path]:
        """The folders created with the file, its own first."""
        return list(self.path.parents[: self._levels])


def sync_all(segments: Iterable[Segment], disk: Disk, *, between: Callable[[], None] = lambda: None) -> None:
    """Flush files and their names; `between` is called before each flush."""
    folders: dict[Path, None] = {}
    for segment in segments:
        between()
        segment.sync()
        folders.update(dict.fromkeys(segment.take_folders()))
    sync_folders(folders, disk, between=between)


def sync_folders(folders: Iterable[Path], disk: Disk, *, between: Callable[[], None] = lambda: None) -> None:
    for folder in folders:
        between()
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile
            disk.sync_folder(folder)


class SegmentedLog:
    """Files of a folder, named by the offset of their first byte. The first file creates the folder.

    `setting` is the name of the file size in error texts; other parameters are those of `Segment`.
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
        self._is_folder_durable = False  # whether this process has flushed the names of the folders
        self.segments: list[Segment] = []

    def load(self, *, remade: bool = False) -> bool:
        """Find the files. Raises `StoreCorrupt` with the file that is missing or has another size.

        `remade` is for a log that recovery rebuilds after a crash: files after an empty or missing one are deleted.
        Return False if a file was missing: the amount of lost bytes is then unknown.
        """
        self.segments = []
        for name in self._disk.names(self.folder):
            if len(name) == _NAME_DIGITS and name.isdecimal():
                self.segments.append(self._segment(int(name)))
            else:
                logger.warning("%s is no file of the store and is ignored", self.folder / name)
        self._remove_unfinished()
        is_complete = not remade or self._drop_after_gap()
        self._check_sizes()
        self._check_order()
        return is_complete

    def _drop_after_gap(self) -> bool:
        for number, segment in enumerate(self.segments):
            is_missing = number > 0 and segment.base != self.segments[number - 1].base + self.segment_bytes
            if is_missing or self._disk.size(segment.path) == 0:
                while len(self.segments) > number:
                    self.segments.pop().delete()
                return not is_missing
        return True

    def _remove_unfinished(self) -> None:
        # A crash between creation and resizing of a file leaves an empty one, always the last.
        if self.segments and self._disk.size(self.segments[-1].path) == 0:
            self.segments.pop().delete()

    def _check_sizes(self) -> None:
        for segment in self.segments:
            size = self._disk.size(segment.path)
            if size != self.segment_bytes:
                raise StoreCorrupt(
                    f"{segment.path} has {size} bytes, expected {self.segment_bytes}: open the store with the"
                    f" {self.setting} it was made with; if the file was cut short, restore it from a backup, or let"
                    " `pyromq store repair` keep what is left"
                )

    def _check_order(self) -> None:
        for earlier, later in zip(self.segments, self.segments[1:], strict=False):
            if later.base != earlier.base + self.segment_bytes:
                raise StoreCorrupt(
                    f"{self.folder} lacks file {earlier.base + self.segment_bytes:0{_NAME_DIGITS}}: restore it, or"
                    f" open the store with the {self.setting} it was made with (now {self.segment_bytes} bytes a file),"
                    " or let `pyromq store repair` keep what is left"
                )

    @property
    def base(self) -> int:
        """Offset of the first byte; 0 without files."""
        return self.segments[0].base if self.segments else 0

    @property
    def capacity_end(self) -> int:
        """Offset after the last file."""
        return self.segments[-1].base + self.segment_bytes if self.segments else 0

    def find(self, offset: int) -> Segment | None:
        """Return the file that holds the byte at `offset`; None if there is none."""
        segments = self.segments
        if not segments:
            return None
        index = (offset - segments[0].base) // self.segment_bytes
        return segments[index] if 0 <= index < len(segments) else None

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the files that hold bytes of `[start, end)`. Thread-safe."""
        return [
            segment for segment in list(self.segments) if segment.base < end and segment.base + segment.size > start
        ]

    def fresh(self) -> list[Segment]:
        """Return the last file if its name may not be on disk. Names of earlier files are."""
        return [segment for segment in self.segments[-1:] if segment.is_fresh]

    def create(self, base: int) -> Segment:
        """Create the file at `base`; `add` must be called for it. Thread-safe."""
        self._disk.make_folder(self.folder)
        segment = self._segment(base)
        segment.create()
        return segment

    def create_lasting(self, base: int) -> Segment:
        """Create the file at `base` durably: after a power loss no later file may exist without it."""
        if not self._is_folder_durable:
            make_lasting_folder(self._disk, self.folder)
            self._is_folder_durable = True
        segment = self.create(base)
        try:
            segment.sync()
            self._disk.sync_folder(self.folder)
            segment.is_fresh = False
        except OSError:
            with contextlib.suppress(OSError):
                segment.delete()  # the next attempt needs a new file: this one may seem flushed without being so
            raise
        return segment

    def path_of(self, base: int) -> Path:
        """Return the path of the file at `base`, which need not exist."""
        return self.folder / f"{base:0{_NAME_DIGITS}}"

    def _segment(self, base: int) -> Segment:
        path = self.path_of(base)
        return Segment(path, self.segment_bytes, base, scattered=self._scattered, levels=self._levels, disk=self._disk)

    def add(self, segment: Segment) -> None:
        assert not self.segments or segment.base == self.capacity_end  # `find` computes positions
        for full in self.segments[-1:]:
            full.drop_pages(0, full.size)
        self.segments.append(segment)

    def drop_pages_before(self, offset: int) -> None:
        """Unmap the pages before `offset`. Thread-safe."""
        for segment in self.between(0, offset):
            segment.drop_pages(0, offset - segment.base)

    def drop_first(self) -> Segment:
        """Remove the oldest file from the log and return it; the caller must delete it. Views of it stay valid."""
        return self.segments.pop(0)

    def mark_dirty(self, start: int, end: int) -> None:
        """Make the next flush write `[start, end)` and its file names: after a crash they may not be on disk."""
        for segment in self.between(start, end):
            segment.rewrite(start, end)
            segment.is_fresh = True

    def cut(self, offset: int) -> None:
        """Truncate at `offset`: delete later files and fill the rest of its own with zeros."""
        while self.segments and self.segments[-1].base > offset:
            self.segments.pop().delete()
        if self.segments and offset < self.capacity_end:
            self.segments[-1].clear_from(offset - self.segments[-1].base)

    def release(self) -> None:
        """Unmap all files; the next use maps them again."""
        for segment in self.segments:
            segment.release()

    def delete(self) -> None:
        """Delete all files. Views of them stay valid."""
        while self.segments:
            self.segments.pop().delete()
