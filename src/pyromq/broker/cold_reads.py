"""Loads records that are not resident in memory.

Threads read their pages, so that no page fault blocks the event loop.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from pyromq.broker.confirmation import PendingReplies
from pyromq.clock import Clock
from pyromq.net.tasks import Alarm, soon_in_this_loop
from pyromq.slow_work import MAX_ROUNDS, PagesToLoad
from pyromq.store.disk import Disk

THREADS = 4  # limit of page loads at the same time for requests
STEP_THREADS = 2  # limit of page loads at the same time for background tasks, which do not queue after client requests


class ColdReads:
    """Owns the threads that load pages. The threads start when they are needed."""

    def __init__(self, disk: Disk, clock: Clock) -> None:
        self.waiting = PendingReplies(clock)
        self._disk = disk
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-reads")
        self._step_threads = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="cold-steps")

    def load(self, pages: PagesToLoad) -> Future[None]:
        """Load pages for a slow reply; return a future that completes when they are loaded."""
        return self.waiting.add(self._threads.submit(self._disk.load, pages))

    def fetch(self, pages: PagesToLoad, alarm: Alarm) -> Future[None]:
        """Load pages for a background task; return a future. `alarm` wakes the task when the pages are loaded."""
        run_soon = soon_in_this_loop()
        loading = self._step_threads.submit(self._disk.load, pages)
        loading.add_done_callback(lambda _: run_soon(lambda: alarm.schedule_within(0)))
        return loading

    def close(self) -> None:
        """Stop the threads after their current loads. Blocks."""
        self._threads.shutdown()
        self._step_threads.shutdown()


class Fetching:
    """Loads file pages into memory for a background task, in another thread. Wakes the task when they are loaded."""

    def __init__(self, cold_reads: ColdReads, alarm: Alarm) -> None:
        self._cold_reads = cold_reads
        self._alarm = alarm
        self._loading: Future[None] | None = None
        self._rounds = 0

    @property
    def is_under_way(self) -> bool:
        return self._loading is not None and not self._loading.done()

    @property
    def gave_up(self) -> bool:
        """Whether the pages were evicted again after each of `MAX_ROUNDS` loads.

        The task must then read the pages itself, which blocks the event loop.
        """
        return self._rounds >= MAX_ROUNDS

    def lacks(self, pages: PagesToLoad) -> bool:
        """Start loading these pages; return True if the task must wait.

        Return False without pages, or after too many loads.
        """
        if not pages or self.gave_up:
            self.reset()
            return False
        self._rounds += 1
        self._loading = self._cold_reads.fetch(pages, self._alarm)
        return True

    def reset(self) -> None:
        """Reset the count of loads. The task calls this when it has read its pages and continues."""
        self._rounds = 0
