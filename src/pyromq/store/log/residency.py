"""Which parts of the commit log are resident in memory, so that readers can avoid page faults.

The system call takes longer than a read of resident records. So a block found resident is not checked again for a
second; an eviction within that second costs one page fault.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from pyromq.clock import Clock
from pyromq.record import FIXED_SIZE
from pyromq.slow_work import FilePiece, NotInMemory, PagesToLoad, when_loaded
from pyromq.store.log.commit_log import CommitLog

RECENT_BYTES = 64 << 20  # bytes at the log's end that count as resident: they were just written
_BLOCK_BYTES = 1 << 20
_STRETCH_BYTES = 1 << 20  # neighbouring records are loaded together, with the bytes between them, up to this size
_TRUSTED_SECONDS = 1.0
_MOST_CHECKED = 64  # blocks checked for one read: a bulk read of one queue may span many
_MOST_BLOCKS = 65_536  # blocks remembered: 64 GiB of log


class Residency:
    """Tells which records are resident, and which pages a reader must load first."""

    def __init__(self, log: CommitLog, clock: Clock) -> None:
        self._log = log
        self._monotonic = clock.monotonic
        self._trusted_until: dict[int, float] = {}  # by number of the block in the log

    def recent(self) -> PagesToLoad:
        """Return the end of the log as pieces of files, to be loaded at start: readers take it as resident."""
        log = self._log
        start = max(log.end - RECENT_BYTES, log.min_offset)
        pieces: PagesToLoad = []
        for each in log.files.between(start, log.end) if start < log.end else ():
            first = max(start - each.base, 0)
            pieces.append(FilePiece(each.path, first, min(log.end - each.base, each.size) - first))
        return pieces

    def is_recent(self, log_offset: int) -> bool:
        """Whether a log offset lies in the end of the log that counts as resident."""
        return log_offset >= self._log.end - RECENT_BYTES

    def covers(self, start: int, end: int) -> bool:
        """Whether a range of the log is resident; False if it spans more than `_MOST_CHECKED` blocks."""
        if start >= self._log.end - RECENT_BYTES:
            return True
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        now = self._monotonic()
        if first == last:
            return self._is_resident(first, now)
        is_short = 0 < last - first < _MOST_CHECKED
        return is_short and all(self._is_resident(block, now) for block in range(first, last + 1))

    def to_load(self, places: Iterable[tuple[int, int]]) -> PagesToLoad:
        """Return the ranges (log offset and size) that are not resident. Sizes may be damaged."""
        found: PagesToLoad = []
        recent, most = self._log.end - RECENT_BYTES, self._log.max_record_bytes
        first = last = -_STRETCH_BYTES  # none yet
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
        """Return the fixed-size heads of records that are not resident."""
        return self.to_load((at, FIXED_SIZE) for at in log_offsets)

    def record_to_load(self, log_offset: int) -> PagesToLoad:
        """Return the next pages of a record to load; [] once all of it is resident.

        The head comes first, as it holds the size: call again after each load.
        """
        if self.is_recent(log_offset) or log_offset < self._log.min_offset:
            return []
        if head := self.heads_to_load((log_offset,)):
            return head
        record = self._log.record_at(log_offset)
        return [] if record is None else self.to_load([(log_offset, len(record))])

    async def load_record(self, log_offset: int) -> None:
        """Load the record that begins at a log offset. Raises `BrokerError` if repeated loads do not bring it."""
        await when_loaded(self.record_to_load(log_offset), partial(self.need_record, log_offset))

    def need_record(self, log_offset: int) -> None:
        """Raise `NotInMemory` unless the record that begins at a log offset is resident."""
        if to_load := self.record_to_load(log_offset):
            raise NotInMemory(to_load)

    def _is_resident(self, block: int, now: float) -> bool:
        if self._trusted_until.get(block, 0.0) > now:
            return True
        start, end = block * _BLOCK_BYTES, (block + 1) * _BLOCK_BYTES
        if not self._log.files.between(start, min(end, self._log.end)) or self._range_to_load(start, end):
            return False
        if len(self._trusted_until) >= _MOST_BLOCKS:
            self._trusted_until.clear()
        self._trusted_until[block] = now + _TRUSTED_SECONDS
        return True

    def _range_to_load(self, start: int, end: int) -> PagesToLoad:
        end = min(end, self._log.end)
        segments = self._log.files.between(start, end)
        return [each for segment in segments for each in segment.to_load(start - segment.base, end - segment.base)]
