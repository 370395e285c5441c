"""How far each queue had come: by this a start notices that one has lost its files, or entries at its end.

    queues       CRC-32 of the rest as 8 hexadecimal digits, a newline, then JSON:
    logEnd       log offset: the queues of all records before it are named, but for those of deleted topics
    ends         topic -> queue id -> the queue offset its next message gets

What it says was on disk before it was written. It may be older than the store: then queues have come further. There is
none for a moment when a topic is deleted. RocketMQ has no such file, and leaves it alone.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from pyromq.logs import logger_of
from pyromq.store.disk import LOCAL_DISK, Disk, read_file, remove_file, write_file

logger = logger_of(__name__)

_CRC_BYTES = 9  # with the newline


class NotedQueues(msgspec.Struct, frozen=True):
    """What the note says; nothing where there is none."""

    log_end: int = msgspec.field(default=0, name="logEnd")
    ends: dict[str, dict[int, int]] = {}


class QueueEndsFile:
    """One writer: the flusher's thread, and who opens or closes the store while that does not run."""

    def __init__(self, path: Path, disk: Disk = LOCAL_DISK) -> None:
        self._path = path
        self._disk = disk

    def load(self) -> NotedQueues:
        """Return what is noted. A damaged note says nothing, and is told."""
        content = read_file(self._disk, self._path)
        if content is None:
            return NotedQueues()
        crc, text = content[:_CRC_BYTES], content[_CRC_BYTES:]
        try:
            if crc != _crc(text):
                raise msgspec.DecodeError("wrong checksum")
            return msgspec.json.decode(text, type=NotedQueues)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning(
                "%s is damaged (%s), and made again: a queue without files is not missed now", *(self._path, error)
            )
            return NotedQueues()

    def save(self, noted: NotedQueues) -> None:
        """Write it; it is on disk when this returns. Where it cannot be written the older one goes on to count."""
        text = msgspec.json.encode(noted)
        beside = self._path.with_name(self._path.name + ".tmp")
        try:
            write_file(self._disk, beside, _crc(text) + text)
            self._disk.replace(beside, self._path)
            self._disk.sync_folder(self._path.parent)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)

    def forget(self) -> None:
        """Remove it: queues are about to be deleted. Called by the writer of the store, and quickly made good."""
        try:
            remove_file(self._disk, self._path)
            self._disk.sync_folder(self._path.parent)
        except OSError as error:
            logger.warning("cannot remove %s: %s", self._path, error)


def _crc(text: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(text)
