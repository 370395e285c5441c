"""Compares queue entries that earlier processes wrote with their records, and repairs wrong entries before first use.

A start reads only the end of the log. So a flipped bit in a queue could make a pull return bytes that are not a record.
The right record of a wrong entry lies between the records of the neighbouring entries. One walk over that part of the
log finds the record. The entry of a lost record becomes a filler, which consumers skip.
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

_SEARCHED_BYTES = 64 << 20  # limit of log bytes searched for a missing record: the search blocks the event loop
_SEARCHED_ENTRIES = 1_000  # limit of entries searched for the next correct entry

Bounds = tuple[int, int]  # begin and end of a range of queue offsets


class EntryVerifier:
    """Verifies queue entries that existed when the store was opened (those before a queue's `unverified_end`).

    The last verified range of each queue is remembered, so a sequential reader verifies each entry once. `tags_code`
    returns the tags code that a message's entry must have.
    """

    def __init__(self, log: CommitLog, tags_code: Callable[[StoredMessage], int]) -> None:
        self._log = log
        self._tags_code = tags_code
        self.log_began = 0  # first log offset of the log when the store was opened
        self._verified: dict[tuple[ConsumeQueue, bool], Bounds] = {}

    def is_due(self, queue: ConsumeQueue, first: int, end: int, *, tags: bool) -> bool:
        """Return True if some entries from queue offset `first` to `end` are unverified."""
        low, high = self._verified.get((queue, tags), (0, 0))
        return first < queue.unverified_end and not low <= first <= min(end, queue.unverified_end) <= high

    def verify(self, queue: ConsumeQueue, first: int, end: int, *, tags: bool = False) -> bool:
        """Compare the entries from queue offset `first` to `end` with their records, and repair wrong entries.

        With `tags` the tags codes are compared too. Return True if all entries were right.
        """
        if not self.is_due(queue, first, end, tags=tags):
            return True
        end = min(end, queue.unverified_end)
        runs: list[list[int]] = []
        for offset in self._wrong(queue, max(first, queue.min_offset), end, tags=tags):
            if runs and runs[-1][-1] + 1 == offset:
                runs[-1].append(offset)
            else:
                runs.append([offset])
        for run in runs:
            self._rebuild(queue, run)
        low, high = self._verified.get((queue, tags), (0, 0))
        self._verified[queue, tags] = (low, end) if low <= first <= high < end else (first, end)
        return not runs

    def _wrong(self, queue: ConsumeQueue, first: int, end: int, *, tags: bool) -> Iterator[int]:
        """Yield the queue offsets of entries from `first` to `end` that do not fit their records."""
        while first < end:
            if not tags:
                first += self._count_right(queue, first, end)
            if first < end and not self._is_right(queue, first, tags):
                yield first
            first += 1

    def _count_right(self, queue: ConsumeQueue, first: int, end: int) -> int:
        """Return how many entries, counted from `first`, the compiled check finds right; 0 without compiled code."""
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
        """Return True if retention has deleted the record of an entry; False if the entry is wrong.

        The record was deleted after the store was opened, or earlier together with all records of the queue.
        """
        last = queue.find(queue.unverified_end - 1)
        return entry.log_offset >= self.log_began or last is None or last.log_offset < self.log_began

    def repair_last(self, queue: ConsumeQueue) -> bool:
        """Repair the queue's last entry if its record is in the log. Return True if the last entry is right now."""
        last = queue.max_offset - 1
        return self._is_right(queue, last) or not self._rewrite(queue, [last])

    def _rebuild(self, queue: ConsumeQueue, wrong: list[int]) -> None:
        """Rewrite consecutive wrong entries from the log. Entries of lost records become fillers."""
        for offset in self._rewrite(queue, wrong):
            path, position = queue.place_of(offset)
            if self._leads_to_own(queue, offset):
                logger.error(
                    "%s byte %d: the entry leads to a record of its queue with another queue offset: the record is"
                    " damaged",
                    *(path, position),
                )
                continue
            previous = self._first_right(queue, range(offset - 1, queue.min_offset - 1, -1))
            lost_at = self._log.min_offset if previous is None else previous.log_offset
            queue.put(offset, QueueEntry(lost_at, FILLER_SIZE, 0))
            logger.error(
                "%s byte %d: the entry leads to no record, and the log has none of the message after log offset %d;"
                " consumers skip the message. Stop the broker and run `pyromq store check` to see the damage",
                *(path, position, lost_at),
            )

    def _rewrite(self, queue: ConsumeQueue, wrong: list[int]) -> list[int]:
        """Rewrite consecutive wrong entries from the log between the records of the neighbouring entries.

        Return the queue offsets whose records were not found.
        """
        previous = self._first_right(queue, range(wrong[0] - 1, queue.min_offset - 1, -1))
        following = self._first_right(queue, range(wrong[-1] + 1, min(queue.max_offset, wrong[-1] + _SEARCHED_ENTRIES)))
        start = max(self._log.min_offset, 0 if previous is None else previous.log_offset)
        end = self._log.end if following is None else following.log_offset
        limit = start + _SEARCHED_BYTES
        missing = dict.fromkeys(wrong)
        for message in self._log.walk(start, check_crc=False):
            if not isinstance(message, StoredMessage):
                continue
            if not missing or message.log_offset >= min(end, limit):
                break
            if (message.topic, message.queue_id) == (queue.topic, queue.queue_id) and message.queue_offset in missing:
                del missing[message.queue_offset]
                limit = message.log_offset + _SEARCHED_BYTES
                queue.put(message.queue_offset, QueueEntry(message.log_offset, message.size, self._tags_code(message)))
                logger.warning(
                    "%s byte %d: the damaged entry is rewritten from the log", *queue.place_of(message.queue_offset)
                )
        return list(missing)

    def _leads_to_own(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Return True if an entry leads to an intact record of its queue, with any queue offset."""
        entry = queue.find(queue_offset)
        record = None if entry is None else self._log.record_at(entry.log_offset)
        if entry is None or record is None or len(record) != entry.size:
            return False
        try:
            message = decode(record, check_crc=True)
        except StoreCorrupt:
            return False
        return (message.topic, message.queue_id) == (queue.topic, queue.queue_id)

    def _first_right(self, queue: ConsumeQueue, offsets: range) -> QueueEntry | None:
        right = (offset for offset in offsets if self._is_right(queue, offset))
        return next((queue.find(offset) for offset in right), None)
