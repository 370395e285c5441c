"""When an answer may say "done": once what it speaks of is as safe as the broker promises.

Today that is: flushed, where flushing is synchronous. Everything that stores for a client waits here, so there is one
count of what waits, and one rule when that is too much. Some answers also wait for a table to be written.
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from pyromq.clock import Clock
from pyromq.errors import ResponseCode, SystemBusy
from pyromq.remoting.command import Answered, FilledReply, Reply
from pyromq.store.config import FlushMode
from pyromq.store.message_store import MessageStore

R = TypeVar("R")

MAX_UNCONFIRMED = 10_000  # answers that wait for the disk; upstream's send queue has this length
STUCK_SECONDS = 1.0  # no progress of the disk for this long: refuse instead of queueing (osPageCacheBusyTimeOutMills)


class Confirmation:
    """What clients were not told yet. `is_needed`: whether answers wait at all."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.is_needed = store.config.flush is FlushMode.SYNC
        self._store = store
        self._clock = clock
        self._waiting: set[Future[Answered]] = set()  # this thread adds, mostly the flusher's takes out
        self._last_progress = 0.0
        self._end = -1  # of the log, when it was last asked about
        self._safe: Future[bool] = Future()

    def refuse_if_overloaded(self) -> None:
        """Raise `SystemBusy` if too much waits, or nothing has been confirmed for too long. Asked before storing."""
        waiting = len(self._waiting)
        if waiting >= MAX_UNCONFIRMED:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        if waiting and self._clock.monotonic() - self._last_progress > STUCK_SECONDS:
            raise SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")

    def wait(self, end: int) -> Future[bool]:
        """Resolve to True once the log before `end` is safe, to False if that takes too long; in any thread.

        Who asks about the same end, as the answers of a burst do, waits for the same future.
        """
        if end != self._end or self._safe.done():
            self._end, self._safe = end, self._store.wait_flushed(end)
        return self._safe

    def when_safe(self, reply: Answered) -> Answered | Future[Answered]:
        """Return an answer that leaves when all that is in the log now is safe.

        If that takes too long its code is FLUSH_DISK_TIMEOUT: what was asked for is done all the same.
        """
        if not self.is_needed:
            return reply
        answered: Future[Answered] = Future()
        self.complete(reply, answered)
        return answered

    def complete(self, reply: Answered, answered: Future[Answered]) -> None:
        """Complete an answer that others wait for already, as `when_safe` does."""
        if not self.is_needed:
            answered.set_result(reply)
            return

        if not self._waiting:
            self._last_progress = self._clock.monotonic()
        self._waiting.add(answered)
        self.wait(self._store.max_log_offset).add_done_callback(partial(self._confirm, reply, answered))

    def _confirm(self, reply: Answered, answered: Future[Answered], safe: Future[bool]) -> None:
        self._waiting.discard(answered)
        self._last_progress = self._clock.monotonic()
        answered.set_result(reply if safe.result() else _unconfirmed(reply))


def _unconfirmed(reply: Answered) -> Reply:
    """Return the same answer with the code that says: stored, but not known to be on disk."""
    answer = reply.template.reply(reply) if isinstance(reply, FilledReply) else reply
    answer.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return answer


def when_saved(saved: Future[None], reply: R | Future[R]) -> Future[R]:
    """Return an answer that leaves when a table is written as well; the error where it cannot be."""
    answered: Future[R] = Future()
    if isinstance(reply, Future):
        reply.add_done_callback(lambda ready: complete_when_saved(saved, ready.result(), answered))
    else:
        complete_when_saved(saved, reply, answered)
    return answered


def complete_when_saved(saved: Future[None], reply: R, answered: Future[R]) -> None:
    """Complete an answer that others wait for already, as `when_saved` does."""

    def done(saved: Future[None]) -> None:
        if (error := saved.exception()) is not None:
            answered.set_exception(error)
        else:
            answered.set_result(reply)

    saved.add_done_callback(done)
