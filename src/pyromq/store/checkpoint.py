"""The checkpoint file: the store times up to which log, consume queues and index are on disk.

    byte   type   meaning
    0      long   store time (ms) of the last record flushed to the commit log
    8      long   store time up to which consume queues are flushed
    16     long   end store time of the last index file flushed
    468    long   only in pyromq: log offset at which the log begins
    476    uint   only in pyromq: CRC-32 of that log offset
    480    3 x 8  ours: a copy of the times
    504    uint   ours: CRC-32 of the copy

The file has 4,096 bytes. "Ours" marks fields that RocketMQ does not know: Java brokers write only the first three
fields and keep the other bytes. A damaged time that is too late would make a start trust missing data. So the earlier
of each time and its copy is used, if the copy is intact.

Source: RocketMQ 4.9.8, StoreCheckpoint.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from pyromq.store.disk import LOCAL_DISK, Disk, opened, read_file

CHECKPOINT_BYTES = 4096
TIMES = struct.Struct(">qqq")
_COPY = struct.Struct(">24sI")
_COPY_AT = 480  # byte of the copy: in the first sector of 512 bytes, which a disk writes atomically
_BEGIN = struct.Struct(">qI")
_BEGIN_AT = _COPY_AT - _BEGIN.size
_SAFETY_MS = 3_000  # subtracted from the times (ms): store times may be out of order by less


class Checkpoint:
    """The checkpoint file of a store. Only one thread at a time may use this object.

    That thread is the flusher's thread, or the thread that opens or closes the store while no flusher runs.
    """

    def __init__(self, path: Path, disk: Disk = LOCAL_DISK) -> None:
        self._path = path
        self._disk = disk
        self.log_ms = 0
        self.queues_ms = 0
        self.index_ms = 0
        self.log_begin: int | None = None

    @property
    def safe_ms(self) -> int:
        """Store time (ms since 1970) up to which records and their queue entries are on disk."""
        return max(0, min(self.log_ms, self.queues_ms) - _SAFETY_MS)

    def load(self) -> None:
        """Read the times from the file. The times are 0 if the file is missing or too short."""
        content = read_file(self._disk, self._path)
        if content is not None and len(content) >= TIMES.size:
            times: tuple[int, ...] = TIMES.unpack_from(content)
            if len(content) >= _COPY_AT + _COPY.size:
                copy, crc = _COPY.unpack_from(content, _COPY_AT)
                if zlib.crc32(copy) == crc:
                    times = tuple(map(min, times, TIMES.unpack(copy)))
                self.log_begin = _log_begin(content)
            self.log_ms, self.queues_ms, self.index_ms = times

    def save(self) -> None:
        """Write the times durably. The caller must have flushed the data that the times cover."""
        with opened(self._disk, self._path, create=True) as descriptor:
            self._disk.resize(descriptor, CHECKPOINT_BYTES)
            times = TIMES.pack(self.log_ms, self.queues_ms, self.index_ms)
            begin = b"" if self.log_begin is None else _pack_begin(self.log_begin)
            content = times.ljust(_BEGIN_AT, b"\0") + begin.ljust(_BEGIN.size, b"\0")
            self._disk.write(descriptor, content + _COPY.pack(times, zlib.crc32(times)), 0)
            self._disk.sync(descriptor)


def _pack_begin(log_begin: int) -> bytes:
    return _BEGIN.pack(log_begin, zlib.crc32(log_begin.to_bytes(8, "big")))


def _log_begin(content: bytes) -> int | None:
    log_begin: int = _BEGIN.unpack_from(content, _BEGIN_AT)[0]
    is_whole = log_begin >= 0 and content[_BEGIN_AT:_COPY_AT] == _pack_begin(log_begin)
    return log_begin if is_whole and any(content[_BEGIN_AT:_COPY_AT]) else None
