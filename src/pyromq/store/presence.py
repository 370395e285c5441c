"""Detects that files of an open store were deleted, moved or replaced.

Writes to a mapped file succeed after its deletion, and are lost with the process. So names are compared with the
opened files. Each stays open, so that no other file can get its inode.
"""

from __future__ import annotations

import errno
from pathlib import Path

from pyromq.store.directory import Directory
from pyromq.store.disk import Disk
from pyromq.store.index.key_index import KeyIndex
from pyromq.store.log.segmented_log import SegmentedLog


class FilesLost(OSError):
    """A file or folder of an open store was deleted, moved, replaced or unmounted."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            errno.ENOENT,
            f"{path} was deleted, moved, replaced or unmounted while the broker runs; the store refuses messages."
            " Consume the messages you need before the broker stops, then put it back and restart",
        )

    def __str__(self) -> str:
        return str(self.strerror)


class Presence:
    """Watches the data folder, its tables and queues, the log and the key index. For the flusher only."""

    def __init__(self, log: SegmentedLog, index: KeyIndex, directory: Directory, disk: Disk) -> None:
        self._log = log
        self._index = index
        self._directory = directory
        self._disk = disk
        self._opened: dict[Path, int] = {}
        self._tables: set[Path] = set()  # each that was seen; a table that is saved again is no longer missing

    def check(self) -> None:
        """Raise `FilesLost` with the lost path, or another `OSError`. A path seen for the first time is opened."""
        watched = self._watched()
        for path in self._opened.keys() - watched.keys():
            self._disk.close(self._opened.pop(path))
        for path, reported in watched.items():
            try:
                if path not in self._opened:
                    self._opened[path] = self._disk.open(path, write=False)
                is_unchanged = self._disk.is_at(self._opened[path], path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise FilesLost(reported) from error
            if not is_unchanged:
                raise FilesLost(reported)

    def missing(self) -> list[Path]:
        """Return older log files, index files and tables that are deleted or moved. No new message depends on them."""
        older = [segment.path for segment in self._log.segments[:-1]]
        gone = [path for path in (*older, *self._index_paths()) if self._disk.size(path) is None]
        if gone:  # retention deletes files too
            kept = {*(segment.path for segment in self._log.segments), *self._index_paths()}
            gone = [path for path in gone if path in kept]
        config = self._directory.config
        tables = {config / name for name in self._disk.names(config) if name.endswith(".json")}
        self._tables |= tables
        return [*gone, *sorted(self._tables - tables)]

    def _index_paths(self) -> list[Path]:
        return [file.file.path for file in list(self._index.files)]

    def _watched(self) -> dict[Path, Path]:
        """Return the paths to check, each with the path to report."""
        directory, opened = self._directory, self._opened
        watched = {directory.lock_file: directory.root}
        watched |= {segment.path: segment.path for segment in self._log.segments[-1:]}
        made_later = (self._log.folder, directory.consume_queues, directory.config, directory.timers)
        return watched | {each: each for each in made_later if each in opened or self._disk.is_folder(each)}

    def close(self) -> None:
        while self._opened:
            self._disk.close(self._opened.popitem()[1])
