"""Which parts of the commit log are in memory, as far as readers must know before they touch them.

Asking the system takes longer than finding what to send, so a block in which no page was missing is not asked about
again for a second. What went meanwhile only comes later.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyromq.clock import Clock
from pyromq.errors import BrokerError
from pyromq.record import FIXED_SIZE
from pyromq.store.disk import Disk
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.looking import FilePiece, Looking, Unread

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

    def recent(self) -> Unread:
        """Return the end of the log as parts of its files. Who opens it loads that: all else takes it to be there."""
        log = self._log
        start = max(log.end - RECENT_BYTES, log.min_offset)
        pieces: Unread = []
        for each in log.files.between(start, log.end) if start < log.end else ():
            first = max(start - each.base, 0)
            pieces.append(FilePiece(each.path, first, min(log.end - each.base, each.size) - first))
        return pieces

    def is_recent(self, log_offset: int) -> bool:
        """Whether all from a log offset on was written a moment ago, and so is in memory."""
        return log_offset >= self._log.end - RECENT_BYTES

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

    def unread(self, places: Iterable[tuple[int, int]]) -> Unread:
        """Return, of records or parts of them (begin and size), those that have to come from the disk.

        Sizes may be damaged ones.
        """
        found: Unread = []
        recent, most = self._log.end - RECENT_BYTES, self._log.max_record_bytes
        for start, size in places:
            if start < recent and size > 0 and (views := self._log.stretch(start, start + min(size, most))):
                found += [] if self._disk.is_loaded(views) else views
        return found

    def unread_heads(self, log_offsets: Iterable[int]) -> Unread:
        """Return of the records that begin there what has to come from the disk to tell when each was stored."""
        return self.unread((at, FIXED_SIZE) for at in log_offsets)

    def unread_record(self, log_offset: int) -> Unread:
        """Return what of the record that begins there has to come from the disk next; [] once all of it is there.

        That is its head first, which tells its size: who has loaded it asks again.
        """
        if self.is_recent(log_offset) or log_offset < self._log.min_offset:
            return []
        if head := self.unread_heads((log_offset,)):
            return head
        record = self._log.record_at(log_offset)
        return [] if record is None else self.unread([(log_offset, len(record))])

    def unreadable(self, log_offset: int) -> BrokerError:
        """Return the error that tells of a record that does not come from the disk, however often it is loaded."""
        return BrokerError(
            f"the record at log offset {log_offset} cannot be read from the disk ({self._log.place_of(log_offset)}):"
            " look for errors of the disk in the kernel's log (dmesg), and restore the file from a copy"
        )

    def approach(self, log_offset: int) -> Looking[None]:
        """Have all of the record that begins there in memory."""
        for _ in range(2):  # head, and rest
            if unread := self.unread_record(log_offset):
                yield unread

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
