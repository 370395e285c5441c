"""Allocates disk space and maps pages ahead of the appends to a log, so that no append waits for the file system.

The first write to a page of a sparse file can take 20 to 40 ms, during which Python's interpreter lock (GIL) is held. A
thread does such first writes before an append needs the page. On a full disk such a write would kill the process, so
appends stay within allocated space.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future

from pyromq.store.disk import Disk
from pyromq.store.log.segmented_log import Segment, SegmentedLog
from pyromq.store.worker import worker

FIRST_STRETCH = 256 << 10  # bytes of the first allocation: small, as most stores write little
MAPPED_BEFORE_END = 64 << 20  # bytes before the log's end whose pages stay mapped, for consumers that read new messages
# Limit of one allocation (bytes): 20 ms of appends at full speed. A flush writes the prepared zeros too, and makes
# their pages read-only: with 32 MiB a fifth of all appended pages cost a page fault.
LAST_STRETCH = 16 << 20
# Steps prepared without pauses after an append had to wait: appends that fill 16 MiB within 25 ms outrun the pauses.
URGENT_STEPS = 16


class Preallocation:
    """Allocates disk space for a log one step ahead of the appends.

    The bytes of a step double with each allocation, up to `LAST_STRETCH`.
    """

    def __init__(self, log: SegmentedLog, disk: Disk) -> None:
        self._log = log
        self._thread = worker(disk, "store-room")
        self._file_thread = worker(disk, "store-next-file")  # a separate thread, as creating a file waits for flushes
        self._step_bytes = FIRST_STRETCH
        self._allocated_end = 0  # log offset before which disk space is allocated
        self._allocation: Future[None] | None = None  # pending allocation of the next step
        self._next: Future[Segment] | None = None
        self._next_bytes = 0  # bytes of the next segment that have disk space
        self._urgent = bytearray(1)  # byte 0 is 1 while the threads prepare pages without pauses
        self._urgent_steps = 0  # number of next steps to prepare without pauses

    def extend(self, segment: Segment, needed: int) -> int:
        """Allocate disk space of a segment up to log offset `needed`; return the log offset where allocated space ends.

        Then start to allocate the next step in a thread. From the middle of a segment on, also start to create the next
        segment. Raises `OSError`.
        """
        allocation, self._allocation = self._allocation, None
        self._urgent_steps = max(self._urgent_steps - 1, 0)
        if allocation is not None and not allocation.done():
            self._urgent_steps = URGENT_STEPS
        with self._no_pauses():
            if allocation is not None and allocation.exception() is None:  # a failed step is allocated again below
                self._allocated_end += self._step_bytes
            if self._allocated_end < needed:
                self._prepare(segment, self._allocated_end, needed + FIRST_STRETCH)
                self._allocated_end = needed + FIRST_STRETCH
        end = segment.base + segment.size
        if self._allocated_end < end:
            self._step_bytes = min(2 * self._step_bytes, LAST_STRETCH)
            begin = self._allocated_end
            self._allocation = self._thread.submit(self._prepare, segment, begin, begin + self._step_bytes)
        if self._allocated_end >= end or needed > end - segment.size // 2:
            self._make_next(end)
        return min(self._allocated_end, end)

    @contextlib.contextmanager
    def _no_pauses(self) -> Iterator[None]:
        """Context manager in which pages are prepared without pauses, as an append waits for them."""
        self._urgent[0] = 1
        try:
            yield
        finally:
            self._urgent[0] = self._urgent_steps > 0

    def begin(self, offset: int) -> None:
        """Continue at log offset `offset` of an opened log. No space after `offset` counts as allocated."""
        self._allocation = None
        self._allocated_end = offset

    def next_segment(self, base: int) -> Segment:
        """Return the segment that begins at log offset `base`; create the segment if no thread has created it.

        Raises `OSError`.
        """
        prepared, self._next = self._next, None
        self._allocation = None
        with self._no_pauses():
            is_prepared = prepared is not None and prepared.exception() is None
        if prepared is not None and is_prepared and prepared.result().base == base:
            self._allocated_end = base + self._next_bytes
            return prepared.result()
        segment = self._log.create_durable(base)
        self._allocated_end = base
        return segment

    def close(self) -> None:
        """Join the threads and delete the unused next file, so that a clean stop leaves no unused file."""
        self._thread.shutdown()
        self._file_thread.shutdown()
        if self._next is not None:
            with contextlib.suppress(OSError):  # the file could not be created
                self._next.result().delete()
            self._next = None

    def _make_next(self, base: int) -> None:
        if self._next is None or (self._next.done() and self._next.exception() is not None):
            self._next_bytes = self._step_bytes
            self._next = self._file_thread.submit(self._make, base, self._next_bytes)

    def _prepare(self, segment: Segment, start: int, end: int) -> None:
        segment.prepare_unwritten(start - segment.base, end - segment.base, self._urgent)
        segment.drop_pages(0, start - segment.base - MAPPED_BEFORE_END)

    def _make(self, base: int, size: int) -> Segment:
        segment = self._log.create_durable(base)
        segment.prepare_unwritten(0, size, self._urgent)
        return segment
