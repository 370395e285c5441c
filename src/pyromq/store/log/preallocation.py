"""Allocates disk space and maps pages ahead of the writer, so that no append waits for the file system.

The first write to a page of a sparse file can take 20 to 40 ms while it holds the interpreter's lock. A thread does it
ahead of time. On a full disk such a write would kill the process, so the writer stays within allocated space.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

from pyromq.store.disk import Disk
from pyromq.store.log.segmented_log import Segment, SegmentedLog
from pyromq.store.worker import worker

FIRST_STRETCH = 256 << 10  # bytes allocated first: small, as most stores write little
KEPT_BEHIND = 64 << 20  # bytes before the writer that stay mapped, for consumers that read new messages
LAST_STRETCH = 32 << 20  # most bytes allocated at once: about 0.1 s of appends at full speed


class Preallocation:
    """Allocates one step ahead of the writer of a log. Steps double with each use, up to `LAST_STRETCH`."""

    def __init__(self, log: SegmentedLog, disk: Disk) -> None:
        self._log = log
        self._thread = worker(disk, "store-room")
        self._file_thread = worker(disk, "store-next-file")  # separate, as it waits for flushes
        self._step_bytes = FIRST_STRETCH
        self._allocated_end = 0  # a log offset
        self._allocation: Future[None] | None = None  # of the next step
        self._next: Future[Segment] | None = None

    def extend(self, segment: Segment, needed: int) -> int:
        """Allocate up to log offset `needed` in a file; return the end of allocated space. Raises `OSError`.

        Threads then allocate the next step and, from the middle of a file on, create the next file.
        """
        allocation, self._allocation = self._allocation, None
        if allocation is not None and allocation.exception() is None:  # after an error, retried below
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

    def begin(self, offset: int) -> None:
        """Start at log offset `offset`, with no space known to be allocated."""
        self._allocation = None
        self._allocated_end = offset

    def next_segment(self, base: int) -> Segment:
        """Return the file at `base`, created now or ahead of time. Raises `OSError`."""
        prepared, self._next = self._next, None
        self._allocation = None
        if prepared is not None and prepared.exception() is None and prepared.result().base == base:
            self._allocated_end = base + self._step_bytes
            return prepared.result()
        segment = self._log.create_lasting(base)
        self._allocated_end = base
        return segment

    def close(self) -> None:
        """Join the threads and delete the unused next file: a clean stop leaves none."""
        self._thread.shutdown()
        self._file_thread.shutdown()
        if self._next is not None:
            with contextlib.suppress(OSError):  # it was not created
                self._next.result().delete()
            self._next = None

    def _make_next(self, base: int) -> None:
        if self._next is None or (self._next.done() and self._next.exception() is not None):
            self._next = self._file_thread.submit(self._make, base, self._step_bytes)

    @staticmethod
    def _prepare(segment: Segment, start: int, end: int) -> None:
        segment.prepare_unwritten(start - segment.base, end - segment.base)
        segment.drop_pages(0, start - segment.base - KEPT_BEHIND)

    def _make(self, base: int, size: int) -> Segment:
        segment = self._log.create_lasting(base)
        segment.prepare_unwritten(0, size)
        return segment
