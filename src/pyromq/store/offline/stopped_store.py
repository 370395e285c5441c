"""Reads the files of a stopped store: finds the files, the size that they must have, and their content.

The right file sizes are derived from the files, so that data folders with any settings, and of Java brokers, can be
checked. This module writes nothing, and does not trust the bytes in the files.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from pyromq.errors import StoreCorrupt, StoreLocked, UsageError
from pyromq.message import StoredMessage
from pyromq.record import BLANK_MAGIC_BYTES, MAGIC_AT, decode, unpack_size_and_magic
from pyromq.store.directory import check_platform, read_abort, read_format
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.log.log_walk import LogWalk
from pyromq.store.log.segmented_log import Segment, file_name, is_file_name
from pyromq.store.queue.consume_queue import ENTRY_BYTES, FILLER_SIZE, ConsumeQueue, Mappings
from pyromq.store.queue.queue_table import MAX_MAPPED, is_folder_name
from pyromq.store.store_config import StoreConfig

_LEAST_LOG_FILE = 4096
_LARGEST_RECORD = 16 << 20  # bytes: the blank record at a file's end is shorter than the largest record
_ROUND_SIZES = (4096, 1000)  # a configured file size is a multiple of one of these


class Cure(Enum):
    """The repair of a fault of the store."""

    NOBODY = "harmless"
    START = "the next start repairs it"
    REPAIR = "`pyromq store repair` repairs it"
    AWAY = "move the folder `timers` away: the next start rebuilds it from the log"
    BACKUP = "only a backup has it"


@dataclass(frozen=True, slots=True)
class StoreFault:
    """A fault of a file at byte `position`; None if the fault concerns the whole file."""

    path: Path
    position: int | None
    text: str
    cure: Cure

    def __str__(self) -> str:
        at = "" if self.position is None else f" byte {self.position}"
        return f"{self.path}{at}: {self.text}; {self.cure.value}"


class StoppedQueue(NamedTuple):
    """A consume queue on disk.

    `entries` covers the last files that have the right size and follow each other without a gap.
    """

    entries: ConsumeQueue
    file_bytes: int
    foreign: list[Path]
    wrong_files: list[tuple[Path, str]]


class StoppedStore:
    """The content of a data folder, for reading. Raises `UsageError` if the folder is not a data folder of a broker.

    `log_rows` has first log offset and path of each log file. `segments` are the log files that are not empty; files
    may be missing between them, or be too short.
    """

    def __init__(self, config: StoreConfig) -> None:
        check_platform()
        self.root = config.root
        self.log_folder = config.log_folder
        self.log_rows, self.foreign = _row(self.log_folder)
        if not self.log_rows and not (self.root / "consumequeue").is_dir():
            raise UsageError(f"{self.root} is not a data folder of a broker: there is no {self.log_folder.name} in it")
        sizes = {base: path.stat().st_size for base, path in self.log_rows}
        self.segments = [Segment(path, sizes[base], base) for base, path in self.log_rows if sizes[base]]
        self.log_begin = self.log_rows[0][0] if self.log_rows else 0
        self._consume_queue_entries = config.consume_queue_entries
        self._mappings = Mappings(MAX_MAPPED)
        self.segment_bytes = self._file_size(config.segment_bytes)
        self.config = replace(config, segment_bytes=self.segment_bytes)
        self.crashed, same_boot = read_abort(LOCAL_DISK, self.root / "abort")
        self.power_loss = self.crashed and not same_boot

    def log_path(self, base: int) -> Path:
        """Return the path of the log file that begins at log offset `base`. The file need not exist."""
        return self.log_folder / file_name(base)

    def wrong_log_files(self) -> Iterator[tuple[Path, str]]:
        """Yield path and fault of each log file that is missing or has a wrong size."""
        rows = self.log_rows
        if rows and rows[-1][1].stat().st_size == 0:  # left by a crash between creation and resizing
            rows = rows[:-1]
        yield from _wrong_files(self.log_folder, rows, self.segment_bytes)

    def queues(self) -> Iterator[StoppedQueue]:
        """Yield the consume queues, sorted by topic and queue id."""
        for folder in sorted((self.root / "consumequeue").glob("*/*")):
            if folder.is_dir() and folder.name.isdecimal() and is_folder_name(folder.parent.name):
                yield self._queue(folder)

    def _queue(self, folder: Path) -> StoppedQueue:
        rows, foreign = _row(folder)
        file_bytes = _usual_size(path for _, path in rows)
        entries = file_bytes // ENTRY_BYTES or self._consume_queue_entries
        queue = ConsumeQueue(folder, entries, mappings=self._mappings)
        for base, path in reversed(rows):
            size, following = path.stat().st_size, queue.files.base
            if size != queue.files.segment_bytes or (queue.files.segments and base + size != following):
                break
            queue.files.segments.insert(0, Segment(path, size, base, scattered=True))
        queue.find_end()
        return StoppedQueue(queue, file_bytes, foreign, list(_wrong_files(folder, rows, file_bytes)))

    def walk(self, start: int = 0) -> LogWalk:
        """Return an iterator over messages and damage of the log from `start`, where a record or a file begins."""
        return LogWalk(self.segments, self.segment_bytes, start)

    def place_of(self, log_offset: int) -> tuple[Segment, int] | None:
        """Return the log file that holds a log offset, and the position in the file; None without such a file."""
        index = bisect_right(self.segments, log_offset, key=lambda segment: segment.base) - 1
        if index < 0 or log_offset >= self.segments[index].base + self.segments[index].size:
            return None
        return self.segments[index], log_offset - self.segments[index].base

    def record_at(self, log_offset: int, size: int) -> memoryview:
        """Return `size` bytes from a log offset on; fewer bytes if the file ends before."""
        place = self.place_of(log_offset)
        return memoryview(b"") if place is None else place[0].memory[place[1] : place[1] + size]

    def message_at(self, log_offset: int) -> StoredMessage | None:
        """Return the message whose record begins at a log offset; None if no intact record begins there."""
        place = self.place_of(log_offset)
        try:
            message = None if place is None else decode(place[0].memory, place[1])
        except StoreCorrupt:
            return None
        return message if message is not None and message.log_offset == log_offset else None

    def log_offset_of(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """Return the log offset of a queue's message. Raises `UsageError` if the queue has no such message."""
        folder = self.root / "consumequeue" / topic / str(queue_id)
        if "/" in topic or not folder.is_dir():
            raise UsageError(f"there is no queue {queue_id} of topic {topic!r} in {self.root}")
        queue = self._queue(folder).entries
        entry = queue.find(queue_offset)
        if entry is None:
            raise UsageError(
                f"queue {queue_id} of {topic} has entries from {queue.min_offset} to {queue.max_offset - 1}"
            )
        if entry.size == FILLER_SIZE:
            raise UsageError(
                f"message {queue_offset} of queue {queue_id} of {topic} is lost: its queue entry leads to no record"
            )
        return entry.log_offset

    def find_record(self, log_offset: int) -> tuple[StoredMessage, str]:
        """Return the message whose record begins at a log offset, and the record's fault; "" for an intact record.

        Raises `UsageError` with the nearest records if no record begins there.
        """
        if (place := self.place_of(log_offset)) is None:
            end = self.segments[-1].base + self.segment_bytes if self.segments else 0
            raise UsageError(f"the log has offsets from {self.log_begin} to {end}, not {log_offset}")
        segment, position = place
        try:
            message = decode(segment.memory, position)
        except StoreCorrupt as error:
            raise UsageError(f"{segment.path} byte {position}: {error}; {self._neighbours(log_offset)}") from error
        if message.log_offset != log_offset:
            return message, f"its head has log offset {message.log_offset}"
        try:
            decode(segment.memory, position, check_crc=True)
        except StoreCorrupt as error:
            return message, str(error)
        return message, ""

    def _neighbours(self, log_offset: int) -> str:
        """Return a text that says where the nearest intact records begin, or where the log ends."""
        before: int | None = None
        after: int | None = None
        walk = self.walk(log_offset - log_offset % self.segment_bytes - self.segment_bytes)  # from the previous file on
        for found in walk:
            if isinstance(found, StoredMessage) and found.log_offset >= log_offset:
                after = found.log_offset
                break
            if isinstance(found, StoredMessage):
                before = found.log_offset
        if after is None and log_offset >= walk.position:
            return f"the log ends at {walk.position}"
        begins = "no intact record is before" if before is None else f"the intact record before begins at {before}"
        return f"{begins}, {'none follows' if after is None else f'the next one begins at {after}'}"

    def _file_size(self, configured: int) -> int:
        """Return the right size of a log file (bytes). A single file has the right size unless the file was cut."""
        usual = _usual_size(path for _, path in self.log_rows)
        if len(self.segments) != 1 or usual >= configured:
            return usual or configured
        return configured if self._is_cut(self.segments[0], configured) else usual

    def _is_cut(self, file: Segment, configured: int) -> bool:
        """Return True if the only log file was cut: its size is unusual, or queues lead beyond its end."""
        end_at = max(file.size - _LARGEST_RECORD, 0)
        [end] = file.read([(end_at, file.size - end_at)])
        blank_at = end.rfind(BLANK_MAGIC_BYTES) - MAGIC_AT
        if blank_at >= 0 and unpack_size_and_magic(end, blank_at)[0] == len(end) - blank_at:
            return False  # the file ends with its blank record: the file was full
        if file.size < _LEAST_LOG_FILE or all(file.size % unit for unit in _ROUND_SIZES):
            return True
        file_end = file.base + file.size
        return any(file_end < queue.entries.covered_to <= file.base + configured for queue in self.queues())


def _row(folder: Path) -> tuple[list[tuple[int, Path]], list[Path]]:
    """Return the files of a folder whose names are offsets, with these offsets in order, and all other files."""
    if not folder.is_dir():
        return [], []
    paths = sorted(folder.iterdir())
    named = [path for path in paths if is_file_name(path.name) and path.is_file()]
    return [(int(path.name), path) for path in named], [path for path in paths if path not in named]


def _usual_size(paths: Iterable[Path]) -> int:
    return usual(path.stat().st_size for path in paths)


def usual(sizes: Iterable[int]) -> int:
    """Return the most frequent size; of several the largest, as wrong files are usually too short. 0 without sizes."""
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size), default=0)


def _wrong_files(folder: Path, row: list[tuple[int, Path]], file_bytes: int) -> Iterator[tuple[Path, str]]:
    expected = row[0][0] if row else 0
    for base, path in row:
        while expected < base and file_bytes:
            yield folder / file_name(expected), "the file is missing"
            expected += file_bytes
        size = path.stat().st_size
        if size != file_bytes:
            yield path, f"the file has {size} bytes, not {file_bytes}"
        expected = base + file_bytes


def check_stopped(root: Path) -> None:
    """Raise `StoreLocked` if a broker has the data folder open, `StoreTooNew` if not readable. Writes nothing."""
    check_platform()
    read_format(LOCAL_DISK, root)
    try:
        descriptor = LOCAL_DISK.open(root / "lock")
    except OSError:  # no broker ever locked the folder, or the file is read-only
        return
    try:
        LOCAL_DISK.lock(descriptor)
    except OSError as error:
        raise StoreLocked(f"data folder {root} is in use by a broker; stop the broker first") from error
    finally:
        LOCAL_DISK.close(descriptor)
