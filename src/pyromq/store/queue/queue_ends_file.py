"""The end of each queue in a file, by which a start detects queues that have lost files or last entries.

    queues       CRC-32 of the rest as 8 hexadecimal digits, a newline, then JSON:
    logEnd       log offset: the file names the queues of all records before it, but for deleted topics
    ends         topic -> queue id -> maximum offset

All entries that the file names were on disk before it was written. Queues may have more entries than it says. The file
is absent for a moment when a topic is deleted. RocketMQ has no such file, and ignores it.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import msgspec

from pyromq.logs import logger_of
from pyromq.store.disk import LOCAL_DISK, Disk, read_file, remove_file, write_file

logger = logger_of(__name__)

_CRC_BYTES = 9  # newline included


class QueueEnds(msgspec.Struct, frozen=True):
    """The content of the file; empty if there is no file."""

    log_end: int = msgspec.field(default=0, name="logEnd")
    ends: dict[str, dict[int, int]] = {}


class QueueEndsFile:
    """One writer: the flusher's thread, or the thread that opens or closes the store while no flusher runs."""

    def __init__(self, path: Path, disk: Disk = LOCAL_DISK) -> None:
        self._path = path
        self._disk = disk

    def load(self) -> QueueEnds:
        """Return the saved ends; a damaged file is logged and counts as absent."""
        content = read_file(self._disk, self._path)
        if content is None:
            return QueueEnds()
        crc, text = content[:_CRC_BYTES], content[_CRC_BYTES:]
        try:
            if crc != _crc(text):
                raise msgspec.DecodeError("wrong checksum")
            return msgspec.json.decode(text, type=QueueEnds)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning(
                "%s is damaged (%s) and is rebuilt: this start cannot detect queues that lost files", self._path, error
            )
            return QueueEnds()

    def save(self, ends: QueueEnds) -> None:
        """Write the file durably. On an error, which is logged, the older file stays."""
        text = msgspec.json.encode(ends)
        beside = self._path.with_name(self._path.name + ".tmp")
        try:
            write_file(self._disk, beside, _crc(text) + text)
            self._disk.replace(beside, self._path)
            self._disk.sync_folder(self._path.parent)
        except OSError as error:
            logger.warning("cannot write %s: %s", self._path, error)

    def delete(self) -> None:
        """Delete the file, before queues are deleted."""
        try:
            remove_file(self._disk, self._path)
            self._disk.sync_folder(self._path.parent)
        except OSError as error:
            logger.warning("cannot remove %s: %s", self._path, error)


def _crc(text: bytes) -> bytes:
    return b"%08x\n" % zlib.crc32(text)
