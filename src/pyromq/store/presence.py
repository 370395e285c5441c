"""Whether the files that a store writes are still where it opened them.

A mapped file takes every write after its name is gone, and its bytes go with the process. So names are compared with
the files that were opened: each file or folder is kept open, and nothing else can get its inode.
"""

from __future__ import annotations

import errno
from pathlib import Path

from pyromq.store.directory import Directory
from pyromq.store.disk import Disk
from pyromq.store.log.segmented_log import SegmentedLog


class FilesLost(OSError):
    """A file or folder of an open store was deleted, moved, replaced or unmounted."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            errno.ENOENT,
            f"{path} was deleted, moved, replaced or unmounted while the broker runs; nothing more is stored. Consume"
            " what is still needed before the broker stops, then put it back and restart",
        )

    def __str__(self) -> str:
        return str(self.strerror)


class Presence:
    """Looks at the data folder, its tables and queues, and at the newest file of the log. Used by the flusher only."""

    def __init__(self, log: SegmentedLog, directory: Directory, disk: Disk) -> None:
        self._log = log
        self._directory = directory
        self._disk = disk
        self._opened: dict[Path, int] = {}

    def check(self) -> None:
        """Raise `FilesLost` naming what is gone, other `OSError`s where that cannot be seen.

        A file that is seen for the first time is remembered.
        """
        watched = self._watched()
        for path in self._opened.keys() - watched.keys():
            self._disk.close(self._opened.pop(path))
        for path, told in watched.items():
            try:
                if path not in self._opened:
                    self._opened[path] = self._disk.open(path, write=False)
                is_there = self._disk.is_at(self._opened[path], path)
            except (FileNotFoundError, NotADirectoryError) as error:
                raise FilesLost(told) from error
            if not is_there:
                raise FilesLost(told)

    def _watched(self) -> dict[Path, Path]:
        """Return paths to look at, and which each stands for."""
        directory, opened = self._directory, self._opened
        watched = {directory.lock_file: directory.root}
        watched |= {segment.path: segment.path for segment in self._log.segments[-1:]}
        made_later = (self._log.folder, directory.consume_queues, directory.config, directory.timers)
        return watched | {each: each for each in made_later if each in opened or self._disk.is_folder(each)}

    def close(self) -> None:
        while self._opened:
            self._disk.close(self._opened.popitem()[1])
