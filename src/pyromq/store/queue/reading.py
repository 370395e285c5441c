"""Reads messages of a queue: returns views of their records, their number and the next offset, without copies.

Source: RocketMQ 4.9.8, DefaultMessageStore.getMessage and isTheBatchFull.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto

import msgspec

from pyromq.filter.filter import Filter
from pyromq.platforms import platform
from pyromq.slow_work import NotInMemory, PagesToLoad, loaded
from pyromq.store.log.commit_log import RECENT_BYTES, CommitLog, Residency
from pyromq.store.queue.consume_queue import (
    ENTRY_BYTES,
    FILLER_SIZE,
    ConsumeQueue,
    unpack_entries,
    unpack_extents,
)
from pyromq.store.queue.entry_verifier import EntryVerifier
from pyromq.store.queue.queue_table import QueueTable
from pyromq.store.store_config import StoreConfig

_NO_LIMIT = 1 << 62
AHEAD_BYTES = 4 << 20  # bytes loaded in advance after non-resident records: consumers mostly read on
SCANNED_ENTRIES = 800  # least entries that a read may scan, so that a sparse filter progresses. Source: 16,000 bytes


class ReadStatus(Enum):
    """The outcome of a read. Clients see the name as remark of the reply."""

    FOUND = auto()
    NO_MESSAGE_IN_QUEUE = auto()  # the queue never had a message
    NO_MATCHED_LOGIC_QUEUE = auto()  # the queue does not exist
    OFFSET_TOO_SMALL = auto()
    OFFSET_OVERFLOW_ONE = auto()  # the offset is the maximum: there is no newer message yet
    OFFSET_OVERFLOW_BADLY = auto()  # the offset is above the maximum
    OFFSET_FOUND_NULL = auto()  # the queue's file for the offset is deleted
    NO_MATCHED_MESSAGE = auto()  # the filter rejected all scanned messages
    MESSAGE_WAS_REMOVING = auto()  # retention has deleted the records of the entries


class ReadResult(msgspec.Struct, frozen=True):
    """The messages that a read found: `count` messages in `records`, `size` bytes in all.

    Each view of the mapped log holds one or more records back to back. The next read must begin at `next_offset`.
    """

    status: ReadStatus
    next_offset: int
    min_offset: int
    max_offset: int
    records: list[memoryview]
    count: int
    size: int


Place = tuple[ConsumeQueue, int]  # queue and queue offset of a message; a recreated topic has new queues
_Found = tuple[int, ReadStatus, Sequence[int], Sequence[int], int, int]  # scanned, status, starts, sizes, count, bytes


class Reading:
    """Reads messages of queues by queue offset, and finds queue offsets by store time."""

    def __init__(
        self,
        log: CommitLog,
        queues: QueueTable,
        config: StoreConfig,
        *,
        verifier: EntryVerifier,
        residency: Residency,
    ) -> None:
        self._log = log
        self.segment_of = log.segment_of
        self._queues = queues
        self._verifier = verifier
        self.residency = residency
        self._limits = (config.max_transfer_bytes, config.max_transfer_count)
        self._cold_limits = (config.cold_transfer_bytes, config.cold_transfer_count)
        self._bulk_limits = (config.bulk_transfer_bytes, config.bulk_transfer_count)
        self._resident_bytes = platform.memory_bytes() * config.cold_memory_percent // 100

    def read(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        *,
        max_bytes: int | None = None,
        wanted: Filter | None = None,
    ) -> ReadResult:
        """Return messages from `queue_offset` on that the filter `wanted` accepts.

        A read scans up to 800 entries, or `max_count` if that is more, of one file of the queue. The result has at
        least one message if a scanned entry leads to an accepted message. If `max_bytes` exceeds the configured limit,
        the limits of bulk reads apply. Raises `NotInMemory` if records are not resident.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return ReadResult(ReadStatus.NO_MATCHED_LOGIC_QUEUE, 0, 0, 0, [], 0, 0)
        end = self.end_of(queue)
        if not queue.min_offset <= queue_offset < end:
            return _outside(queue, queue_offset, end)
        content = queue.content(queue_offset, min(max(SCANNED_ENTRIES, max_count), end - queue_offset))
        if content is None:
            after = queue.after_file_of(queue_offset)
            return ReadResult(ReadStatus.OFFSET_FOUND_NULL, after, queue.min_offset, end, [], 0, 0)
        limits = (max_bytes, max_count)
        found = self._collect(queue, queue_offset, content, limits=limits, wanted=wanted)
        if queue_offset < queue.unverified_end:
            tags = wanted is not None and wanted.accepts_code is not None
            while not self._verifier.verify(queue, queue_offset, found.next_offset, tags=tags):
                found = self._collect(queue, queue_offset, content, limits=limits, wanted=wanted)
        if wanted is not None and wanted.accepts_record is not None and found.records:
            return self._filtered(found, queue_offset, content, limits=limits, wanted=wanted)
        return found

    def end_of(self, queue: ConsumeQueue) -> int:
        """Return the queue offset after the last message of a queue that readers may see."""
        readable_to = self._log.readable_to
        return queue.max_offset if readable_to >= self._log.end else queue.end_before(readable_to)

    def limits_in_memory(self) -> dict[str, int]:
        """Return the limits that compiled code uses for reads of resident records.

        `recent_bytes` and `warm_bytes` are distances from the log's end.
        """
        return {
            "max_bytes": self._limits[0],
            "max_count": self._limits[1],
            "bulk_bytes": self._bulk_limits[0],
            "bulk_count": self._bulk_limits[1],
            "scanned": SCANNED_ENTRIES,
            "recent_bytes": RECENT_BYTES,
            "warm_bytes": self._resident_bytes,
        }

    def is_cold(self, log_offset: int) -> bool:
        """Return True if a record is so far from the log's end that the record is probably not resident."""
        return log_offset < self._log.end - self._resident_bytes

    def begins_nearby(self, topic: str, queue_id: int) -> bool:
        """Return whether a queue still has its first message, and this message is recent; True for an empty queue."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue.min_offset > 0:
            return queue is None
        begin = self.log_offset_of((queue, 0))
        return begin is None or not self.is_cold(begin)

    def to_load(self, topic: str, queue_id: int, first: int, count: int, *, max_bytes: int = _NO_LIMIT) -> PagesToLoad:
        """Return the pages to load for up to `count` messages of a queue; [] if all of their records are resident.

        Fewer messages are covered at the end of a file of the queue, or after `max_bytes`.
        """
        queue = self._queues.find(topic, queue_id)
        content = None if queue is None or not 0 <= first < queue.max_offset else queue.content(first, count)
        return [] if content is None else self.residency.to_load(_extents(content, max_bytes))

    def first_from(self, topic: str, queue_id: int, queue_offset: int) -> Place | None:
        """Return the place of the queue's first message at `queue_offset` or later; None without such a message."""
        queue = self._queues.find(topic, queue_id)
        if queue is None or queue_offset >= self.end_of(queue):
            return None
        return queue, max(queue_offset, queue.min_offset)

    def place(self, topic: str, queue_id: int, queue_offset: int) -> Place | None:
        """Return the place of a message, which need not exist; None if the queue does not exist."""
        queue = self._queues.find(topic, queue_id)
        return None if queue is None else (queue, queue_offset)

    def log_offset_of(self, place: Place) -> int | None:
        """Return the log offset of a message from its queue entry; None if the message is lost or does not exist."""
        queue, queue_offset = place
        entry = queue.find(queue_offset)
        return None if entry is None or entry.size == FILLER_SIZE else entry.log_offset

    def pages_to_verify(self, topic: str, queue_id: int, first: int, count: int) -> PagesToLoad:
        """Return the pages to load before the entries `first` to `first + count` can be verified.

        These are the heads of the entries' records. [] if the entries are verified already, or if the heads are
        resident.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or not self._verifier.is_due(queue, first, first + count, tags=False):
            return []
        content = queue.content(first, count) if 0 <= first < queue.max_offset else None
        return self.residency.heads_to_load(start for start, _, _ in unpack_entries(content or b""))

    async def search_by_time(self, topic: str, queue_id: int, timestamp_ms: int) -> int:
        """Return the queue offset of the message whose store time is nearest to `timestamp_ms`.

        Of two equally near messages the earlier one counts. Returns the last offset if all messages are older, 0 for an
        empty queue. Messages may be stored and expire meanwhile.
        """
        queue = self._queues.find(topic, queue_id)
        if queue is None or (high := self.end_of(queue)) <= queue.min_offset:
            return 0
        begin, end = low, high = queue.min_offset, high
        while low < high:
            middle = (low + high) // 2
            if (await self._stored_ms(queue, middle) or 0) >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        if low == end:
            return low - 1
        if low == begin:
            return low
        later_ms = await self._stored_ms(queue, low)
        earlier_ms = await self._stored_ms(queue, low - 1)
        is_nearer = later_ms is None or earlier_ms is None or later_ms - timestamp_ms < timestamp_ms - earlier_ms
        return low if is_nearer else low - 1

    async def _stored_ms(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        await loaded(queue.entry_to_load(queue_offset))
        entry = queue.find(queue_offset)
        if entry is None:
            return None
        await loaded(self.residency.heads_to_load((entry.log_offset,)))
        return self._log.store_ms_at(entry.log_offset)

    def _collect(
        self,
        queue: ConsumeQueue,
        queue_offset: int,
        content: memoryview,
        *,
        limits: tuple[int | None, int],
        wanted: Filter | None,
    ) -> ReadResult:
        accepts = None if wanted is None else wanted.accepts_code
        first = next(unpack_entries(content))[0]
        max_bytes, max_count = self._allowed(limits[0], self.is_cold(first))
        max_count = min(max_count, limits[1])
        if wanted is not None and wanted.accepts_record is not None:
            max_count = SCANNED_ENTRIES  # scan all entries: `_filtered` applies the limit later
        found = None
        if accepts is None and 0 < max_count <= SCANNED_ENTRIES:
            found = self._next_ones(content, min(max_count, len(content) // ENTRY_BYTES), max_bytes)
        if found is None:
            found = self._picked(content, max_count, max_bytes, accepts)
        scanned, status, starts, sizes, count, total = found
        is_resident = not count or self.residency.covers(starts[0], starts[-1] + sizes[-1])
        if not is_resident and (to_load := self.residency.to_load(zip(starts, sizes, strict=True))):
            to_load[-1] = to_load[-1]._replace(ahead=AHEAD_BYTES)
            raise NotInMemory(to_load)
        low, high, after = queue.min_offset, self.end_of(queue), queue_offset + scanned
        return ReadResult(status, after, low, high, self._log.views(starts, sizes), count, total)

    def _filtered(
        self,
        found: ReadResult,
        queue_offset: int,
        content: memoryview,
        *,
        limits: tuple[int | None, int],
        wanted: Filter,
    ) -> ReadResult:
        """Return a result with only the records that the filter accepts, up to the read's limit of messages."""
        low, high, after = found.min_offset, found.max_offset, found.next_offset
        assert wanted.accepts_record is not None
        most = min(self._allowed(limits[0], self.is_cold(next(unpack_entries(content))[0]))[1], limits[1])
        kept: list[memoryview] = []
        scanned = content[: (after - queue_offset) * ENTRY_BYTES]
        for offset, (log_offset, size, tags_code) in enumerate(unpack_entries(scanned), queue_offset):
            if kept and len(kept) >= most:
                after = offset
                break
            has_record = 0 < size < FILLER_SIZE and self._log.min_offset <= log_offset <= self._log.end - size
            if has_record and (wanted.accepts_code is None or wanted.accepts_code(tags_code)):
                kept += filter(wanted.accepts_record, self._log.views((log_offset,), (size,)))
        status = ReadStatus.FOUND if kept else ReadStatus.NO_MATCHED_MESSAGE
        return ReadResult(status, after, low, high, kept, len(kept), sum(map(len, kept)))

    def _allowed(self, asked_bytes: int | None, cold: bool) -> tuple[int, int]:
        """Return the limits of a read: bytes and messages. `cold`: the first record is probably not resident."""
        max_bytes, max_count = self._cold_limits if cold else self._limits
        if asked_bytes is None:
            return max_bytes, max_count
        if asked_bytes <= self._limits[0]:
            return min(max_bytes, asked_bytes), max_count
        bulk_bytes, bulk_count = self._bulk_limits
        # A bulk read of records on disk gets a quarter of the bytes, as such a read may block the event loop.
        return min(asked_bytes, bulk_bytes // 4 if cold else bulk_bytes), bulk_count

    def _next_ones(self, content: memoryview, count: int, max_bytes: int) -> _Found | None:
        """Return the result of `_picked` for the next `count` entries if all of them pass, else None.

        None if the records have too many bytes, or one is deleted. Entries ascend, so checks of the first and last
        entry hold for all.
        """
        fields = unpack_extents(count)(content)
        starts, sizes = fields[0::2], fields[1::2]
        total = sum(sizes)
        start = starts[0]
        end = starts[-1] + sizes[-1]
        if total > max_bytes or start < self._log.min_offset or end > self._log.end or min(sizes) <= 0:
            return None
        if end - start == total:  # the records lie back to back: one view holds all
            starts, sizes = starts[:1], (total,)
        elif min(starts) < start or max(starts) > starts[-1]:  # entries that do not ascend are damaged
            return None
        return count, ReadStatus.FOUND, starts, sizes, count, total

    def _picked(
        self, content: memoryview, max_count: int, max_bytes: int, accepts: Callable[[int], bool] | None
    ) -> _Found:
        """Check each entry and return the accepted records within the limits, with status and scanned entries."""
        log_end = self._log.end
        log_begin = self._log.min_offset
        status = ReadStatus.NO_MATCHED_MESSAGE
        scanned = count = total = 0
        run_end = -1  # log offset after the last record taken: a record that begins there joins its view
        starts: list[int] = []
        sizes: list[int] = []
        for log_offset, size, tags_code in unpack_entries(content):
            if count and (count >= max_count or total + size > max_bytes):
                break
            scanned += 1
            if accepts is not None and not accepts(tags_code):
                if not count:
                    status = ReadStatus.NO_MATCHED_MESSAGE
                continue
            if size <= 0 or size == FILLER_SIZE or not log_begin <= log_offset <= log_end - size:
                if not count:
                    status = ReadStatus.MESSAGE_WAS_REMOVING
                continue
            count += 1
            total += size
            if log_offset == run_end:
                sizes[-1] += size
            else:
                starts.append(log_offset)
                sizes.append(size)
            run_end = log_offset + size
        if count:
            status = ReadStatus.FOUND
        return scanned, status, starts, sizes, count, total


def _extents(content: memoryview, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield log offset and size of the record of each entry until `max_bytes` is reached. Skips fillers."""
    total = 0
    for start, size, _ in unpack_entries(content):
        if size != FILLER_SIZE and total < max_bytes:
            total += size
            yield start, size


def _outside(queue: ConsumeQueue, queue_offset: int, high: int) -> ReadResult:
    """Return the result for a queue offset that readers may not see, or that is outside the queue.

    `high` is the end of what readers may see. `next_offset` is the nearest offset inside; for a message that is stored
    and not confirmed, it is the message's offset.
    """
    low = queue.min_offset
    if high < queue_offset <= queue.max_offset:
        status, next_offset = ReadStatus.OFFSET_OVERFLOW_ONE, queue_offset
    elif high == 0:
        status, next_offset = ReadStatus.NO_MESSAGE_IN_QUEUE, 0
    elif queue_offset < low:
        status, next_offset = ReadStatus.OFFSET_TOO_SMALL, low
    elif queue_offset == high:
        status, next_offset = ReadStatus.OFFSET_OVERFLOW_ONE, high
    else:
        status, next_offset = ReadStatus.OFFSET_OVERFLOW_BADLY, high
    return ReadResult(status, next_offset, low, high, [], 0, 0)
