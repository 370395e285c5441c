"""Which parts of the commit log are resident in memory, so that readers can avoid page faults.

The system call takes longer than a read of resident records. So a block found resident is not checked again for a
second; an eviction within that second costs one page fault.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from pyromq.clock import Clock
from pyromq.errors import BrokerError
from pyromq.record import FIXED_SIZE
from pyromq.slow_work import MAX_ROUNDS, FilePiece, NotInMemory, PagesToLoad, SlowWork, loaded
from pyromq.store.disk import Disk
from pyromq.store.log.commit_log import CommitLog

RECENT_BYTES = 64 << 20  # bytes at the log's end that count as resident: they were just written
_BLOCK_BYTES = 1 << 20
_TRUSTED_SECONDS = 1.0
_MOST_CHECKED = 64  # blocks checked for one read: a bulk read of one queue may span many
_MOST_BLOCKS = 65_536  # blocks remembered: 64 GiB of log

T = TypeVar("T")


class Residency:
    """Tells which records are resident, and which pages a reader must load first."""

    def __init__(self, log: CommitLog, *, disk: Disk, clock: Clock) -> None:
        self._log = log
        self._disk = disk
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
        for start, size in places:
            if start < recent and size > 0 and (views := self._log.views_between(start, start + min(size, most))):
                found += [] if self._disk.is_loaded(views) else views
        return found

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

    def unreadable(self, log_offset: int) -> BrokerError:
        """Return the error for a record that is not resident after repeated loads."""
        return BrokerError(
            f"the record at log offset {log_offset} cannot be read from the disk ({self._log.place_of(log_offset)}):"
            " look for errors of the disk in the kernel's log (dmesg), and restore the file from a copy"
        )

    async def load_record(self, log_offset: int) -> None:
        """Load the record that begins at a log offset. Raises `BrokerError` if repeated loads do not bring it."""
        for _ in range(MAX_ROUNDS):
            if not (to_load := self.record_to_load(log_offset)):
                return
            await loaded(to_load)
        if self.record_to_load(log_offset):
            raise self.unreadable(log_offset)  # a read of the mapped file might end the process

    def need_record(self, log_offset: int) -> None:
        """Raise `NotInMemory` unless the record that begins at a log offset is resident."""
        if to_load := self.record_to_load(log_offset):
            raise NotInMemory(to_load, self.unreadable(log_offset))

    def when_resident(self, log_offset: int, answer: Callable[[], T]) -> T | SlowWork[T]:
        """Return what `answer` returns; if the record is not resident, a coroutine that loads it before."""
        return self._load_and(log_offset, answer) if self.record_to_load(log_offset) else answer()

    async def _load_and(self, log_offset: int, answer: Callable[[], T]) -> T:
        await self.load_record(log_offset)
        return answer()

    def _is_resident(self, block: int, now: float) -> bool:
        if self._trusted_until.get(block, 0.0) > now:
            return True
        views = self._log.views_between(block * _BLOCK_BYTES, (block + 1) * _BLOCK_BYTES)
        if not views or not self._disk.is_loaded(views):
            return False
        if len(self._trusted_until) >= _MOST_BLOCKS:
            self._trusted_until.clear()
        self._trusted_until[block] = now + _TRUSTED_SECONDS
        return True
