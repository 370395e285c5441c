"""How far log, consume queues and index are known to be on disk, as store times.

    byte   type   meaning
    0      long   store time (ms) of the last record flushed to the commit log
    8      long   store time up to which consume queues are flushed
    16     long   end store time of the last index file flushed

The file has 4,096 bytes. Source: RocketMQ 4.9.8, StoreCheckpoint.
"""

from __future__ import annotations

import struct
from pathlib import Path

from pyromq.store.disk import LOCAL_DISK, Disk, read_file

_FILE_BYTES = 4096
_TIMES = struct.Struct(">qqq")
_SAFETY_MS = 3_000  # times of neighbouring records may be out of order by less than this


class Checkpoint:
    """One writer: the flusher's thread, and whoever closes the store after that has ended."""

    def __init__(self, path: Path, disk: Disk = LOCAL_DISK) -> None:
        self._path = path
        self._disk = disk
        self.log_ms = 0
        self.queues_ms = 0
        self.index_ms = 0

    @property
    def safe_ms(self) -> int:
        """Records stored up to then are in the log and in their queues, whatever happened since."""
        return max(0, min(self.log_ms, self.queues_ms) - _SAFETY_MS)

    def load(self) -> None:
        """Read the times; a missing or short file means that nothing is known."""
        content = read_file(self._disk, self._path)
        if content is not None and len(content) >= _TIMES.size:
            self.log_ms, self.queues_ms, self.index_ms = _TIMES.unpack_from(content)

    def save(self) -> None:
        """Write the times; they are on disk when this returns. What they speak of must be there before."""
        descriptor = self._disk.open(self._path, create=True)
        try:
            self._disk.resize(descriptor, _FILE_BYTES)
            self._disk.write(descriptor, _TIMES.pack(self.log_ms, self.queues_ms, self.index_ms), 0)
            self._disk.sync(descriptor)
        finally:
            self._disk.close(descriptor)
