"""A consume queue: for each message of one queue its place in the commit log, in order of queue offset.

    entry        bytes   type   meaning
    log offset   8       long   log offset of the record
    size         4       int    size of the record
    tags code    8       long   hash of the tags, or the delivery time of a delayed message

Entry n is at byte 20 n of the consecutive files. A queue whose first messages are lost begins with filler entries (0,
0x7FFFFFFF, 0). Source: RocketMQ 4.9.8, ConsumeQueue. Different from RocketMQ: the filler entry of a message lost in the
middle of a queue has the log offset of a neighbour's record. So log offsets ascend.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pyromq import speedups
from pyromq.errors import StoreNotWritable
from pyromq.logs import logger_of
from pyromq.slow_work import PagesToLoad
from pyromq.store.disk import LOCAL_DISK, Disk, disk_advice, is_full
from pyromq.store.log.segmented_log import Segment, SegmentedLog

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.records import QueueTail
else:

    class QueueTail:
        """The end of a consume queue, to which plain and compiled code append entries.

        `min_offset` is the queue offset of the first message with a record, `max_offset` the queue offset of the next
        message. Entries before `reserved` have disk space. Entries before `unverified_end` existed when the store was
        opened. The file being written begins at entry `base`, has disk space before entry `end`, and is mapped as
        `memory`.
        """

        __slots__ = ("base", "end", "max_offset", "memory", "min_offset", "reserved", "unverified_end")

        base: int
        unverified_end: int
        end: int
        max_offset: int
        memory: memoryview | None
        min_offset: int
        reserved: int


__all__ = ["QueueTail"]

logger = logger_of(__name__)

ENTRY_BYTES = 20
FILLER_SIZE = 0x7FFFFFFF
_LEVELS = 4  # folders created with a queue's file: queue id, topic, consumequeue, data folder
_LEAST_ALLOCATION, _MAX_ALLOCATION = 4096, 256 << 10  # limits of one allocation of disk space (bytes)
_SETTING = "consume_queue_entries (mappedFileSizeConsumeQueue, 20 bytes each)"

ENTRY = struct.Struct(">qiq")
_pack_into = ENTRY.pack_into  # bound once, as every append of an entry calls this
unpack_entries = ENTRY.iter_unpack  # yields log offset, size and tags code of each entry


@lru_cache(maxsize=256)
def unpack_extents(count: int) -> Callable[..., tuple[int, ...]]:
    """Return a function that unpacks log offset and size of `count` entries into one flat tuple.

    One flat tuple takes half the time of a tuple per entry.
    """
    return struct.Struct(">" + "qi8x" * count).unpack_from


class QueueEntry(NamedTuple):
    """A consume-queue entry: log offset and size of one message's record, and the tags code for filters."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def is_empty(self) -> bool:
        """True if the entry was never written, or if its size or log offset is impossible."""
        return self.size <= 0 or self.log_offset < 0

    @property
    def is_filler(self) -> bool:
        """True if the entry is a filler before the queue's first message."""
        return self.size == FILLER_SIZE and self.log_offset == 0

    @property
    def end(self) -> int:
        """Log offset after the record. A filler, which has no record, counts as one byte."""
        return self.log_offset + (1 if self.size == FILLER_SIZE else self.size)


class ConsumeQueue(QueueTail):
    """One consume queue on disk. Only one thread may write.

    Entries before `flushed_offset`, set by the flusher, are on disk. `cuts` counts how often entries were cut.
    """

    __slots__ = ("_disk", "_in_memory", "_mappings", "_read", "cuts", "files", "flushed_offset", "queue_id", "topic")

    def __init__(self, folder: Path, entries_per_file: int, *, mappings: Mappings, disk: Disk = LOCAL_DISK) -> None:
        self.topic, self.queue_id = folder.parent.name, int(folder.name)
        self._disk = disk
        self._mappings = mappings
        self._in_memory: list[Segment] = []  # the mapped files
        self._read: tuple[tuple[int, bytes], ...] = ()  # queue offset and content of entries known without a mapping
        self.files = SegmentedLog(
            folder, entries_per_file * ENTRY_BYTES, _SETTING, scattered=True, levels=_LEVELS, disk=disk
        )
        self.min_offset = 0
        self.max_offset = 0
        self.flushed_offset = 0
        self.cuts = 0
        self.reserved = 0
        self.unverified_end = 0
        self.memory = None
        self.base = self.end = 0

    # -- writing

    def append(self, log_offset: int, size: int, tags_code: int) -> None:
        """Append the entry of the next queue offset. Readers see the entry immediately."""
        offset = self.max_offset
        if offset >= self.end:
            self.open_file(offset)
        _pack_into(self.memory, (offset - self.base) * ENTRY_BYTES, log_offset, size, tags_code)  # type: ignore[arg-type]
        self.max_offset = offset + 1

    def begin_at(self, queue_offset: int, lost_at: int) -> None:
        """Fill the queue with filler entries up to `queue_offset`, which must be above the maximum.

        `lost_at` is the log offset of a neighbour's record; 0 if all earlier messages have expired.
        """
        if self.max_offset == 0:
            self.files.delete()
            self.reserved = 0
            if not lost_at:
                self.max_offset = queue_offset - queue_offset % (self.files.segment_bytes // ENTRY_BYTES)
                self.min_offset = queue_offset
        while self.max_offset < queue_offset:
            self.append(lost_at, FILLER_SIZE, 0)

    def restore_end(self, queue_offset: int) -> None:
        """Raise the maximum offset to `queue_offset` durably, if the maximum is lower. New entries are fillers."""
        if queue_offset <= self.max_offset:
            return
        logger.warning(
            "%s: the messages from %d to %d are not in the log any more",
            *(self.files.folder, self.max_offset, queue_offset - 1),
        )
        last = self.find(self.max_offset - 1)
        self.begin_at(queue_offset, last.log_offset if last else 0)
        if not self.files.segments:
            self.reserve(queue_offset)

    def reserve(self, offset: int) -> None:
        """Allocate disk space for entry `offset`, the next entry, and for some more entries. Raises `StoreNotWritable`.

        Must be called before the message's record is appended, because the entry of an appended record must not fail. A
        write to a mapped file on a full disk would kill the process. On a full disk only the entry gets disk space: a
        start that writes existing entries again needs no more.
        """
        position = offset * ENTRY_BYTES
        try:
            segment = self.files.find(position)
            if segment is None:
                segment = self.files.create(position - position % self.files.segment_bytes)
                self.files.add(segment)
            start = position - segment.base
            size = min(max(start, _LEAST_ALLOCATION), _MAX_ALLOCATION)  # small queues allocate little
            end = -(-(start + size) // _LEAST_ALLOCATION) * _LEAST_ALLOCATION  # to the end of a page
            end = min(end, segment.size)
            self._mapped(segment)
            try:
                segment.prepare(start, end)
            except OSError as error:
                if not is_full(error):
                    raise
                end = min(-(-(start + ENTRY_BYTES) // _LEAST_ALLOCATION) * _LEAST_ALLOCATION, segment.size)
                segment.prepare(start, end)
        except OSError as error:
            raise StoreNotWritable(
                f"cannot extend the queue in {self.files.folder}: {disk_advice(error, 'messages are accepted again')}"
            ) from error
        self.reserved = (segment.base + end) // ENTRY_BYTES

    def open_file(self, offset: int) -> None:
        """Map the file of entry `offset` for writing, with disk space for the entry. Raises `StoreNotWritable`."""
        if offset >= self.reserved:
            self.reserve(offset)
        segment = self.files.find(offset * ENTRY_BYTES)
        assert segment is not None
        if segment.base // ENTRY_BYTES != self.base:
            self._unmap()  # unmap the full file; a read maps that file again
        memory = self._mapped(segment)
        if memory.readonly:
            raise StoreNotWritable(f"{segment.path} is read-only: check its disk, then restart the broker")
        self.memory = memory
        self.base = segment.base // ENTRY_BYTES
        self.end = min(self.reserved, self.base + segment.size // ENTRY_BYTES)

    def _mapped(self, segment: Segment) -> memoryview:
        if not segment.is_mapped:
            self._mappings.add(self)
            self._in_memory.append(segment)
        memory = segment.memory
        if memory.readonly:
            self.reserved = 0  # the next append calls `reserve`, which refuses
        return memory

    def release(self) -> None:
        """Unmap all files of the queue. The next use of a file maps the file again."""
        self._mappings.discard(self)
        self.memory = None
        self.end = 0
        self._read = ()
        self._unmap()

    def _unmap(self) -> None:
        for segment in self._in_memory:
            segment.release()
        self._in_memory.clear()

    def give_up(self) -> list[memoryview]:
        """Empty the queue but keep its files. Return the mapped memory.

        The caller can unmap the memory later by deleting the views: unmapping takes long.
        """
        mapped = [segment.memory for segment in self._in_memory]
        self.release()
        self.files.segments.clear()
        self.min_offset = self.max_offset = self.reserved = 0
        return mapped

    def delete(self) -> None:
        """Delete the queue, its files and its folder."""
        self.give_up()
        self._disk.remove_folder(self.files.folder)

    # -- reading

    def find(self, queue_offset: int) -> QueueEntry | None:
        """Return the entry at a queue offset; None if the queue has no such entry."""
        segment = self.files.find(queue_offset * ENTRY_BYTES) if 0 <= queue_offset < self.max_offset else None
        if segment is None:
            return None
        for known, content in self._read:
            if known == queue_offset:
                return QueueEntry._make(ENTRY.unpack(content))
        return QueueEntry._make(ENTRY.unpack_from(self._mapped(segment), queue_offset * ENTRY_BYTES - segment.base))

    def place_of(self, queue_offset: int) -> tuple[Path, int]:
        """Return file and byte position of the entry at a queue offset. The entry must exist."""
        segment = self.files.find(queue_offset * ENTRY_BYTES)
        assert segment is not None
        return segment.path, queue_offset * ENTRY_BYTES - segment.base

    def put(self, queue_offset: int, entry: QueueEntry) -> None:
        """Overwrite the existing entry at a queue offset. Does nothing if the disk is read-only."""
        segment = self.files.find(queue_offset * ENTRY_BYTES)
        assert segment is not None
        self._read = ()
        if not (memory := self._mapped(segment)).readonly:
            _pack_into(memory, queue_offset * ENTRY_BYTES - segment.base, *entry)

    def content(self, queue_offset: int, count: int) -> memoryview | None:
        """Return the bytes of up to `count` entries from `queue_offset` on, of one file; None if the file is deleted.

        `queue_offset` must be below the maximum.
        """
        position = queue_offset * ENTRY_BYTES
        segment = self.files.find(position)
        if segment is None:
            return None
        start = position - segment.base
        end = min(start + count * ENTRY_BYTES, self.max_offset * ENTRY_BYTES - segment.base, segment.size)
        return self._mapped(segment)[start:end]

    def entry_to_load(self, queue_offset: int) -> PagesToLoad:
        """Return the bytes of an entry as pieces to load; [] if the entry is resident or missing."""
        position = queue_offset * ENTRY_BYTES
        segment = self.files.find(position) if 0 <= queue_offset < self.max_offset else None
        if segment is None:
            return []
        self._mapped(segment)
        return segment.to_load(position - segment.base, position - segment.base + ENTRY_BYTES)

    def after_file_of(self, queue_offset: int) -> int:
        """Return the first queue offset of the file that follows the file of `queue_offset`."""
        per_file = self.files.segment_bytes // ENTRY_BYTES
        return queue_offset + per_file - queue_offset % per_file

    def first(self, wanted: Callable[[QueueEntry], bool], *, start: int | None = None) -> int:
        """Return the first queue offset whose entry is `wanted`, from `start` or the minimum on; else the maximum.

        Uses binary search: wanted entries must follow all other entries.
        """
        low, high = self.min_offset if start is None else start, self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.find(middle)
            if entry is not None and wanted(entry):
                high = middle
            else:
                low = middle + 1
        return low

    def first_behind(self, log_offset: int) -> int:
        """Return the first queue offset whose record begins at `log_offset` or later; the maximum without one."""
        return self.first(lambda entry: entry.log_offset >= log_offset)

    def end_before(self, log_offset: int) -> int:
        """Return the queue offset after the last entry whose record ends at or before `log_offset`.

        The result is at least the minimum. The search begins at the queue's end, and takes longer the more entries
        follow the result.
        """
        low = high = self.max_offset
        step = 1
        while low > self.min_offset and not self._is_before(low - 1, log_offset):
            high = low - 1
            low = max(low - step, self.min_offset)
            step *= 2
        while low < high:
            middle = (low + high) // 2
            if self._is_before(middle, log_offset):
                low = middle + 1
            else:
                high = middle
        return low

    def _is_before(self, queue_offset: int, log_offset: int) -> bool:
        entry = self.find(queue_offset)
        return entry is not None and entry.end <= log_offset

    @property
    def log_end(self) -> int:
        """Log offset after the record of the last entry; 0 if the queue is empty or its last entry has no record."""
        entry = self.find(self.max_offset - 1)
        return 0 if entry is None or entry.size == FILLER_SIZE else entry.log_offset + entry.size

    @property
    def covered_to(self) -> int:
        """Log offset before which every record of the queue has an entry; 0 for an empty queue."""
        entry = self.find(self.max_offset - 1)
        return 0 if entry is None else entry.end

    # -- opening

    def load(self, *, crashed: bool) -> bool:
        """Find the queue's files and its maximum offset. Return False if an unknown number of entries is missing.

        After a crash some entries before the maximum may be zeros. Raises `StoreCorrupt`.
        """
        is_whole = self.files.load(remade=crashed)
        self.find_end()
        return is_whole

    def load_as_saved(self, end: int) -> bool:
        """Load the queue if it has one file and ends at the saved `end`. Return False otherwise, with nothing loaded.

        Takes a fifth of the time of `load`, and maps nothing: a process may have fewer mappings than queues.
        """
        if not 0 < end < self.files.segment_bytes // ENTRY_BYTES:
            return False
        last = (end - 1) * ENTRY_BYTES
        found = self.files.read_only_file([(0, ENTRY_BYTES), (last, ENTRY_BYTES), (last + ENTRY_BYTES, ENTRY_BYTES)])
        if found is None:
            return False
        first, content, following = found
        if not _is_empty(following) or _is_empty(content):
            self.files.segments.clear()
            return False
        self.max_offset = self.flushed_offset = end
        self._read = ((end - 1, content), (0, first))
        return True

    def find_end(self) -> None:
        """Set minimum and maximum offset from the files. The maximum is the first empty entry of the last used file.

        A file without entries may follow a file that is not full: `reserve` made it for a batch that was refused.
        """
        self.min_offset = self.max_offset = self.files.base // ENTRY_BYTES
        for segment in reversed(self.files.segments):
            self._mapped(segment)
            start = segment.base // ENTRY_BYTES
            self.max_offset = start + len(segment.written(0)) // ENTRY_BYTES
            self.max_offset = self.first(lambda entry: entry.is_empty, start=start)
            if self.max_offset > start:
                break
        self.flushed_offset = self.max_offset

    def cut_at(self, queue_offset: int) -> None:
        """Delete the entries from `queue_offset` on, in memory and on disk."""
        if queue_offset < self.max_offset:
            self.cuts += 1
            self.release()
            self.files.cut(queue_offset * ENTRY_BYTES)
            self.max_offset = queue_offset
            self.reserved = 0
            self.flushed_offset = min(self.flushed_offset, queue_offset)

    def shorten_to(self, queue_offset: int) -> None:
        """Lower the maximum to `queue_offset`. Later entries stay on disk until `cut_to_max`."""
        self.max_offset = queue_offset
        self.flushed_offset = min(self.flushed_offset, queue_offset)
        self.release()

    def cut_to_max(self) -> None:
        """Delete the entries from the maximum offset on from the disk."""
        self.release()
        self.files.cut(self.max_offset * ENTRY_BYTES)
        self.reserved = 0

    def cut_behind(self, log_end: int) -> None:
        """Delete the last entries, whose records begin at `log_end` or later, and a last file without entries."""
        offset = self.max_offset
        while (entry := self.find(offset - 1)) is not None and entry.log_offset >= log_end:
            offset -= 1
        self.cut_at(offset)
        if len(self.files.segments) > 1 and self.files.segments[-1].base == offset * ENTRY_BYTES:
            self.files.segments.pop().delete()

    def drop_before(self, log_offset: int) -> list[Segment]:
        """Drop entries of records before `log_offset`. Return the removed files, which the caller must delete.

        The last file stays, so that queue offsets do not restart at 0. Files that were not mapped stay unmapped.
        """
        segments = self.files.segments
        mapped = list(self._in_memory)
        gone = []
        while len(segments) > 1 and self._ends_before(segments[0], log_offset):
            gone.append(self.files.drop_first())
        first = self.find(self.min_offset)
        if gone or (first is not None and first.log_offset < log_offset):
            self.min_offset = max(self.min_offset, self.files.base // ENTRY_BYTES)
            self.correct_min_offset(log_offset)
        for segment in self._in_memory:
            if segment not in mapped:
                segment.release()
        self._in_memory = [segment for segment in mapped if segment not in gone]
        return gone

    def _ends_before(self, segment: Segment, log_offset: int) -> bool:
        last = self.find((segment.base + segment.size) // ENTRY_BYTES - 1)
        return last is not None and last.log_offset < log_offset

    def unflushed(self, end: int) -> list[Segment]:
        """Return the files that hold entries from `flushed_offset` to queue offset `end`. Thread-safe."""
        return self.files.between(self.flushed_offset * ENTRY_BYTES, end * ENTRY_BYTES)

    def mark_dirty(self) -> None:
        """Make the next flush write all entries from `flushed_offset` on.

        Used after a crash, when these entries may be missing on the disk.
        """
        self.files.mark_dirty(self.flushed_offset * ENTRY_BYTES, self.max_offset * ENTRY_BYTES)
        if self.files.segments:
            self.files.segments[-1].is_fresh = True  # the last file may have no entries yet

    def correct_min_offset(self, log_offset: int) -> None:
        """Set the minimum offset to the first entry whose record begins at `log_offset` or later.

        The minimum stays unchanged if there is no such entry. Source: RocketMQ 4.9.8, ConsumeQueue.correctMinOffset.
        """
        start = self.files.base // ENTRY_BYTES

        def is_live(entry: QueueEntry) -> bool:
            return not entry.is_filler and (entry.log_offset >= log_offset or not log_offset)

        entry = self.find(start)
        live = start if entry is not None and is_live(entry) else self.first(is_live, start=start)
        if live < self.max_offset:
            self.min_offset = live


def _is_empty(content: bytes) -> bool:
    return len(content) < ENTRY_BYTES or QueueEntry._make(ENTRY.unpack(content)).is_empty


class Mappings:
    """Remembers which queues have mapped files, the oldest mapping first, and limits their number. For one thread.

    A process may have a limited number of mappings, and a store may have more queues. Mapping a file again takes 20 µs.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._mapped: dict[ConsumeQueue, None] = {}

    def add(self, queue: ConsumeQueue) -> None:
        """Add a queue; must be called before the queue maps a file. Unmaps the oldest queues above the limit."""
        self._mapped.pop(queue, None)
        self._mapped[queue] = None
        while len(self._mapped) > self._limit:
            oldest = next(iter(self._mapped))
            del self._mapped[oldest]
            oldest.release()

    def discard(self, queue: ConsumeQueue) -> None:
        """Remove a queue that no longer has mapped files."""
        self._mapped.pop(queue, None)
