"""When an answer may say "done": once what it speaks of is as safe as the broker promises.

Today that is: flushed, where flushing is synchronous. Everything that stores for a client waits here, so there is one
count of what waits, and one rule when that is too much. Some answers also wait for a table (`store/table_file.py`).
"""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from pyromq.broker.limits import DEFAULT_LIMITS, BrokerLimits
from pyromq.broker.pending_replies import PendingReplies
from pyromq.clock import Clock
from pyromq.errors import ResponseCode, SystemBusy
from pyromq.remoting.command import Reply
from pyromq.store.config import FlushMode
from pyromq.store.message_store import MessageStore

MAX_UNCONFIRMED = 10_000  # answers that wait for the disk; upstream's send queue has this length
STUCK_SECONDS = 1.0  # no progress of the disk for this long: refuse instead of queueing (osPageCacheBusyTimeOutMills)


class Confirmation:
    """What clients were not told yet. `is_needed`: whether answers wait at all."""

    def __init__(self, store: MessageStore, clock: Clock, limits: BrokerLimits = DEFAULT_LIMITS) -> None:
        self.is_needed = store.config.flush is FlushMode.SYNC
        self._store = store
        self._clock = clock
        self.waiting = PendingReplies(clock)
        self._limits = limits
        self._last_progress = 0.0
        self._end = -1  # of the log, when it was last asked about
        self._safe: Future[bool] = Future()

    def refuse_if_overloaded(self) -> None:
        """Raise `SystemBusy` if too much waits, or nothing has been confirmed for too long. Asked before storing."""
        waiting = len(self.waiting)
        if waiting >= MAX_UNCONFIRMED:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        if waiting and self._clock.monotonic() - self._last_progress > STUCK_SECONDS:
            raise SystemBusy("[REJECTREQUEST]system busy, start flow control for a while")
        if waiting and self._limits.fast_failure:
            waited_ms = int(self.waiting.oldest_seconds * 1000)
            if waited_ms >= self._limits.send_wait_ms:
                raise SystemBusy(
                    "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                    f"period in queue: {waited_ms}ms, size of queue: {waiting}"
                )

    def wait(self, end: int) -> Future[bool]:
        """Resolve to True once the log before `end` is safe, to False if that takes too long; in any thread.

        Who asks about the same end, as the answers of a burst do, waits for the same future.
        """
        if end != self._end or self._safe.done():
            self._end, self._safe = end, self._store.wait_flushed(end)
        return self._safe

    def when_safe(self, reply: Reply) -> Reply | Future[Reply]:
        """Return an answer that leaves when all that is in the log now is safe.

        If that takes too long its code is FLUSH_DISK_TIMEOUT: what was asked for is done all the same.
        """
        if not self.is_needed:
            return reply
        answered: Future[Reply] = Future()
        self.complete(reply, answered)
        return answered

    def complete(self, reply: Reply, answered: Future[Reply]) -> None:
        """Complete an answer that others wait for already, as `when_safe` does."""
        if not self.is_needed:
            answered.set_result(reply)
            return

        if not self.waiting:
            self._last_progress = self._clock.monotonic()
        self.waiting.add(answered)
        self.wait(self._store.max_log_offset).add_done_callback(partial(self._confirm, reply, answered))

    def _confirm(self, reply: Reply, answered: Future[Reply], safe: Future[bool]) -> None:
        self._last_progress = self._clock.monotonic()
        answered.set_result(reply if safe.result() else _unconfirmed(reply))


def _unconfirmed(reply: Reply) -> Reply:
    """Return the same answer with the code that says: stored, but not known to be on disk."""
    reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return reply
