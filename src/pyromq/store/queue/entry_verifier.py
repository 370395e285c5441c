"""Queue entries that an earlier process wrote: compared with their records before they are first used, and mended.

A start reads only the log's end again, so a bit that flipped in a queue since would have a pull answered with bytes
that are no record. The record an entry should lead to lies between those of its neighbours; one that is not there any
more is passed over from then on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyromq import speedups
from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.record import decode, place_of
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue, QueueEntry

if speedups.is_active:
    from pyromq.speedups.records import own_records

logger = logger_of(__name__)

_SEARCHED_BYTES = 64 << 20  # of the log, for one entry; whoever wants something waits meanwhile
_SEARCHED_ENTRIES = 1_000  # for a sound one behind it

Bounds = tuple[int, int]  # queue offsets: from, up to


class EntryVerifier:
    """Remembers of each queue the last stretch that it found sound: who reads on is not held up twice.

    `tags_code` tells by what a message is filtered.
    Entries before a queue's `unverified_end` are those of earlier processes.
    """

    def __init__(self, log: CommitLog, tags_code: Callable[[StoredMessage], int]) -> None:
        self._log = log
        self._tags_code = tags_code
        self.log_began = 0  # when the store was opened
        self._proven: dict[tuple[ConsumeQueue, bool], Bounds] = {}

    def is_due(self, queue: ConsumeQueue, first: int, end: int, *, tags: bool) -> bool:
        """Whether entries of this stretch were not compared yet."""
        low, high = self._proven.get((queue, tags), (0, 0))
        return first < queue.unverified_end and not low <= first <= min(end, queue.unverified_end) <= high

    def prove(self, queue: ConsumeQueue, first: int, end: int, *, tags: bool = False) -> bool:
        """Compare a stretch of entries with their records, `tags` too, and mend them; whether all were as they should.

        May be called by another thread than the writer's: it changes nothing but entries that are wrong.
        """
        if not self.is_due(queue, first, end, tags=tags):
            return True
        end = min(end, queue.unverified_end)
        wrong = list(self._wrong(queue, max(first, queue.min_offset), end, tags=tags))
        for offset in wrong:
            self._mend(queue, offset)
        low, high = self._proven.get((queue, tags), (0, 0))
        self._proven[queue, tags] = (low, end) if low <= first <= high < end else (first, end)
        return not wrong

    def _wrong(self, queue: ConsumeQueue, first: int, end: int, *, tags: bool) -> Iterator[int]:
        """Yield the queue offsets of the wrong entries among these."""
        while first < end:
            if not tags:
                first += self._plainly_right(queue, first, end)
            if first < end and not self._is_right(queue, first, tags):
                yield first
            first += 1

    def _plainly_right(self, queue: ConsumeQueue, first: int, end: int) -> int:
        """Return how many of these entries, from the first on, are right, as far as that can be told quickly."""
        entry = queue.find(first) if speedups.is_active else None
        segment = None if entry is None else self._log.segment_of(entry.log_offset)
        content = None if segment is None else queue.content(first, end - first)
        if segment is None or content is None:
            return 0
        base, memory = segment
        return own_records(content, memory, base, self._log.end, queue.queue_id, first)

    def _is_right(self, queue: ConsumeQueue, queue_offset: int, tags: bool = False) -> bool:
        entry = queue.find(queue_offset)
        if entry is None or entry.size == FILLER_SIZE:
            return True
        if entry.log_offset < self._log.min_offset:
            return self._is_expired(queue, entry)
        record = self._log.record_at(entry.log_offset)
        if record is None or len(record) != entry.size:
            return False
        if place_of(record) != (queue.queue_id, queue_offset):
            return False
        try:
            return not tags or self._tags_code(decode(record)) == entry.tags_code
        except StoreCorrupt:
            return False

    def _is_expired(self, queue: ConsumeQueue, entry: QueueEntry) -> bool:
        """Whether an entry led to a record until that expired: since the start, or before it with all of the queue."""
        last = queue.find(queue.unverified_end - 1)
        return entry.log_offset >= self.log_began or last is None or last.log_offset < self.log_began

    def mend_last(self, queue: ConsumeQueue) -> bool:
        """Mend the last entry if the log has its record elsewhere; whether it leads to its record now."""
        last = queue.max_offset - 1
        return self._is_right(queue, last) or self._make_again(queue, last, self._bounds(queue, last))

    def _mend(self, queue: ConsumeQueue, queue_offset: int) -> None:
        start, end = bounds = self._bounds(queue, queue_offset)
        if self._make_again(queue, queue_offset, bounds):
            return
        path, position = queue.place_of(queue_offset)
        if self._leads_to_own(queue, queue_offset):
            logger.error(
                "%s byte %d: the record that the entry leads to has another queue offset: there it is damaged",
                *(path, position),
            )
            return
        queue.put(queue_offset, QueueEntry(start, FILLER_SIZE, 0))
        logger.error(
            "%s byte %d: the entry leads to no record, and none is found for it between log offsets %d and %d;"
            " consumers pass over it. `pyromq store check` tells what is damaged, on a stopped broker",
            *(path, position, start, end),
        )

    def _make_again(self, queue: ConsumeQueue, queue_offset: int, bounds: Bounds) -> bool:
        start, end = bounds
        for message in self._log.scan(start, check_crc=False):
            if message.log_offset >= end:
                break
            if (message.topic, message.queue_id, message.queue_offset) == (queue.topic, queue.queue_id, queue_offset):
                queue.put(queue_offset, QueueEntry(message.log_offset, message.size, self._tags_code(message)))
                path, position = queue.place_of(queue_offset)
                logger.warning("%s byte %d: the entry was damaged, and is made again from the log", path, position)
                return True
        return False

    def _leads_to_own(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry leads to a record of its queue, whichever."""
        entry = queue.find(queue_offset)
        record = None if entry is None else self._log.record_at(entry.log_offset)
        if entry is None or record is None or len(record) != entry.size:
            return False
        try:
            message = decode(record, check_crc=True)
        except StoreCorrupt:
            return False
        return (message.topic, message.queue_id) == (queue.topic, queue.queue_id)

    def _bounds(self, queue: ConsumeQueue, queue_offset: int) -> Bounds:
        """Return from where to where in the log the record of an entry must be, as its neighbours tell."""
        before = self._first_right(queue, range(queue_offset - 1, queue.min_offset - 1, -1))
        start = self._log.min_offset
        if before is not None:  # one passed over has no record, but its place
            start = max(start, before.log_offset + (0 if before.size == FILLER_SIZE else before.size))
        last = min(queue.max_offset, queue_offset + _SEARCHED_ENTRIES)
        behind = self._first_right(queue, range(queue_offset + 1, last))
        end = self._log.end if behind is None else behind.log_offset
        return start, min(end, start + _SEARCHED_BYTES)

    def _first_right(self, queue: ConsumeQueue, offsets: range) -> QueueEntry | None:
        right = (offset for offset in offsets if self._is_right(queue, offset))
        return next((queue.find(offset) for offset in right), None)
