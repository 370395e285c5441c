"""Holds each reply until the commit log is confirmed up to the request's records.

With SYNC_FLUSH the log is confirmed up to the end of the last flush. With replication the log is confirmed up to the
offset that the required replicas have. The replies of all processors wait here; replies to compiled sends wait in
`ParkedReplies`. Both kinds of waiting replies count against the same limits of overload. Some replies also wait until a
table is saved (`store/table_file.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyromq import speedups
from pyromq.broker.limits import DEFAULT_LIMITS, BrokerLimits
from pyromq.clock import Clock
from pyromq.errors import ResponseCode, ServiceNotAvailable, SystemBusy
from pyromq.net.tasks import soon_in_this_loop
from pyromq.remoting.command import Reply, with_code
from pyromq.store.log.commit_log import NO_LIMIT
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode
from pyromq.store.table_file import complete_when_saved

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.fast_path import ParkedReplies

MAX_UNCONFIRMED = 10_000  # limit of waiting replies before sends are refused: the length of upstream's send queue
STUCK_SECONDS = 1.0  # longest time without a finished flush before sends are refused: osPageCacheBusyTimeOutMills


@dataclass(slots=True)
class ReplicaRule:
    """The replicas that sends require. The owner of a rule may change its fields at any time, except `holds_all`.

    `refusal` is the reason why sends are refused before they are stored, with code 14; "" if sends are accepted.
    `has_replica(end)` returns False if no replica can have the log before `end` soon: the message is then stored, and
    answered with SLAVE_NOT_AVAILABLE without a wait. `wake()` is called when replies begin to wait for replicas, once
    in a turn for compiled sends; `wake` must only schedule work.
    """

    timeout_seconds: float = 3.0  # longest wait of a reply for replicas: slaveTimeout
    holds_all: bool = False  # whether replies to sends with the property WAIT=false wait for replicas, too
    refusal: str = ""
    has_replica: Callable[[int], bool] = lambda end: True
    wake: Callable[[], object] = lambda: None
    # Returns a future that completes when the required replicas have all changed tables on disk. None: tables are not
    # replicated.
    when_stored: Callable[[], Future[None]] | None = None


class _Shortfall(NamedTuple):
    """The reply's code and remark for a stored record that is not confirmed."""

    code: ResponseCode
    remark: str | None = None


class _ReplicaWait(NamedTuple):
    end: int
    since: float
    outcome: Future[_Shortfall | None]


_FLUSH_TIMEOUT = _Shortfall(ResponseCode.FLUSH_DISK_TIMEOUT)
_NO_REPLICA = _Shortfall(ResponseCode.SLAVE_NOT_AVAILABLE)
_REPLICA_TIMEOUT = _Shortfall(ResponseCode.FLUSH_SLAVE_TIMEOUT)


class Confirmation:
    """Holds replies until their records are confirmed. `is_needed` is False if replies are sent without waiting.

    `flushes` is True with SYNC_FLUSH: only records on disk are confirmed. `parked` holds the replies to compiled sends;
    None without compiled parts. `len` counts all waiting replies.
    """

    def __init__(self, store: MessageStore, clock: Clock, limits: BrokerLimits = DEFAULT_LIMITS) -> None:
        self.is_needed = self.flushes = store.config.flush is FlushMode.SYNC
        self._store = store
        self._clock = clock
        self._limits = limits
        self._waiting = PendingReplies(clock)
        self.parked: ParkedReplies | None = None
        if speedups.is_active:
            self.parked = ParkedReplies(
                MAX_UNCONFIRMED, monotonic=clock.monotonic, free_room=self._free_room, confirm=self._confirm_parked
            )
            self.parked.is_on = self.is_needed
        self._last_progress = 0.0
        self._end = -1  # log offset up to which the latest caller waits for a flush
        self._flushed: Future[bool] = _done(True)
        self._parked_flush_end = 0  # log offset of the flush requested for parked replies; 0 if none is pending
        self._rule: ReplicaRule | None = None
        self._stepped_down = ""  # reason of `step_down`; "" after `require_replicas`
        self._replicated_to = NO_LIMIT
        self._replica_waits: deque[_ReplicaWait] = deque()

    def __len__(self) -> int:
        return len(self._waiting) + (0 if self.parked is None else len(self.parked))

    @property
    def oldest_seconds(self) -> float:
        """How long the oldest waiting reply has waited, in seconds; 0.0 if no reply waits."""
        oldest = self._waiting.oldest_seconds
        since = None if self.parked is None else self.parked.oldest_since
        return oldest if since is None else max(oldest, self._clock.monotonic() - since)

    # -- replication

    def require_replicas(self, rule: ReplicaRule | None) -> None:
        """Hold replies until `replicated` was called with the end of their records or a later offset.

        None ends this, and sends the waiting replies. With a rule, all stored records count as not replicated until the
        next call of `replicated`.
        """
        self._rule = rule
        self._stepped_down = ""
        self._replicated_to = NO_LIMIT if rule is None else 0
        self._switch()
        self._advance()

    def replicated(self, end: int) -> None:
        """Confirm the records before `end`, because the required replicas have them. A lower offset is ignored.

        The replies to these records are sent, and consumers can read the records. With SYNC_FLUSH, both also wait until
        the log here is flushed.
        """
        if end > self._replicated_to:
            self._replicated_to = end
            self._advance()
            if self.flushes and not self._store.is_confirmed:  # consumers cannot read the unflushed records yet
                run_soon = soon_in_this_loop()
                self.wait(self._store.max_log_offset).add_done_callback(lambda _: run_soon(self._advance))

    def step_down(self, reason: str) -> None:
        """Answer all replies that wait for replicas with code 14 and the reason, and refuse sends in the same way.

        Ends with the next call of `require_replicas`. The reason should name the new master.
        """
        self._stepped_down = reason
        self._switch()
        shortfall = _Shortfall(ResponseCode.SERVICE_NOT_AVAILABLE, reason)
        while self._replica_waits:
            self._replica_waits.popleft().outcome.set_result(shortfall)
        if self.parked and self._rule is not None:
            self.parked.fail(NO_LIMIT, -inf, partial(_unconfirmed_frame, shortfall))

    def _switch(self) -> None:
        self.is_needed = self.flushes or self._rule is not None or bool(self._stepped_down)
        if self.parked is not None:
            self.parked.is_on = self.is_needed
            self.parked.holds_all = self._holds_all

    @property
    def _holds_all(self) -> bool:
        return self._rule is not None and self._rule.holds_all

    @property
    def _safe_end(self) -> int:
        """Log offset up to which the log is replicated and, with SYNC_FLUSH, flushed."""
        return min(self._store.flushed_to, self._replicated_to) if self.flushes else self._replicated_to

    def _advance(self) -> None:
        """Send the replies whose records are confirmed. Runs in the event loop after a flush or a replica's report."""
        if self._rule is not None:
            self._store.confirm(self._safe_end)
        while self._replica_waits and self._replica_waits[0].end <= self._replicated_to:
            self._replica_waits.popleft().outcome.set_result(None)
        if self.parked:
            self.parked.release(self._safe_end)

    # -- tables

    def when_kept(self, saved: Future[None]) -> Future[None]:
        """Return a future that completes when a changed table is on disk here and at all required replicas.

        `saved` completes when the table is on disk here. The first error is the future's error.
        """
        if self._rule is None or (when_stored := self._rule.when_stored) is None:
            return saved
        kept: Future[None] = Future()
        run_soon = soon_in_this_loop()

        def ask_replicas() -> None:
            complete_when_saved(when_stored(), None, kept)

        def on_disk(saved: Future[None]) -> None:
            if (error := saved.exception()) is not None:
                kept.set_exception(error)
            else:
                run_soon(ask_replicas)

        saved.add_done_callback(on_disk)
        return kept

    # -- before storing

    def refuse_if_overloaded(self) -> None:
        """Raise `SystemBusy` if too many replies wait or no flush was finished for too long.

        Raises `ServiceNotAvailable` if the replicas do not permit sends. Must be called before storing.
        """
        if reason := self._refusal():
            raise ServiceNotAvailable(reason)
        if reason := self._overload():
            raise SystemBusy(reason)

    def _refusal(self) -> str:
        return self._stepped_down or ("" if self._rule is None else self._rule.refusal)

    def _overload(self) -> str:
        """Return the reason why sends are refused now, as upstream words it; "" if they are accepted."""
        waiting = len(self)
        if not waiting:
            return ""
        if waiting >= MAX_UNCONFIRMED:
            return "[OVERLOAD]system busy, start flow control for a while"
        if not self._flushed.done() and self._clock.monotonic() - self._last_progress > STUCK_SECONDS:
            return "[REJECTREQUEST]system busy, start flow control for a while"
        waited_ms = int(self.oldest_seconds * 1000) if self._limits.fast_failure else 0
        if self._limits.fast_failure and waited_ms >= self._limits.send_wait_ms:
            return (
                "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, "
                f"period in queue: {waited_ms}ms, size of queue: {waiting}"
            )
        return ""

    def _free_room(self) -> int:
        """Return how many more replies may be parked in this turn; 0 if the plain path must answer."""
        if self._refusal() or self._overload() or not self._has_replica(self._store.max_log_offset):
            return 0
        return MAX_UNCONFIRMED - len(self)

    def _has_replica(self, end: int) -> bool:
        return self._rule is None or self._rule.has_replica(end)

    # -- replies of the plain path

    def when_sent(self, reply: Reply, *, wait: bool) -> Reply | Future[Reply]:
        """Return the reply to a send, or a future that completes with the reply, as `when_safe` does.

        Without `wait`, only a rule that holds all replies holds this reply. If the message is stored while there is no
        replica, the code is SLAVE_NOT_AVAILABLE.
        """
        if not self.is_needed or not (wait or self._holds_all):
            return reply
        answered: Future[Reply] = Future()
        self.complete(reply, answered, is_send=True)
        return answered

    def when_safe(self, reply: Reply) -> Reply | Future[Reply]:
        """Return the reply itself, or a future that completes with the reply when the present commit log is confirmed.

        If the log is not confirmed in time, the code is FLUSH_DISK_TIMEOUT or FLUSH_SLAVE_TIMEOUT, although the request
        was carried out. If the rule has no replica now, the reply does not wait for a replica. Otherwise clients would
        repeat the request until a replica is connected.
        """
        if not self.is_needed:
            return reply
        answered: Future[Reply] = Future()
        self.complete(reply, answered)
        return answered

    def complete(self, reply: Reply, answered: Future[Reply], *, is_send: bool = False) -> None:
        """Complete `answered` with the reply when the present commit log is confirmed, as `when_safe` does."""
        if not self.is_needed:
            answered.set_result(reply)
            return
        self._waiting.add(answered)
        end = self._store.max_log_offset
        flushed = self.wait(end) if self.flushes else _done(True)
        if self._rule is None:
            flushed.add_done_callback(partial(self._confirm, reply, answered, None))
        else:
            replicated = self._wait_replicated(end, _NO_REPLICA if is_send else None)
            replicated.add_done_callback(partial(self._after_replicas, reply, answered, flushed))

    def wait(self, end: int) -> Future[bool]:
        """Return a future that resolves to True once the log before `end` is flushed, to False after the timeout.

        Any thread may complete the future. Callers with the same end, such as the replies of a burst, share one future.
        """
        if end != self._end or self._flushed.done():
            if self._flushed.done():
                self._last_progress = self._clock.monotonic()
            self._end, self._flushed = end, self._store.wait_flushed(end)
            self._flushed.add_done_callback(self._note_progress)
        return self._flushed

    def _note_progress(self, _: Future[bool]) -> None:
        self._last_progress = self._clock.monotonic()

    def _wait_replicated(self, end: int, alone: _Shortfall | None) -> Future[_Shortfall | None]:
        """Return a future that resolves to None once the required replicas have the log before `end`.

        The future resolves to `alone` if there is no replica.
        """
        if self._stepped_down:
            return _done(_Shortfall(ResponseCode.SERVICE_NOT_AVAILABLE, self._stepped_down))
        if not self._has_replica(end):
            return _done(alone)
        if end <= self._replicated_to:
            return _done(None)
        if not self._replica_waits or self._replica_waits[-1].end != end:
            self._replica_waits.append(_ReplicaWait(end, self._clock.monotonic(), Future()))
            if self._rule is not None:
                self._rule.wake()
        return self._replica_waits[-1].outcome

    def _after_replicas(
        self, reply: Reply, answered: Future[Reply], flushed: Future[bool], outcome: Future[_Shortfall | None]
    ) -> None:
        shortfall = outcome.result()
        if shortfall is not None and shortfall.code == ResponseCode.SERVICE_NOT_AVAILABLE:
            flushed = _done(True)  # a master that steps down does not wait for its disk
        flushed.add_done_callback(partial(self._confirm, reply, answered, shortfall))

    @staticmethod
    def _confirm(reply: Reply, answered: Future[Reply], shortfall: _Shortfall | None, flushed: Future[bool]) -> None:
        if shortfall is None and not flushed.result():
            shortfall = _FLUSH_TIMEOUT
        answered.set_result(reply if shortfall is None else _unconfirmed(reply, shortfall))

    def tick(self) -> None:
        """Complete the replies whose wait timed out. Must be called several times a second."""
        self._store.tick()
        now = self._clock.monotonic()
        if self._rule is not None:
            self._advance()
            since = now - self._rule.timeout_seconds
            while self._replica_waits and self._replica_waits[0].since <= since:
                self._replica_waits.popleft().outcome.set_result(_REPLICA_TIMEOUT)
            if self.parked and self.parked.first_offset > self._replicated_to:
                self.parked.fail(-1, since, partial(_unconfirmed_frame, _REPLICA_TIMEOUT))
        if self.parked and self.flushes:
            self._fail_parked(-1, now - self._store.config.sync_flush_timeout_ms / 1000)

    # -- replies of the compiled path

    def _confirm_parked(self) -> bool:
        """Request a flush, or wake the replication, for new parked replies. Called after each turn with such replies.

        Return True if the event loop has work now, so that it must not wait for other events.
        """
        if self._rule is not None:
            self._rule.wake()
        if self.flushes:
            self._flush_parked()
        elif self.parked and self.parked.first_offset <= self._replicated_to:
            soon_in_this_loop()(self._advance)
        return self._rule is not None

    def _flush_parked(self) -> None:
        """Request a flush for the parked replies, unless one is pending."""
        if not self._parked_flush_end:
            self._parked_flush_end = self._store.max_log_offset
            run_soon = soon_in_this_loop()
            flushed = self.wait(self._parked_flush_end)
            flushed.add_done_callback(lambda flushed: run_soon(partial(self._release, flushed)))

    def _release(self, flushed: Future[bool]) -> None:
        assert self.parked is not None
        end, self._parked_flush_end = self._parked_flush_end, 0
        if flushed.result():
            self._advance()
        else:
            self._fail_parked(end, -inf)
        if self.parked and self.parked.last_offset > end:
            self._flush_parked()

    def _fail_parked(self, end: int, since: float) -> None:
        """Send the replies up to log offset `end`, or parked at or before `since`, as not confirmed by the disk.

        If both the replicas and the flush are missing, the code is that for the replicas.
        """
        assert self.parked is not None

        def unflushed(log_offset: int, frame: bytes) -> bytes:
            shortfall = _FLUSH_TIMEOUT if log_offset <= self._replicated_to else _REPLICA_TIMEOUT
            return with_code(frame, shortfall.code)

        self.parked.fail(end, since, unflushed)


T = TypeVar("T")


def _done(result: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(result)
    return future


def _unconfirmed(reply: Reply, shortfall: _Shortfall) -> Reply:
    """Set the reply's code and remark to the reason why its record is stored, but not confirmed. Return the reply."""
    reply.code, reply.remark = shortfall.code, shortfall.remark
    return reply


def _unconfirmed_frame(shortfall: _Shortfall, _: int, frame: bytes) -> bytes:
    return with_code(frame, shortfall.code, shortfall.remark)


class PendingReplies:
    """Counts futures that are not done, in the order of `add`.

    Any thread may complete a future; all methods must be called in the event loop.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: deque[tuple[float, Future[object]]] = deque()

    def add(self, future: Future[T]) -> Future[T]:
        """Count a future until it is done; return the same future."""
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
        """Drop completed futures from the front. Completed futures after a pending future still count."""
        while self._begun and self._begun[0][1].done():
            self._begun.popleft()
