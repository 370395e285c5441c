"""The commit log: the records of all topics in order of arrival. This module does not know queues.

A segment (one file of the log) ends with a blank record if the next record did not fit:

    bytes   type   meaning
    4       int    bytes left in the segment, this field included
    4       uint   0xCBD43194

After the last record all bytes are zero. Source: RocketMQ 4.9.8, CommitLog and MappedFileQueue.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.errors import MessageRefused, StoreCorrupt, StoreNotWritable, UsageError
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.record import (
    BLANK_MAGIC,
    BLANK_SIZE,
    FIXED_SIZE,
    MAGIC,
    blank,
    decode,
    encode,
    log_offset_of,
    store_ms_of,
    unpack_size_and_magic,
)
from pyromq.slow_work import FilePiece, NotInMemory, PagesToLoad, when_loaded
from pyromq.store.disk import LOCAL_DISK, Disk, disk_advice
from pyromq.store.log.log_walk import LogWalk
from pyromq.store.log.preallocation import Preallocation
from pyromq.store.log.segmented_log import Segment, SegmentedLog, sync_all

NO_LIMIT = 1 << 62  # log offset above all others
RECENT_BYTES = 64 << 20  # bytes at the log's end that count as resident, as these bytes were written recently
_BLOCK_BYTES = 1 << 20
_STRETCH_BYTES = 1 << 20  # limit of one load (bytes): neighbouring records are loaded together, with gaps
_TRUSTED_SECONDS = 1.0
_MAX_CHECKED = 64  # limit of blocks checked per read: a bulk read of one queue may span many blocks
_MAX_BLOCKS = 65_536  # limit of blocks remembered as resident: 64 GiB of log

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.records import LogTail
else:

    class LogTail:
        """The end of the commit log, to which plain and compiled code append records.

        `end` is the log offset after the last record. The segment being written begins at log offset `base` and is
        mapped as `memory`. An append beyond log offset `limit`, or larger than `max_record_bytes`, must first call
        `CommitLog.ensure_capacity`. Readers may see the records before `readable_to`, at most those before `end`.
        """

        end = 0
        readable_to = NO_LIMIT
        last_store_ms = 0
        base = 0
        limit = -1
        max_record_bytes = 0
        memory: memoryview | None = None


__all__ = ["LogTail"]

logger = logger_of(__name__)

_SEARCHED_BYTES = 16 << 20  # limit of bytes of a file searched for an intact record after damage: three large records
_NO_APPENDS = -1  # value of `limit` that makes every append call `ensure_capacity`


class CommitLog(LogTail):
    """The commit log of a store. Only one thread may append.

    Readers may view all bytes before `end`, the end of the last record. Store times never decrease. Appends are refused
    before `resume` and after `refuse`.
    """

    def __init__(
        self, folder: Path, segment_bytes: int, *, clock: Clock, max_record_bytes: int, disk: Disk = LOCAL_DISK
    ) -> None:
        self.files = SegmentedLog(folder, segment_bytes, "segment_bytes (mappedFileSizeCommitLog)", disk=disk)
        self._disk = disk
        self.end = 0
        self.last_store_ms = 0
        self._now_ms = clock.now_ms
        self.max_record_bytes = min(max_record_bytes, segment_bytes - BLANK_SIZE)
        self._refusal = "the store is not open"
        self._suspension = ""
        self._own_refusal = ""
        self._preallocation = Preallocation(self.files, disk)
        self.memory = None
        self.base = 0
        self.limit = _NO_APPENDS
        self._allocated_end = 0
        self._received_end = 0

    @property
    def min_offset(self) -> int:
        return self.files.base

    # -- writing

    @property
    def refusal(self) -> str:
        """Reason why appends are refused; "" if appends are accepted."""
        return self._refusal or self._suspension

    def append(self, message: StoredMessage) -> None:
        """Append the record of a message and set the message's log offset, store time and size. Does not flush.

        Queue offset and addresses must be set before. Raises `MessageRefused` for a value that no record can hold, and
        `StoreNotWritable` if the log cannot grow or refuses appends.
        """
        now = self._now_ms()
        if now < self.last_store_ms:
            now = self.last_store_ms
        start = self.end
        message.store_ms = now
        message.log_offset = start
        try:
            record = encode(message)
        except struct.error as error:
            raise _refused(message) from error
        end = start + len(record)
        if end > self.limit or len(record) > self.max_record_bytes:
            self.ensure_capacity(len(record))
            if self.end != start:  # in a new segment: encode again, as a record holds its log offset
                start = message.log_offset = self.end
                record = encode(message)
                end = start + len(record)
        base = self.base
        self.memory[start - base : end - base] = record  # type: ignore[index]  # mapped: the limit was not exceeded
        self.end = end
        self.last_store_ms = now

    def append_batch(self, messages: Sequence[StoredMessage]) -> None:
        """Append the records of messages back to back in one segment, all with the same store time.

        Raises as `append` does.
        """
        now = max(self._now_ms(), self.last_store_ms)
        start = self.end
        records = _encode_all(messages, start, now)
        if start + len(records) > self.limit or len(records) > self.max_record_bytes:
            self.ensure_capacity(len(records))
            if self.end != start:
                start = self.end
                records = _encode_all(messages, start, now)
        assert self.memory is not None
        self.memory[start - self.base : start - self.base + len(records)] = records
        self.end = start + len(records)
        self.last_store_ms = now

    def refuse(self, reason: str) -> None:
        """Refuse all further appends; `reason` is the text of their error. Thread-safe."""
        self._refusal = reason
        self.limit = _NO_APPENDS

    def accept(self, reason: str) -> None:
        """Accept appends again that were refused for `reason`. Does nothing if they are refused for another reason."""
        if self._refusal == reason:
            self._refusal = ""

    def suspend(self, reason: str) -> None:
        """Refuse appends, with `reason` as the text of their error, until `suspend` is called with ""."""
        if reason or self._suspension:
            self._suspension = reason
            self.limit = _NO_APPENDS  # the next append calls `ensure_capacity`, which sets the limit or refuses

    def refuse_own(self, reason: str) -> None:
        """Refuse appends, but not the bytes of another log, with `reason` as the text of their error; "" ends that."""
        self._own_refusal = reason
        self.limit = _NO_APPENDS

    def ensure_capacity(self, size: int) -> None:
        """Allocate `size` bytes at the log's end, in a new segment if the bytes do not fit into the current segment.

        Raises `StoreNotWritable`, and `MessageRefused` if `size` exceeds the limit of a record.
        """
        if refusal := self.refusal or self._own_refusal:
            raise StoreNotWritable(refusal)
        self.drop_incomplete()
        limit = min(self.max_record_bytes, self.files.segment_bytes - BLANK_SIZE)
        if size > limit:
            raise MessageRefused(f"message takes {size} bytes in the log, the limit is {limit}")
        segment_end = self.base + self.files.segment_bytes
        try:
            if self.memory is None or self.end + size > segment_end - BLANK_SIZE:
                self._roll(self.files.capacity_end)
            self._extend_to(self.end + size)
        except OSError as error:
            raise self._cannot_extend(error) from error
        self._set_limit()
        if refusal := self.refusal:  # the flusher's thread has called `refuse` meanwhile
            self.limit = _NO_APPENDS
            raise StoreNotWritable(refusal)

    def _cannot_extend(self, error: OSError) -> StoreNotWritable:
        advice = disk_advice(error, "messages are accepted again")
        return StoreNotWritable(f"cannot extend the log in {self.files.folder}: {advice}")

    def _roll(self, base: int) -> None:
        if self.memory is not None:
            self._extend_to(self.end + BLANK_SIZE)
        segment = self._preallocation.next_segment(base)
        if self.memory is not None:
            position = self.end - self.base
            self.memory[position : position + BLANK_SIZE] = blank(base - self.end)
        self.files.add(segment)
        self.memory = segment.memory
        self.base = self.end = self._allocated_end = base

    def _extend_to(self, end: int) -> None:
        while end > self._allocated_end:
            self._allocated_end = self._preallocation.extend(self.files.segments[-1], end)

    def _set_limit(self) -> None:
        self.limit = min(self._allocated_end, self.base + self.files.segment_bytes - BLANK_SIZE)

    # -- taking in another log

    @property
    def written_end(self) -> int:
        """Log offset after the last byte. Bytes after `end` were received, and belong to an incomplete record."""
        return max(self.end, self._received_end)

    def receive(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write bytes of another log at log offset `offset`, which must be `written_end`. `end` does not change.

        An empty log may begin where any file begins. Raises `UsageError` for bytes that do not belong there or cross a
        file's end, and `StoreNotWritable`.
        """
        if self.refusal:
            raise StoreNotWritable(self.refusal)
        begins = not self.files.segments and offset % self.files.segment_bytes == 0
        if offset != self.written_end and not begins:
            raise UsageError(f"received bytes begin at log offset {offset}, the log ends at {self.written_end}")
        size, position = len(data), offset % self.files.segment_bytes
        if position + size > self.files.segment_bytes:
            raise UsageError(
                f"{size} received bytes at log offset {offset} cross the end of a file of {self.files.segment_bytes}"
                " bytes: set the same mappedFileSizeCommitLog on both brokers"
            )
        if not size:
            return
        try:
            if self.memory is None:
                self._roll(offset)
            self._extend_to(offset + size)
        except OSError as error:
            raise self._cannot_extend(error) from error
        assert self.memory is not None
        self.memory[position : position + size] = data
        self._received_end = offset + size
        self.limit = _NO_APPENDS  # the next append calls `ensure_capacity`, which drops an incomplete record

    def complete(self, size: int, store_ms: int) -> None:
        """Make the next `size` received bytes a record, or a blank record up to the file's end.

        `store_ms` is the store time (ms since 1970) of the record.
        """
        self.last_store_ms = max(self.last_store_ms, store_ms)
        self.end += size
        if self.end == self.files.capacity_end:
            self.memory = None  # the next byte begins a file

    def drop_incomplete(self) -> None:
        """Overwrite received bytes after `end` with zeros: `receive` may have left an incomplete record there."""
        if self._received_end > self.end:
            assert self.memory is not None
            position, size = self.end - self.base, self._received_end - self.end
            self.memory[position : position + size] = bytes(size)
        self._received_end = self.end

    # -- opening and closing

    def load(self) -> None:
        """Find the files of the log. Until `resume`, all bytes of the files may be viewed. Raises `StoreCorrupt`."""
        self.files.load()
        self.end = self.files.capacity_end

    def resume(self, end: int, last_store_ms: int) -> None:
        """Truncate the log at log offset `end`, where a record ends or a segment begins, and accept appends there.

        `last_store_ms` is the store time of the last record (ms since 1970): later records get no earlier store time.
        """
        self.files.cut(end)
        self.end = self._received_end = end
        self.last_store_ms = last_store_ms
        self._refusal = ""
        segment = self.files.find(end)
        if segment is not None:
            # Without this flush, a power loss could restore truncated records after new ones, or lose the file's name.
            segment.is_fresh = True
            sync_all([segment], self._disk)
            self.memory = segment.memory
            self.base = segment.base
            self.limit = self._allocated_end = end  # the first append allocates disk space
            self._preallocation.begin(end)

    def close(self) -> None:
        """Refuse appends and join the threads of preallocation. Views of the log stay valid."""
        self.refuse("the store is closed")
        self._preallocation.close()
        self.memory = None
        self.files.release()

    # -- reading

    def views(self, starts: Sequence[int], sizes: Sequence[int]) -> list[memoryview]:
        """Return a memory view of each range. `starts` are ascending log offsets, `sizes` are in bytes.

        No range may cross the log's end or a segment's end.
        """
        if not starts:
            return []
        segment = self._segment_at(starts[0])
        memory, base = segment.memory, segment.base
        if starts[-1] < base + segment.size:  # the usual case: one segment holds all ranges
            return [memory[(place := start - base) : place + size] for start, size in zip(starts, sizes, strict=True)]
        views = []
        for start, size in zip(starts, sizes, strict=True):
            segment = self._segment_at(start)
            views.append(segment.memory[start - segment.base : start - segment.base + size])
        return views

    def view(self, start: int, most: int) -> memoryview:
        """Return up to `most` bytes from log offset `start` on, up to the end of the file or of the last record."""
        segment = self.files.find(start)
        if segment is None or start >= self.end:
            return memoryview(b"")
        position = start - segment.base
        return segment.memory[position : min(position + most, self.end - segment.base, segment.size)].toreadonly()

    def copies(self, starts: Sequence[int], sizes: Sequence[int], *, wait: bool) -> list[bytes]:
        """Return a copy of each range, for many scattered records.

        `starts` are ascending log offsets, `sizes` are in bytes. Without `wait`, raises `NotInMemory` if a range must
        be read from the disk.
        """
        copied: list[bytes] = []
        while len(copied) < len(starts):
            first = len(copied)
            segment = self._segment_at(starts[first])
            end = bisect_left(starts, segment.base + segment.size, first)
            places = (start - segment.base for start in starts[first:end])
            copied += segment.read(zip(places, sizes[first:end], strict=True), wait=wait)
        return copied

    def segment_of(self, offset: int) -> tuple[int, memoryview] | None:
        """Return first log offset and mapped memory of the segment that holds `offset`; None without such a segment."""
        return None if (segment := self.files.find(offset)) is None else (segment.base, segment.memory)

    def _segment_at(self, offset: int) -> Segment:
        segment = self.files.find(offset)
        assert segment is not None  # callers ask for offsets from `min_offset` to `end`, where no file is missing
        return segment

    def records_from(self, start: int) -> Iterator[tuple[int, memoryview]]:
        """Yield log offset and record of each record from `start`, where a record begins, to the log's end.

        If the log begins after `start`, it is read from its beginning: the log of a new replica begins where its
        master's does. Damaged bytes are logged and skipped. Only size and magic number of a record are checked: all
        other fields, including the log offset in the record, may be damaged.
        """
        start = max(start, self.min_offset)
        while start < self.end:
            segment = self._segment_at(start)
            memory, base = segment.memory, segment.base
            end = min(self.end - base, segment.size)
            last = end - BLANK_SIZE
            position = start - base
            size, magic = 0, BLANK_MAGIC
            while position <= last:
                size, magic = unpack_size_and_magic(memory, position)
                if magic != MAGIC or not FIXED_SIZE <= size <= end - position:
                    break
                yield base + position, memory[position : position + size]
                position += size
            is_end = magic == BLANK_MAGIC or position > last
            start = base + segment.size if is_end else self._after_damage(segment, base + position)

    def _after_damage(self, segment: Segment, start: int) -> int:
        following = next((each for each in self.walk(start) if isinstance(each, StoredMessage)), None)
        logger.error("%s byte %d: no record begins here; skipped to the next one", segment.path, start - segment.base)
        return self.end if following is None else min(following.log_offset, self.end)

    def message_at(self, log_offset: int, *, check_crc: bool = True) -> StoredMessage | None:
        """Return the message whose record begins at a log offset; None if no record begins there.

        Raises `StoreCorrupt` with file and byte if the record is damaged. The body's checksum is compared only with
        `check_crc`.
        """
        if (record := self.record_at(log_offset)) is None:
            return None
        try:
            return decode(record, check_crc=check_crc)
        except StoreCorrupt as error:
            raise StoreCorrupt(
                f"{self.place_of(log_offset)}: the record is damaged ({error}); `pyromq store repair`, on a stopped"
                " broker, keeps all others"
            ) from error

    def place_of(self, log_offset: int) -> str:
        """Return the text "FILE byte N" for a log offset, for logs and errors."""
        base = log_offset - log_offset % self.files.segment_bytes
        return f"{self.files.path_of(base)} byte {log_offset - base}"

    def record_at(self, log_offset: int) -> memoryview | None:
        """Return the bytes of the record that begins at a log offset; None if no record begins there.

        Accepts any integer.
        """
        segment = self.files.find(log_offset)
        if segment is None or not self.min_offset <= log_offset <= self.end - FIXED_SIZE:
            return None
        position = log_offset - segment.base
        if position > segment.size - FIXED_SIZE:
            return None
        memory = segment.memory
        size, magic = unpack_size_and_magic(memory, position)
        is_own = magic == MAGIC and log_offset_of(memory, position) == log_offset
        if not is_own or not FIXED_SIZE <= size <= self.end - log_offset:
            return None
        return memory[position : position + size]

    def store_ms_at(self, log_offset: int) -> int | None:
        """Return the store time (ms since 1970) of the record at a log offset; None if no record begins there."""
        record = self.record_at(log_offset)
        return None if record is None else store_ms_of(record)

    def is_intact(self, log_offset: int) -> bool:
        """Return True if a complete record with a correct checksum begins at a log offset."""
        segment = self.files.find(log_offset)
        walk = self.walk(log_offset, may_be_torn=True)
        return segment is not None and walk.has_record(segment, log_offset - segment.base)

    def walk(self, start: int, *, check_crc: bool = True, may_be_torn: bool = False) -> LogWalk:
        """Return an iterator over the messages and the damage from `start`, where a record begins.

        After damage, `_SEARCHED_BYTES` of a file are searched for the next intact record.
        """
        return LogWalk(
            list(self.files.segments),
            self.files.segment_bytes,
            start,
            check_crc=check_crc,
            may_be_torn=may_be_torn,
            searched_bytes=_SEARCHED_BYTES,
        )


def _encode_all(messages: Sequence[StoredMessage], start: int, now_ms: int) -> bytes:
    records = []
    for message in messages:
        message.store_ms = now_ms
        message.log_offset = start
        try:
            records.append(encode(message))
        except struct.error as error:
            raise _refused(message) from error
        start += message.size
    return b"".join(records)


def _refused(message: StoredMessage) -> MessageRefused:
    size = len(message.property_text.encode())
    return MessageRefused(f"properties take {size} bytes (limit 32767), or a number of the message exceeds its field")


class Residency:
    """Finds which records of the log are resident in memory, and which pages a reader must load to avoid page faults.

    The system call (mincore) takes longer than a read of resident records. So a block (1 MiB) found resident is not
    checked again for a second. An eviction within that second costs one page fault.
    """

    def __init__(self, log: CommitLog, clock: Clock) -> None:
        self._log = log
        self._monotonic = clock.monotonic
        self._trusted_until: dict[int, float] = {}  # block number -> end of its trust, monotonic seconds

    def recent(self) -> PagesToLoad:
        """Return the last `RECENT_BYTES` of the log as pieces of files.

        A start must load them, as readers take them as resident.
        """
        log = self._log
        start = max(log.end - RECENT_BYTES, log.min_offset)
        pieces: PagesToLoad = []
        for each in log.files.between(start, log.end) if start < log.end else ():
            first = max(start - each.base, 0)
            pieces.append(FilePiece(each.path, first, min(log.end - each.base, each.size) - first))
        return pieces

    def is_recent(self, log_offset: int) -> bool:
        """Return True if a log offset lies in the last `RECENT_BYTES` of the log, which count as resident."""
        return log_offset >= self._log.end - RECENT_BYTES

    def covers(self, start: int, end: int) -> bool:
        """Return True if the log is resident from log offset `start` to `end`.

        False also if the range spans more than `_MAX_CHECKED` blocks.
        """
        if start >= self._log.end - RECENT_BYTES:
            return True
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        now = self._monotonic()
        if first == last:
            return self._is_resident(first, now)
        is_short = 0 < last - first < _MAX_CHECKED
        return is_short and all(self._is_resident(block, now) for block in range(first, last + 1))

    def to_load(self, places: Iterable[tuple[int, int]]) -> PagesToLoad:
        """Return the pieces of files to load for ranges (log offset, size in bytes) that are not resident.

        Sizes may be damaged.
        """
        found: PagesToLoad = []
        recent, most = self._log.end - RECENT_BYTES, self._log.max_record_bytes
        first = last = -_STRETCH_BYTES  # no range yet
        for start, size in places:
            if start < recent and size > 0:
                end = start + min(size, most)
                if first <= start and max(end, last) - first <= _STRETCH_BYTES:
                    last = max(end, last)
                else:
                    found += self._range_to_load(first, last)
                    first, last = start, end
        return found + self._range_to_load(first, last)

    def heads_to_load(self, log_offsets: Iterable[int]) -> PagesToLoad:
        """Return the pieces of files to load for the fixed-size heads of records; [] if all heads are resident."""
        return self.to_load((at, FIXED_SIZE) for at in log_offsets)

    def record_to_load(self, log_offset: int) -> PagesToLoad:
        """Return the next pieces of files to load for a record; [] once the record is resident.

        The record's head is loaded first, as the head holds the record's size. So call this again after each load.
        """
        if self.is_recent(log_offset) or log_offset < self._log.min_offset:
            return []
        if head := self.heads_to_load((log_offset,)):
            return head
        record = self._log.record_at(log_offset)
        return [] if record is None else self.to_load([(log_offset, len(record))])

    async def load_record(self, log_offset: int) -> None:
        """Load the record that begins at a log offset into memory.

        Raises `BrokerError` if repeated loads do not make the record resident.
        """
        await when_loaded(self.record_to_load(log_offset), partial(self.need_record, log_offset))

    def need_record(self, log_offset: int) -> None:
        """Raise `NotInMemory`, with the pages to load, unless the record that begins at a log offset is resident."""
        if to_load := self.record_to_load(log_offset):
            raise NotInMemory(to_load)

    def need(self, start: int, end: int) -> None:
        """Raise `NotInMemory`, with the pages to load, unless the log is resident from log offset `start` to `end`."""
        if not self.covers(start, end) and (to_load := self._range_to_load(start, end)):
            raise NotInMemory(to_load)

    def _is_resident(self, block: int, now: float) -> bool:
        if self._trusted_until.get(block, 0.0) > now:
            return True
        start, end = block * _BLOCK_BYTES, (block + 1) * _BLOCK_BYTES
        if not self._log.files.between(start, min(end, self._log.end)) or self._range_to_load(start, end):
            return False
        if len(self._trusted_until) >= _MAX_BLOCKS:
            self._trusted_until.clear()
        self._trusted_until[block] = now + _TRUSTED_SECONDS
        return True

    def _range_to_load(self, start: int, end: int) -> PagesToLoad:
        end = min(end, self._log.end)
        segments = self._log.files.between(start, end)
        return [each for segment in segments for each in segment.to_load(start - segment.base, end - segment.base)]
