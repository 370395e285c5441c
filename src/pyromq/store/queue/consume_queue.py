"""Where the messages of one queue lie in the commit log, one entry a message, in order of queue offset.

    entry        bytes   type   meaning
    log offset   8       long   of the record
    size         4       int    of the record
    tags code    8       long   hash of the tags, or when a delayed message is due

Entry n is at byte 20 n of the row of files. A queue that begins in the middle has filler entries (0, 0x7FFFFFFF, 0)
before its first one. Source: RocketMQ 4.9.8, ConsumeQueue. Ours: in the middle of a queue, where damage has taken a
message, the entry keeps a log offset, of the damage or what is behind it, so that log offsets ascend all the same.
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
from pyromq.store.disk import LOCAL_DISK, Disk, complaint
from pyromq.store.log.segment import Segment
from pyromq.store.log.segmented_log import SegmentedLog
from pyromq.store.looking import Unread
from pyromq.store.queue.mappings import Mappings

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.records import QueueTail
else:

    class QueueTail:
        """`min_offset` is the first queue offset whose record is still there, `max_offset` the next to give.

        Entries before `reserved` have room on disk. Entries before `unverified_end` existed when the store was opened.
        The file that is written begins at entry `base`, has room before `end`, and is mapped as `memory`.
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
_LOADED_FILES = 3  # what is walked after a crash: earlier files were flushed long ago. Source: ConsumeQueue.recover
_WALK_ENTRIES = 1024
_LEVELS = 4  # consumequeue, topic and queue id, in the store's folder
_LEAST_ROOM, _MOST_ROOM = 4096, 64 << 10  # bytes taken from the disk at once
_SETTING = "consume_queue_entries (mappedFileSizeConsumeQueue, 20 bytes each)"

_ENTRY = struct.Struct(">qiq")
_EXTENT = struct.Struct(">qi")  # of the record
_pack_into = _ENTRY.pack_into  # bound once: called for every message
pack_entry = _ENTRY.pack
unpack_entries = _ENTRY.iter_unpack  # of entries back to back: log offset, size, tags code of each
unpack_extent = _EXTENT.unpack_from  # of the entry at a position: log offset and size


@lru_cache(maxsize=256)
def unpack_extents(count: int) -> Callable[..., tuple[int, ...]]:
    """Return what unpacks log offset and size of `count` entries into one tuple: half the cost of a tuple each."""
    return struct.Struct(">" + "qi8x" * count).unpack_from


def says_nothing(content: bytes, position: int) -> bool:
    """Whether the place of an entry holds neither log offset nor size, as where none was written."""
    return not any(content[position : position + _EXTENT.size])


class QueueEntry(NamedTuple):
    """One message of a queue: where its record lies, and what is filtered by before reading it."""

    log_offset: int
    size: int
    tags_code: int

    @property
    def is_filler(self) -> bool:
        """Whether it stands before the queue's first message."""
        return self.size == FILLER_SIZE and self.log_offset == 0


class ConsumeQueue(QueueTail):
    """One writer. `flushed_offset` belongs to the flusher: entries before it are on disk."""

    __slots__ = ("_disk", "_mappings", "files", "flushed_offset", "queue_id", "topic")

    def __init__(self, folder: Path, entries_per_file: int, *, mappings: Mappings, disk: Disk = LOCAL_DISK) -> None:
        self.topic, self.queue_id = folder.parent.name, int(folder.name)
        self._disk = disk
        self._mappings = mappings
        self.files = SegmentedLog(
            folder, entries_per_file * ENTRY_BYTES, _SETTING, scattered=True, levels=_LEVELS, disk=disk
        )
        self.min_offset = 0
        self.max_offset = 0
        self.flushed_offset = 0
        self.reserved = 0
        self.unverified_end = 0
        self.memory = None
        self.base = self.end = 0

    # -- writing

    def append(self, log_offset: int, size: int, tags_code: int) -> None:
        """Write the entry of the next queue offset; readable when this returns. Called for every message stored."""
        offset = self.max_offset
        if offset >= self.end:
            self.open_file(offset)
        _pack_into(self.memory, (offset - self.base) * ENTRY_BYTES, log_offset, size, tags_code)  # type: ignore[arg-type]
        self.max_offset = offset + 1

    def begin_at(self, queue_offset: int, log_offset: int) -> None:
        """Let the next entry be that of `queue_offset`, above the maximum: the ones before are lost.

        Those behind others get `log_offset`, where what comes next lies.
        """
        lost_at = log_offset if self.max_offset else 0
        if self.max_offset == 0:
            self.files.delete()
            self.reserved = 0
            per_file = self.files.segment_bytes // ENTRY_BYTES
            self.max_offset = queue_offset - queue_offset % per_file
            self.min_offset = queue_offset
        while self.max_offset < queue_offset:
            self.append(lost_at, FILLER_SIZE, 0)

    def go_on_at(self, queue_offset: int) -> None:
        """Let the next entry be that of `queue_offset` or a higher one, also after the next start."""
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
        """Have room on disk for entry `offset`, behind the last, and some more. Raises `StoreNotWritable`.

        Before a record is appended: its entry must not fail then, and writing a mapped file must not on a full disk.
        """
        position = offset * ENTRY_BYTES
        try:
            segment = self.files.find(position)
            if segment is None:
                segment = self.files.create(position - position % self.files.segment_bytes)
                self.files.add(segment)
            start = position - segment.base
            size = min(max(start, _LEAST_ROOM), _MOST_ROOM)  # small queues take little
            end = min(-(-(start + size) // _LEAST_ROOM) * _LEAST_ROOM, segment.size)  # entries may lie on two pages
            self._mapped(segment)
            segment.prepare(start, end)
        except OSError as error:
            raise StoreNotWritable(
                f"cannot extend the queue in {self.files.folder}: {complaint(error, 'messages are taken again')}"
            ) from error
        self.reserved = (segment.base + end) // ENTRY_BYTES

    def open_file(self, offset: int) -> None:
        """Map the file that holds entry `offset`, with room for it."""
        if offset >= self.reserved:
            self.reserve(offset)
        segment = self.files.find(offset * ENTRY_BYTES)
        assert segment is not None
        if segment.base // ENTRY_BYTES != self.base:
            self.files.release()  # the full file is mapped again if it is read
        memory = self._mapped(segment)
        if memory.readonly:
            raise StoreNotWritable(f"{segment.path} can only be read: see to its disk, and restart")
        self.memory = memory
        self.base = segment.base // ENTRY_BYTES
        self.end = min(self.reserved, self.base + segment.size // ENTRY_BYTES)

    def _mapped(self, segment: Segment) -> memoryview:
        if not segment.is_mapped:
            self._mappings.note(self)
        memory = segment.memory
        if memory.readonly:
            self.reserved = 0  # the next append is refused before it begins
        return memory

    def release(self) -> None:
        """Give up the mappings; they come back when used."""
        self._mappings.forget(self)
        self.memory = None
        self.end = 0
        self.files.release()

    def give_up(self) -> list[memoryview]:
        """Be empty from now on; return what was mapped, which takes a while to be unmapped. The files stay."""
        mapped = [segment.memory for segment in self.files.segments if segment.is_mapped]
        self.release()
        self.files.segments.clear()
        self.min_offset = self.max_offset = self.reserved = 0
        return mapped

    def delete(self) -> None:
        """Remove the queue with its folder."""
        self.give_up()
        self._disk.remove_folder(self.files.folder)

    # -- reading

    def find(self, queue_offset: int) -> QueueEntry | None:
        """Return one entry; None where there is none."""
        segment = self.files.find(queue_offset * ENTRY_BYTES) if 0 <= queue_offset < self.max_offset else None
        if segment is None:
            return None
        return QueueEntry._make(_ENTRY.unpack_from(self._mapped(segment), queue_offset * ENTRY_BYTES - segment.base))

    def place_of(self, queue_offset: int) -> tuple[Path, int]:
        """Return the file of an entry that there is, and its position there."""
        segment = self.files.find(queue_offset * ENTRY_BYTES)
        assert segment is not None
        return segment.path, queue_offset * ENTRY_BYTES - segment.base

    def put(self, queue_offset: int, entry: QueueEntry) -> None:
        """Write over an entry that there is, unless the disk can only be read. Safe to call from any thread."""
        segment = self.files.find(queue_offset * ENTRY_BYTES)
        assert segment is not None
        if not (memory := self._mapped(segment)).readonly:
            _pack_into(memory, queue_offset * ENTRY_BYTES - segment.base, *entry)

    def content(self, queue_offset: int, count: int) -> memoryview | None:
        """Return up to `count` entries from one file as bytes; None where that file is gone.

        The offset must be below the maximum. Called for every read.
        """
        position = queue_offset * ENTRY_BYTES
        segment = self.files.find(position)
        if segment is None:
            return None
        start = position - segment.base
        end = min(start + count * ENTRY_BYTES, self.max_offset * ENTRY_BYTES - segment.base, segment.size)
        return self._mapped(segment)[start:end]

    def unread_entry(self, queue_offset: int) -> Unread:
        """Return the entry's bytes if they have to come from the disk before they are touched."""
        position = queue_offset * ENTRY_BYTES
        segment = self.files.find(position) if 0 <= queue_offset < self.max_offset else None
        if segment is None:
            return []
        start = position - segment.base
        return segment.unread(self._mapped(segment)[start : start + ENTRY_BYTES])

    def after_file_of(self, queue_offset: int) -> int:
        """Return the first queue offset of the next file: where to go on when this one is gone."""
        per_file = self.files.segment_bytes // ENTRY_BYTES
        return queue_offset + per_file - queue_offset % per_file

    def first(self, wanted: Callable[[QueueEntry], bool], *, start: int | None = None) -> int:
        """Return the first offset whose entry is `wanted`, the maximum if none is; unwanted ones must come first."""
        low, high = self.min_offset if start is None else start, self.max_offset
        while low < high:
            middle = (low + high) // 2
            entry = self.find(middle)
            if entry is not None and wanted(entry):
                high = middle
            else:
                low = middle + 1
        return low

    @property
    def log_end(self) -> int:
        """Log offset behind the last entry's record; 0 where no entry points to one."""
        entry = self.find(self.max_offset - 1)
        return 0 if entry is None or entry.size == FILLER_SIZE else entry.log_offset + entry.size

    # -- opening

    def load(self, *, crashed: bool) -> bool:
        """Find files and maximum; False if entries are missing, nobody knows how many. Raises `StoreCorrupt`.

        After a clean stop entries fill the last file up to one place. After a crash there may be holes: the last
        files are walked, and what lies behind the first hole is dropped.
        """
        is_whole = self.files.load(remade=crashed)
        first = self.files.base // ENTRY_BYTES
        self.min_offset = self.max_offset = first
        if not self.files.segments:
            return is_whole
        if crashed:
            self._walk()
            self.files.cut(self.max_offset * ENTRY_BYTES)
        else:
            last = self.files.segments[-1]
            start = last.base // ENTRY_BYTES
            self.max_offset = start + len(last.written(0)) // ENTRY_BYTES
            self.max_offset = self.first(lambda entry: entry.size <= 0 or entry.log_offset < 0, start=start)
        self.flushed_offset = self.max_offset
        return is_whole

    def _walk(self) -> None:
        """Set the maximum behind the last entry before the first hole."""
        for segment in self.files.segments[-_LOADED_FILES:]:
            offset = segment.base // ENTRY_BYTES
            self.max_offset = offset
            memory = segment.written(0)
            memory = memory[: len(memory) - len(memory) % ENTRY_BYTES]
            for start in range(0, len(memory), _WALK_ENTRIES * ENTRY_BYTES):
                for log_offset, size, _ in unpack_entries(memory[start : start + _WALK_ENTRIES * ENTRY_BYTES]):
                    if log_offset < 0 or size <= 0:
                        return
                    self.max_offset += 1
            if len(memory) < segment.size:
                return

    def cut_at(self, queue_offset: int) -> None:
        """Drop the entries from `queue_offset` on."""
        if queue_offset < self.max_offset:
            self.release()
            self.files.cut(queue_offset * ENTRY_BYTES)
            self.max_offset = queue_offset
            self.reserved = 0
            self.flushed_offset = min(self.flushed_offset, queue_offset)

    def forget_from(self, queue_offset: int) -> None:
        """Let the queue end there; what is on disk stays until `cut_forgotten`."""
        self.max_offset = queue_offset
        self.flushed_offset = min(self.flushed_offset, queue_offset)
        self.release()

    def cut_forgotten(self) -> None:
        """Drop from the disk what lies behind the maximum."""
        self.release()
        self.files.cut(self.max_offset * ENTRY_BYTES)
        self.reserved = 0

    def cut_behind(self, log_end: int) -> None:
        """Drop entries of records that begin at `log_end` or later; a file left without entries is deleted."""
        offset = self.max_offset
        while (entry := self.find(offset - 1)) is not None and entry.log_offset >= log_end:
            offset -= 1
        self.cut_at(offset)
        if len(self.files.segments) > 1 and self.files.segments[-1].base == offset * ENTRY_BYTES:
            self.files.segments.pop().delete()

    def drop_before(self, log_offset: int) -> list[Segment]:
        """Forget entries of records before `log_offset`; return the files that hold no others, taken out.

        The last file stays, so that the queue does not begin again at 0. What was not mapped is not afterwards.
        """
        segments = self.files.segments
        idle = [segment for segment in segments if not segment.is_mapped]
        gone = []
        while len(segments) > 1 and self._ends_before(segments[0], log_offset):
            gone.append(self.files.drop_first())
        first = self.find(self.min_offset)
        if gone or (first is not None and first.log_offset < log_offset):
            self.min_offset = max(self.min_offset, self.files.base // ENTRY_BYTES)
            self.forget_before(log_offset)
        for segment in idle:
            segment.release()
        return gone

    def _ends_before(self, segment: Segment, log_offset: int) -> bool:
        last = self.find((segment.base + segment.size) // ENTRY_BYTES - 1)
        return last is not None and last.log_offset < log_offset

    def unflushed(self, end: int) -> list[Segment]:
        """Return the files with entries before `end` that may not be on disk. Safe to call from any thread."""
        return self.files.between(self.flushed_offset * ENTRY_BYTES, end * ENTRY_BYTES)

    def distrust(self) -> None:
        """Let the next flush write all entries from `flushed_offset` on: after a crash they may be nowhere."""
        self.files.distrust(self.flushed_offset * ENTRY_BYTES, self.max_offset * ENTRY_BYTES)
        if self.files.segments:
            self.files.segments[-1].is_fresh = True  # also where it has no entries yet

    def forget_before(self, log_offset: int) -> None:
        """Set the minimum to the first entry whose record begins at `log_offset` or later; as it is if none does.

        Source: ConsumeQueue.correctMinOffset, which leaves a queue without live records alone.
        """
        live = self.first(
            lambda entry: not entry.is_filler and (entry.log_offset >= log_offset or not log_offset),
            start=self.files.base // ENTRY_BYTES,
        )
        if live < self.max_offset:
            self.min_offset = live
