"""Finding a message of a queue by the time it was stored: a few looks at records that may be on the disk only."""

from __future__ import annotations

from pyromq.store.log.commit_log import CommitLog
from pyromq.store.log.residency import Residency
from pyromq.store.looking import Looking
from pyromq.store.queue.consume_queue import ConsumeQueue


class TimeSearch:
    """One search. Messages may come, and expire, meanwhile."""

    def __init__(self, queue: ConsumeQueue, log: CommitLog, residency: Residency) -> None:
        self._queue = queue
        self._log = log
        self._residency = residency

    def first_from(self, timestamp_ms: int) -> Looking[int]:
        """Find the offset of the first message stored at that time or later, or of the one before if that is nearer.

        Of two equally near ones the earlier; the last message if all are older; 0 in an empty queue.
        """
        begin, end = low, high = self._queue.min_offset, self._queue.max_offset
        if end <= begin:
            return 0
        while low < high:
            middle = (low + high) // 2
            if ((yield from self._stored_ms(middle)) or 0) >= timestamp_ms:
                high = middle
            else:
                low = middle + 1
        if low == end:
            return low - 1
        if low == begin:
            return low
        later_ms, earlier_ms = (yield from self._stored_ms(low)), (yield from self._stored_ms(low - 1))
        is_nearer = later_ms is None or earlier_ms is None or later_ms - timestamp_ms < timestamp_ms - earlier_ms
        return low if is_nearer else low - 1

    def _stored_ms(self, queue_offset: int) -> Looking[int | None]:
        yield self._queue.unread_entry(queue_offset)
        entry = self._queue.find(queue_offset)
        if entry is None:
            return None
        yield self._residency.unread_heads((entry.log_offset,))
        return self._log.store_ms_at(entry.log_offset)
