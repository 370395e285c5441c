"""One file of fixed size, mapped into memory when first used; it knows no records."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Iterable
from pathlib import Path

from pyromq.store.disk import LOCAL_DISK, Disk, rewrite
from pyromq.store.looking import FilePiece, NotInMemory, Unread


class Segment:
    """`size` is in bytes; `base` is the offset of the first byte in the whole that the file is part of.

    `scattered` is for files that are written a little here, a little there: else the first touch of a hole takes
    milliseconds, since the file system then makes and clears up to 2 MiB at once. `levels`: how many of the folders
    above the file came with it; `is_fresh`: a power cut may take their names and the file's.

    A dropped segment is unlinked at once and stays mapped until the last view of it is gone.
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
        """The mapped file, to write into and to take views of; for reading only where writing is refused."""
        if self._memory is None:
            try:
                self._memory = self._mapped(write=True)
            except OSError as error:
                if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
                    raise
                self._memory = self._mapped(write=False)  # a file system turned read-only: reading goes on
        return self._memory

    def _mapped(self, *, write: bool) -> memoryview:
        descriptor = self._disk.open(self.path, write=write)
        try:
            return self._disk.map(descriptor, self.size, scattered=self.scattered, write=write)
        except OSError as error:
            error.filename = str(self.path)
            raise
        finally:
            self._disk.close(descriptor)

    def written(self, start: int) -> memoryview:
        """Return the mapped file up to the first hole behind `start`: of what else nothing is known.

        Reading a hole of a file in memory takes a page, and without room it ends the process.
        """
        descriptor = self._disk.open(self.path, write=False)
        try:
            return self.memory[: self._disk.hole_behind(descriptor, start)]
        finally:
            self._disk.close(descriptor)

    @property
    def is_mapped(self) -> bool:
        return self._memory is not None

    def changed_ms(self) -> int:
        """When the file was written last, by its file system. Raises `OSError`."""
        return self._disk.changed_ms(self.path)

    def create(self) -> None:
        """Make the file: sparse, all zeros."""
        self.is_fresh = True
        descriptor = self._disk.open(self.path, create=True)
        try:
            self._disk.resize(descriptor, self.size)
        finally:
            self._disk.close(descriptor)

    def sync(self) -> None:
        """Wait until what was written is on disk. Called by the flusher's thread; a dropped file needs no flush."""
        try:
            descriptor = self._disk.open(self.path)
        except FileNotFoundError:
            return
        try:
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)

    def write_out(self, start: int) -> None:
        """Begin to write to disk what lies behind `start` (offset of the whole), a little at a time, before `sync`."""
        try:
            descriptor = self._disk.open(self.path)
        except FileNotFoundError:
            return
        try:
            position = max(start - self.base, 0)
            self._disk.write_out(descriptor, position, self.size - position)
        finally:
            self._disk.close(descriptor)

    def allocate(self, start: int, end: int) -> None:
        """Have room on disk for a stretch (positions in the file). Raises `OSError`."""
        descriptor = self._disk.open(self.path)
        try:
            self._disk.allocate(descriptor, start, min(end, self.size) - start)
        finally:
            self._disk.close(descriptor)

    def prepare(self, start: int, end: int) -> None:
        """Have room on disk and pages in memory for a stretch (positions in the file). Raises `OSError`.

        Room alone is not enough: a file system may need more of it when a page is first written, and where it has none
        that ends the process. Takes up to a millisecond per MiB, so large stretches are for a helper's thread.
        """
        end = min(end, self.size)
        if start < end:
            self.allocate(start, end)
            self._disk.populate(self.memory, start, end - start)

    def prepare_unwritten(self, start: int, end: int) -> None:
        """As `prepare`, for a stretch in which nothing was written yet, not even by others at this moment; with pauses.

        Pages that are written first and mapped then took 0.3 s of processor time a GiB on a virtual machine whose host
        gives memory as it is touched; mapped first, they took 1 to 2 s.
        """
        end = min(end, self.size)
        if start < end:
            descriptor = self._disk.open(self.path)
            try:
                self._disk.make_ready(descriptor, self.memory, start, end - start)
            finally:
                self._disk.close(descriptor)

    def read(self, pieces: Iterable[tuple[int, int]], *, wait: bool = True) -> list[bytes]:
        """Return pieces of the file (positions and sizes); unlike views they leave no pages in memory behind.

        Raises `NotInMemory` instead of waiting for the disk if that is not wanted.
        """
        descriptor = self._disk.open(self.path, write=False)
        try:
            if wait:
                return [self._disk.read(descriptor, size, position) for position, size in pieces]
            asked = list(pieces)
            found = [self._disk.read_now(descriptor, size, position) for position, size in asked]
        finally:
            self._disk.close(descriptor)
        there = [content for content in found if content is not None]
        if len(there) < len(found):
            lacking = (piece for piece, content in zip(asked, found, strict=True) if content is None)
            raise NotInMemory([FilePiece(self.path, position, size) for position, size in lacking])
        return there

    def unread(self, stretch: memoryview) -> Unread:
        """Return a view of the mapped file if it has to come from the disk before it is touched."""
        return [] if self._disk.is_loaded([stretch]) else [stretch]

    def forget(self, start: int, end: int) -> None:
        """Keep no pages in memory of a stretch that is hardly read any more; whoever reads it gets them back."""
        memory = self._memory
        if memory is not None:
            self._disk.forget(memory, start, min(end, self.size) - start)

    def clear_from(self, position: int) -> None:
        """Make everything from `position` on zero."""
        descriptor = self._disk.open(self.path)
        try:
            self._disk.clear(descriptor, position, self.size)
        finally:
            self._disk.close(descriptor)

    def rewrite(self, start: int, end: int) -> None:
        """Let the next `sync` write a stretch (offsets of the whole), as after a crash nobody knows whether it is."""
        rewrite(self._disk, self.path, max(start - self.base, 0), min(end - self.base, self.size))

    def release(self) -> None:
        """Give up the mapping; it comes back when used again."""
        self._memory = None

    def delete(self) -> None:
        """Remove the file, for good: a power cut does not bring it back."""
        self.release()
        with contextlib.suppress(FileNotFoundError):  # gone before, perhaps with its folder
            self._disk.remove(self.path)
            self._disk.sync_folder(self.path.parent)

    def take_folders(self) -> list[Path]:
        """Return the folders that must be synced for the file's name to last; none when asked again."""
        if not self.is_fresh:
            return []
        self.is_fresh = False
        return self.folders

    @property
    def folders(self) -> list[Path]:
        """The folders that came with the file, its own first."""
        return list(self.path.parents[: self._levels])


def sync_all(segments: Iterable[Segment], disk: Disk, *, between: Callable[[], None] = lambda: None) -> None:
    """Wait until all are on disk, with their names; `between` is called before each."""
    folders: dict[Path, None] = {}
    for segment in segments:
        between()
        segment.sync()
        folders.update(dict.fromkeys(segment.take_folders()))
    sync_folders(folders, disk, between=between)


def sync_folders(folders: Iterable[Path], disk: Disk, *, between: Callable[[], None] = lambda: None) -> None:
    for folder in folders:
        between()
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile, with the files
            disk.sync_folder(folder)
