"""A file that only grows, in pieces that are too small for one write each. Does not know file formats.

New bytes stay in memory until `write`, and can be read before. The owner saves `size` in another file. After a start,
bytes beyond the saved size do not count, and are overwritten.
"""

from __future__ import annotations

import errno
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.slow_work import FilePiece, NotInMemory
from pyromq.store.disk import LOCAL_DISK, Disk, opened


class GrowingFile:
    """A growing file. Only one thread may append to `tail`, a bytearray, and call `write`.

    `size` includes unwritten bytes. `tail` keeps written bytes until all of its bytes are written: moving the unwritten
    bytes after each write would take longer.
    """

    __slots__ = ("_descriptor", "_disk", "_failure", "_tail_at", "_written", "path", "tail", "unsynced")

    def __init__(self, path: Path, size: int = 0, *, disk: Disk = LOCAL_DISK) -> None:
        self.path = path
        self.unsynced = False  # True if written bytes may not be on disk
        self._written = self._tail_at = size
        self.tail = bytearray()
        self._disk = disk
        self._descriptor: int | None = None
        self._failure: OSError | None = None

    @property
    def size(self) -> int:
        return self._tail_at + len(self.tail)

    @property
    def unwritten(self) -> int:
        return self.size - self._written

    def read(self, position: int, size: int, *, wait: bool = True) -> bytes:
        """Return `size` bytes from file position `position` on, from memory or file.

        Raises `StoreCorrupt` if the file ends before, and `OSError`. Without `wait`, raises `NotInMemory` if the bytes
        must be read from the disk.
        """
        if position >= self._tail_at:
            start = position - self._tail_at
            content = bytes(self.tail[start : start + size])
        else:
            from_file = min(size, self._tail_at - position)
            try:
                content = self._from_file(position, from_file, wait=wait)
            except OSError as error:
                if error.errno == errno.EIO:  # the disk is damaged: the error must not stop the other messages
                    raise StoreCorrupt(
                        f"{self.path} cannot be read at byte {position}; restore it from a backup"
                    ) from error
                error.filename = str(self.path)
                raise
            if len(content) == from_file < size:
                content += self.tail[: size - from_file]
        if len(content) != size:
            raise StoreCorrupt(
                f"{self.path} ends before byte {position + size}: the file was cut; restore it from a backup"
            )
        return content

    def _from_file(self, position: int, size: int, *, wait: bool) -> bytes:
        if wait:
            return self._disk.read(self._open(), size, position)
        content = self._disk.read_now(self._open(), size, position)
        if content is None:
            raise NotInMemory([FilePiece(self.path, position, size)])
        return content

    def write(self, most: int) -> int:
        """Write up to `most` unwritten bytes to the file; return how many were written. Raises `OSError`.

        Written bytes survive a crash of the process, but not yet a power loss.
        """
        total = 0
        while self.unwritten and total < most:
            start = self._written - self._tail_at
            with memoryview(self.tail)[start : start + most - total] as piece:
                written = self._disk.write(self._open(), piece, self._written)
            self._written += written
            self.unsynced = True
            total += written
        if self.tail and not self.unwritten:
            self._tail_at = self._written
            self.tail.clear()
        return total

    def sync(self) -> None:
        """Flush the written bytes to disk; blocks. Thread-safe. Raises `OSError`.

        If an earlier flush failed, its error is raised again: a second flush could succeed although bytes were lost.
        """
        if self._failure is not None:
            raise self._failure.with_traceback(None)  # a traceback grows each time that its error is raised
        if not self.unsynced:
            return
        self.unsynced = False  # set before the flush, as more bytes may be written meanwhile
        try:
            with opened(self._disk, self.path) as descriptor:
                self._disk.sync(descriptor)
        except OSError as error:
            self.unsynced = True
            self._failure = error
            raise

    def release(self) -> None:
        """Close the file. The next use opens the file again."""
        if self._descriptor is not None:
            self._disk.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = self._disk.open(self.path, create=True)
        return self._descriptor
