"""What lies on the disk and not in memory: loaded by threads, so that nobody else waits for it.

A page that is not in memory is read when it is touched, and whoever touches it stands still: on the loop that would
be every client. So whoever is about to touch records there asks first whether they are in memory. If not, a pull's
answer waits until they are, a long answer goes on then, any other request is asked again, and a step runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from pyromq.broker.waiting import Waiting
from pyromq.clock import Clock
from pyromq.net.alarm import Alarm
from pyromq.remoting.command import Answered, Reply
from pyromq.remoting.dispatch import ASK_AGAIN, AskAgain
from pyromq.store.looking import Looking
from pyromq.store.message_store import MessageStore

THREADS = 4  # reads of the disk at a time
LOADED_AT_ONCE = 256  # records of one long answer: so that others' turn comes in between

T = TypeVar("T")
Working = Generator[Future[Answered] | None, None, T]  # part of a long answer


class ColdReads:
    """Owns the threads, which are made when they are needed.

    `run_soon` runs a function in the loop's thread; it is called by others.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.waiting = Waiting(clock)
        self.run_soon: Callable[[Callable[[], None]], object] = lambda work: work()
        self._disk = store.disk
        self._residency = store.residency
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-reads")

    def when_loaded(self, records: Sequence[memoryview], reply: Callable[[], Answered]) -> Future[Answered]:
        """Resolve to what `reply` returns, in a thread, once the pages of these records are in memory."""
        return self.waiting.add(self._threads.submit(self._load, records, reply))

    def loaded(self, work: Looking[T]) -> Working[T]:
        """Do, as part of a long answer, what touches records."""
        while True:
            try:
                unread = next(work)
            except StopIteration as done:
                found: T = done.value
                return found
            for first in range(0, len(unread), LOADED_AT_ONCE):
                yield self.when_loaded(unread[first : first + LOADED_AT_ONCE], Reply)
            if not unread:
                yield None

    def need_record(self, log_offset: int) -> None:
        """Have the call that is being answered asked again, once the record that begins there is in memory.

        To be called before anything is changed: raises `AskAgain` unless the record is there now.
        """
        if unread := self._residency.unread_record(log_offset):
            raise AskAgain(self.when_loaded(unread, lambda: ASK_AGAIN))

    def fetch(self, unread: Sequence[memoryview], alarm: Alarm) -> None:
        """Load what a step needs, and let its alarm ring then."""
        loading = self._threads.submit(self._disk.load, unread)
        loading.add_done_callback(lambda _: self.run_soon(lambda: alarm.ring_within(0)))

    def close(self) -> None:
        """End the threads; what they were at is answered before."""
        self._threads.shutdown()

    def _load(self, records: Sequence[memoryview], reply: Callable[[], Answered]) -> Answered:
        self._disk.load(records)
        return reply()
