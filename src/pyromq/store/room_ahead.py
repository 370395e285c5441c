"""Pages and files made ready before the writer reaches them, so that no append waits for the file system.

Touching a fresh page of a sparse file can take 20 to 40 ms, with the interpreter's lock held; populating it from a
helper's thread takes as long, but nobody waits.
"""

from __future__ import annotations

from concurrent.futures import Future

from pyromq.store.disk import Disk, worker
from pyromq.store.segment import Segment
from pyromq.store.segmented_log import SegmentedLog

FIRST_STRETCH = 256 << 10  # a store that hardly writes gets no thread and no pages it does not need
LAST_STRETCH = 32 << 20  # at full speed, about a tenth of a second of appends


class RoomAhead:
    """Follows one writer through the files of a log, one stretch ahead; the stretches grow with what is written."""

    def __init__(self, log: SegmentedLog, disk: Disk) -> None:
        self._log = log
        self._thread = worker(disk, "store-room")
        self._stretch = FIRST_STRETCH
        self._ready_to = 0  # log offset
        self._next: Future[Segment] | None = None

    def start(self, offset: int) -> int:
        """The writer begins at `offset`. Return the offset at which it calls `extend`."""
        self._ready_to = max(self._ready_to, offset + FIRST_STRETCH)
        return offset + FIRST_STRETCH // 2

    def extend(self, segment: Segment) -> int:
        """Make the next stretch ready. Return the offset at which the writer of `segment` calls this again."""
        stretch_start = self._ready_to
        self._stretch = min(2 * self._stretch, LAST_STRETCH)
        self._ready_to = stretch_start + self._stretch
        end = segment.base + segment.size
        if stretch_start < end:
            self._thread.submit(segment.prepare, stretch_start - segment.base, self._ready_to - segment.base)
        elif self._next is None:
            self._ready_to = end + self._stretch
            self._next = self._thread.submit(self._make, end, self._stretch)
            return end
        return stretch_start

    def next_segment(self, base: int) -> Segment:
        """Return the file at `base`, made here or ahead. Raises `OSError`."""
        prepared, self._next = self._next, None
        if prepared is not None and prepared.result().base == base:
            return prepared.result()
        return self._log.create_lasting(base)

    def close(self) -> None:
        """End the thread; the file made ahead and not used is removed, as a clean stop leaves none."""
        self._thread.shutdown()
        if self._next is not None:
            self._next.result().delete()
            self._next = None

    def _make(self, base: int, stretch: int) -> Segment:
        segment = self._log.create_lasting(base)
        segment.prepare(0, stretch)
        return segment
