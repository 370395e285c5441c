"""Which parts of the commit log are in memory, as far as pulls must know before they touch them.

Asking the system takes longer than finding what to send, so a block in which no page was missing is not asked about
again for a second. What went meanwhile only comes later.
"""

from __future__ import annotations

from pyromq.clock import Clock
from pyromq.store.disk import Disk
from pyromq.store.log.commit_log import CommitLog

RECENT_BYTES = 64 << 20  # of the log's end: still in memory, since they were written a moment ago
_BLOCK_BYTES = 1 << 20
_TRUSTED_SECONDS = 1.0
_MOST_ASKED = 64  # blocks for one read: a large one of one queue lies scattered among others' records
_MOST_BLOCKS = 65_536  # remembered: 64 GiB


class Residency:
    """Remembers for a moment what was in memory."""

    def __init__(self, log: CommitLog, *, disk: Disk, clock: Clock) -> None:
        self._log = log
        self._disk = disk
        self._monotonic = clock.monotonic
        self._trusted_until: dict[int, float] = {}  # by number of the block in the log

    def covers(self, start: int, end: int) -> bool:
        """Whether the log from one offset to another is surely in memory; long stretches never are. For every read."""
        if start >= self._log.end - RECENT_BYTES:
            return True
        first, last = start // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES
        now = self._monotonic()
        if first == last:
            return self._is_whole(first, now)
        is_short = 0 < last - first < _MOST_ASKED
        return is_short and all(self._is_whole(block, now) for block in range(first, last + 1))

    def _is_whole(self, block: int, now: float) -> bool:
        if self._trusted_until.get(block, 0.0) > now:
            return True
        views = self._log.stretch(block * _BLOCK_BYTES, (block + 1) * _BLOCK_BYTES)
        if not views or not self._disk.is_loaded(views):
            return False
        if len(self._trusted_until) >= _MOST_BLOCKS:
            self._trusted_until.clear()
        self._trusted_until[block] = now + _TRUSTED_SECONDS
        return True
