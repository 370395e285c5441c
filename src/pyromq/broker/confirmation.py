"""Decides when a reply may confirm a request: once the commit log is confirmed up to the request's records.

With SYNC_FLUSH a record is confirmed by the flush that covers the record. The replies of all processors wait here;
replies to compiled sends wait in `ParkedReplies`. One count and one rule decide on overload for both. Some replies also
wait until a table is saved (`store/table_file.py`).
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from functools import partial
from math import inf
from typing import TYPE_CHECKING, TypeVar

from pyromq import speedups
from pyromq.broker.limits import DEFAULT_LIMITS, BrokerLimits
from pyromq.clock import Clock
from pyromq.errors import ResponseCode, SystemBusy
from pyromq.net.tasks import soon_in_this_loop
from pyromq.remoting.command import Reply, with_code
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.fast_path import ParkedReplies

MAX_UNCONFIRMED = 10_000  # limit of waiting replies before sends are refused: the length of upstream's send queue
STUCK_SECONDS = 1.0  # longest time without a confirmed reply before sends are refused: osPageCacheBusyTimeOutMills


class Confirmation:
    """Holds replies until their records are confirmed. `is_needed` is False if replies are sent without waiting.

    `parked` holds the replies to compiled sends; None if replies do not wait, or without compiled parts. `len` counts
    all waiting replies.
    """

    def __init__(self, store: MessageStore, clock: Clock, limits: BrokerLimits = DEFAULT_LIMITS) -> None:
        self.is_needed = store.config.flush is FlushMode.SYNC
        self._store = store
        self._clock = clock
        self._waiting = PendingReplies(clock)
        self.parked: ParkedReplies | None = None
        if self.is_needed and speedups.is_active:
            self.parked = ParkedReplies(
                MAX_UNCONFIRMED, monotonic=clock.monotonic, free_room=self._free_room, confirm=self._confirm_parked
            )
        self._limits = limits
        self._last_progress = 0.0
        self._end = -1  # log offset up to which the latest caller waits
        self._safe: Future[bool] = Future()

    def __len__(self) -> int:
        return len(self._waiting) + (0 if self.parked is None else len(self.parked))

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest waiting reply has waited, in seconds; 0.0 if no reply waits."""
        oldest = self._waiting.oldest_seconds
        since = None if self.parked is None else self.parked.oldest_since
        return oldest if since is None else max(oldest, self._clock.monotonic() - since)

    def refuse_if_overloaded(self) -> None:
        """Raise `SystemBusy` if too many replies wait or none was confirmed for too long.

        Must be called before storing.
        """
        if reason := self._overload():
            raise SystemBusy(reason)

    def _overload(self) -> str:
        """Return the reason why sends are refused now, as upstream words it; "" if they are accepted."""
        waiting = len(self)
        if not waiting:
            return ""
        if waiting >= MAX_UNCONFIRMED:
            return "[OVERLOAD]system busy, start flow control for a while"
        if self._clock.monotonic() - self._last_progress > STUCK_SECONDS:
            return "[REJECTREQUEST]system busy, start flow control for a while"
        waited_ms = int(self.oldest_seconds * 1000) if self._limits.fast_failure else 0
        if self._limits.fast_failure and waited_ms >= self._limits.send_wait_ms:
            return (
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                f"period in queue: {waited_ms}ms, size of queue: {waiting}"
            )
        return ""

    def _free_room(self) -> int:
        """Return how many more replies may be parked in this iteration of the event loop; 0 under overload."""
        if not self:
            self._last_progress = self._clock.monotonic()
        return 0 if self._overload() else MAX_UNCONFIRMED - len(self)

    def wait(self, end: int) -> Future[bool]:
        """Return a future that resolves to True once the log before `end` is confirmed, to False after the timeout.

        Any thread may complete the future. Callers with the same end, such as the replies of a burst, share one future.
        """
        if end != self._end or self._safe.done():
            self._end, self._safe = end, self._store.wait_flushed(end)
        return self._safe

    def when_safe(self, reply: Reply) -> Reply | Future[Reply]:
        """Return the reply itself, or a future that completes with the reply when the present commit log is confirmed.

        After a timeout the reply's code is FLUSH_DISK_TIMEOUT; the request has been carried out nevertheless.
        """
        if not self.is_needed:
            return reply
        answered: Future[Reply] = Future()
        self.complete(reply, answered)
        return answered

    def complete(self, reply: Reply, answered: Future[Reply]) -> None:
        """Complete `answered` with the reply when the present commit log is confirmed, as `when_safe` does."""
        if not self.is_needed:
            answered.set_result(reply)
            return
        if not self:
            self._last_progress = self._clock.monotonic()
        self._waiting.add(answered)
        self.wait(self._store.max_log_offset).add_done_callback(partial(self._confirm, reply, answered))

    def _confirm(self, reply: Reply, answered: Future[Reply], safe: Future[bool]) -> None:
        self._last_progress = self._clock.monotonic()
        answered.set_result(reply if safe.result() else _unconfirmed(reply))

    def tick(self) -> None:
        """Complete the replies whose wait timed out, with FLUSH_DISK_TIMEOUT. Must be called about once a second."""
        self._store.tick()
        if self.parked:
            since = self._clock.monotonic() - self._store.config.sync_flush_timeout_ms / 1000
            self.parked.fail(-1, since, _unconfirmed_frame)

    def _confirm_parked(self) -> None:
        """Release the parked replies when the present log is confirmed; repeat for replies parked meanwhile."""
        assert self.parked is not None
        end, run_soon = self._store.max_log_offset, soon_in_this_loop()
        self.wait(end).add_done_callback(lambda safe: run_soon(partial(self._release, end, safe)))

    def _release(self, end: int, safe: Future[bool]) -> None:
        assert self.parked is not None
        self._last_progress = self._clock.monotonic()
        if safe.result():
            others_wait = self.parked.release(max(end, self._store.flushed_to))
        else:
            others_wait = self.parked.fail(end, -inf, _unconfirmed_frame)
        if others_wait:
            self._confirm_parked()


def _unconfirmed(reply: Reply) -> Reply:
    """Set the reply's code to FLUSH_DISK_TIMEOUT (stored, but perhaps not on disk) and return the reply."""
    reply.code = ResponseCode.FLUSH_DISK_TIMEOUT
    return reply


def _unconfirmed_frame(frame: bytes) -> bytes:
    return with_code(frame, ResponseCode.FLUSH_DISK_TIMEOUT)


T = TypeVar("T")


class PendingReplies:
    """Counts futures until they are done, in the order of `add`.

    Any thread may complete a future; all else runs in the event loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: deque[tuple[float, Future[object]]] = deque()

    def add(self, future: Future[T]) -> Future[T]:
        """Count a future until the future is done; return the same future."""
        self._drop_done()
        self._begun.append((self._clock.monotonic(), future))  # type: ignore[arg-type]  # the result is not used
        return future

    def __len__(self) -> int:
        self._drop_done()
        return len(self._begun)

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest pending future has waited, in seconds; 0.0 if none is pending."""
        self._drop_done()
        return self._clock.monotonic() - self._begun[0][0] if self._begun else 0.0

    def _drop_done(self) -> None:
        """Drop completed futures from the front. Completed futures behind a pending one still count."""
        while self._begun and self._begun[0][1].done():
            self._begun.popleft()
