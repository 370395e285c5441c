"""Bytes in consecutive files of equal size, addressed by one offset. Knows no records."""

from __future__ import annotations

import contextlib
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.store.disk import LOCAL_DISK, Disk, make_lasting_folder
from pyromq.store.log.segment import Segment

logger = logger_of(__name__)

_NAME_DIGITS = 20


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
