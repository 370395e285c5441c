"""Answers that wait until what they speak of has come from the disk, so that nobody else waits for it.

A page that is not in memory is read when it is touched, and whoever touches it stands still: on the loop that would
be every client. So records that are not there are loaded by threads first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from pyromq.broker.waiting import Waiting
from pyromq.clock import Clock
from pyromq.remoting.command import Answered
from pyromq.store.message_store import MessageStore

THREADS = 4  # reads of the disk at a time


class ColdPulls:
    """Owns the threads, which are made when they are needed."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.waiting = Waiting(clock)
        self._disk = store.disk
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-reads")

    def when_loaded(self, records: Sequence[memoryview], reply: Callable[[], Answered]) -> Future[Answered]:
        """Resolve to what `reply` returns, in a thread, once the pages of these records are in memory."""
        return self.waiting.add(self._threads.submit(self._load, records, reply))

    def close(self) -> None:
        """End the threads; what they were at is answered before."""
        self._threads.shutdown()

    def _load(self, records: Sequence[memoryview], reply: Callable[[], Answered]) -> Answered:
        self._disk.load(records)
        return reply()
