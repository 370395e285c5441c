"""What lies on the disk and not in memory: loaded by threads, so that nobody else waits for it.

A page that is not in memory is read when it is touched, and whoever touches it stands still: on the loop that would
be every client. So whoever is about to touch records there asks first whether they are in memory. If not, a pull's
answer waits until they are, a long answer goes on then, any other request is asked again, and a step runs again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from pyromq.broker.pending_replies import PendingReplies
from pyromq.clock import Clock
from pyromq.net.alarm import Alarm
from pyromq.remoting.command import Answered, Reply
from pyromq.remoting.dispatch import RETRY, RetryWhenLoaded
from pyromq.store.message_store import MessageStore
from pyromq.store.page_load import FilePiece, PageLoad, PagesToLoad

THREADS = 4  # reads of the disk at a time, for requests
STEP_THREADS = 2  # and for what the broker does by itself: what is due does not queue behind requests
MOST_ROUNDS = 4  # of loading in a row: an entry, a record's head, the rest; what goes meanwhile is waited for
LOADED_AT_ONCE = 256  # records of one long answer: so that others' turn comes in between

T = TypeVar("T")
Working = Generator[Future[Answered] | None, None, T]  # part of a long answer


class ColdReads:
    """Owns the threads, which are made when they are needed.

    `run_soon` runs a function in the loop's thread; it is called by others.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.waiting = PendingReplies(clock)
        self.run_soon: Callable[[Callable[[], None]], object] = lambda work: work()
        self._disk = store.disk
        self._residency = store.residency
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="cold-reads")
        self._step_threads = ThreadPoolExecutor(STEP_THREADS, thread_name_prefix="cold-steps")

    def when_loaded(self, unread: Sequence[memoryview | FilePiece], reply: Callable[[], Answered]) -> Future[Answered]:
        """Resolve to what `reply` returns, in a thread, once all of this is in memory."""
        return self.waiting.add(self._threads.submit(self._load, unread, reply))

    def loaded(self, work: PageLoad[T]) -> Working[T]:
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

        Call it before anything is changed. Raises `RetryWhenLoaded` unless the record is in memory. The call is refused
        when repeated loads do not bring the record: reading it from the map might end the process.
        """
        self.need(self._residency.record_to_load(log_offset), log_offset)

    def need(self, unread: PagesToLoad, log_offset: int) -> None:
        """The same of anything that leads to that record; nothing is lacking where `unread` is empty."""
        if unread:
            in_vain = self._residency.unreadable(log_offset)
            raise RetryWhenLoaded(partial(self.when_loaded, unread, lambda: RETRY), in_vain)

    def fetch(self, unread: PagesToLoad, alarm: Alarm) -> Future[None]:
        """Load something for a step, and let its alarm ring when that is there."""
        loading = self._step_threads.submit(self._disk.load, unread)
        loading.add_done_callback(lambda _: self.run_soon(lambda: alarm.ring_within(0)))
        return loading

    def close(self) -> None:
        """End the threads; what they were at is answered before."""
        self._threads.shutdown()
        self._step_threads.shutdown()

    def _load(self, unread: Sequence[memoryview | FilePiece], reply: Callable[[], Answered]) -> Answered:
        self._disk.load(unread)
        return reply()


class Fetching:
    """What a step needs from the disk before it goes on. Its alarm rings when that is there."""

    def __init__(self, cold_reads: ColdReads, alarm: Alarm) -> None:
        self._cold_reads = cold_reads
        self._alarm = alarm
        self._loading: Future[None] | None = None
        self._rounds = 0

    @property
    def is_under_way(self) -> bool:
        return self._loading is not None and not self._loading.done()

    @property
    def is_in_vain(self) -> bool:
        """Whether something was loaded so often in a row that it is not going to stay: the step should wait for it."""
        return self._rounds >= MOST_ROUNDS

    def lacks(self, unread: PagesToLoad) -> bool:
        """Begin to load this, and tell whether the step has to wait for it: not for nothing, nor in vain."""
        if not unread or self.is_in_vain:
            self.went_on()
            return False
        self._rounds += 1
        self._loading = self._cold_reads.fetch(unread, self._alarm)
        return True

    def went_on(self) -> None:
        """Some of the step's work is done: what it lacks now is something else."""
        self._rounds = 0
