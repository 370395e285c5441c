"""Room on disk and pages in memory, ready before the writer reaches them: no append waits for the file system.

Touching a fresh page of a sparse file can take 20 to 40 ms, with the interpreter's lock held; populating it from a
helper's thread takes as long, but nobody waits. And where the disk is full, writing to it would end the process: so
the writer never goes where the file system has not given room for certain.
"""

from __future__ import annotations

import contextlib
from concurrent.futures import Future

from pyromq.store.disk import Disk
from pyromq.store.log.segment import Segment
from pyromq.store.log.segmented_log import SegmentedLog
from pyromq.store.worker import worker

FIRST_STRETCH = 256 << 10  # a store that hardly writes gets no pages it does not need
KEPT_BEHIND = 64 << 20  # bytes behind the writer that stay mapped, for those who read what was just written
LAST_STRETCH = 32 << 20  # at full speed, about a tenth of a second of appends


class Preallocation:
    """Follows one writer through the files of a log, one stretch ahead; the stretches grow with what is written."""

    def __init__(self, log: SegmentedLog, disk: Disk) -> None:
        self._log = log
        self._thread = worker(disk, "store-room")
        self._file_thread = worker(disk, "store-next-file")  # of its own: it waits for flushes, which may take long
        self._stretch = FIRST_STRETCH
        self._sure_to = 0  # log offset up to which there is room
        self._asked: Future[None] | None = None  # for the stretch behind it
        self._next: Future[Segment] | None = None

    def extend(self, segment: Segment, needed: int) -> int:
        """Have room up to log offset `needed` in that file; return up to where there is. Raises `OSError`.

        A thread is to prepare what lies behind it, and from the middle of a file on the next one.
        """
        asked, self._asked = self._asked, None
        if asked is not None and asked.exception() is None:  # else it is tried again here: there may be room now
            self._sure_to += self._stretch
        if self._sure_to < needed:
            self._prepare(segment, self._sure_to, needed + FIRST_STRETCH)
            self._sure_to = needed + FIRST_STRETCH
        end = segment.base + segment.size
        if self._sure_to < end:
            self._stretch = min(2 * self._stretch, LAST_STRETCH)
            self._asked = self._thread.submit(self._prepare, segment, self._sure_to, self._sure_to + self._stretch)
        if self._sure_to >= end or needed > end - segment.size // 2:
            self._make_next(end)
        return min(self._sure_to, end)

    def begin(self, offset: int) -> None:
        """The writer goes on at `offset`, about which nothing is known."""
        self._asked = None
        self._sure_to = offset

    def next_segment(self, base: int) -> Segment:
        """Return the file at `base`, made here or ahead. Raises `OSError`."""
        prepared, self._next = self._next, None
        self._asked = None
        if prepared is not None and prepared.exception() is None and prepared.result().base == base:
            self._sure_to = base + self._stretch
            return prepared.result()
        segment = self._log.create_lasting(base)
        self._sure_to = base
        return segment

    def close(self) -> None:
        """End the thread; the file made ahead and not used is removed, as a clean stop leaves none."""
        self._thread.shutdown()
        self._file_thread.shutdown()
        if self._next is not None:
            with contextlib.suppress(OSError):  # it was not made
                self._next.result().delete()
            self._next = None

    def _make_next(self, base: int) -> None:
        """Have the next file made, unless it is; again where that failed."""
        if self._next is None or (self._next.done() and self._next.exception() is not None):
            self._next = self._file_thread.submit(self._make, base, self._stretch)

    @staticmethod
    def _prepare(segment: Segment, start: int, end: int) -> None:
        segment.prepare_unwritten(start - segment.base, end - segment.base)
        segment.forget(0, start - segment.base - KEPT_BEHIND)

    def _make(self, base: int, stretch: int) -> Segment:
        segment = self._log.create_lasting(base)
        segment.prepare_unwritten(0, stretch)
        return segment
