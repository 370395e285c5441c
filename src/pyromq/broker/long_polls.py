"""Pulls that found nothing and wait: for a message their subscription wants, or for the end of their patience."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

import msgspec

from pyromq.clock import Clock
from pyromq.errors import MQError, SystemBusy
from pyromq.message import StoredMessage
from pyromq.remoting.command import Answered

MAX_PARKED = 100_000  # upstream's pull queue; beyond it a pull is told to come back later


class LongPoll(msgspec.Struct, gc=False):
    """One parked pull: wants entries from `offset` on that `accepts` takes; `resume` reads again, for good."""

    topic: str
    queue_id: int
    offset: int
    accepts: Callable[[int], bool] | None
    resume: Callable[[], Answered]
    future: Future[Answered]


class LongPolls:
    """The parked pulls by queue.

    Arrivals are noted at once and answered when the current turn of the loop has ended, so that a burst of messages
    comes in one answer. The owner sets `run_soon`, which runs a function at the end of the turn.
    """

    def __init__(self, clock: Clock) -> None:
        self.run_soon: Callable[[Callable[[], None]], object] = lambda wake: wake()
        self._clock = clock
        self._parked: dict[tuple[str, int], list[LongPoll]] = {}
        self._deadlines: list[tuple[float, int, LongPoll]] = []
        self._order = count()
        self._woken: list[LongPoll] = []
        self._stopping = False

    def __len__(self) -> int:
        return sum(map(len, self._parked.values()))

    def park(self, poll: LongPoll, seconds: float) -> Future[Answered]:
        """Keep a pull for at most `seconds`. Raises `SystemBusy` when too many wait."""
        if self._stopping:  # consumers pull again as soon as `answer_all` has answered them
            _resume(poll)
            return poll.future
        if len(self._deadlines) >= MAX_PARKED:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        self._parked.setdefault((poll.topic, poll.queue_id), []).append(poll)
        heapq.heappush(self._deadlines, (self._clock.monotonic() + seconds, next(self._order), poll))
        return poll.future

    def arrived(self, message: StoredMessage, tags_code: int) -> None:
        """A message was appended to its queue. Called for every message stored."""
        if not self._parked:
            return
        key = message.topic, message.queue_id
        parked = self._parked.get(key)
        if parked is None:
            return
        waiting = [poll for poll in parked if poll.accepts is not None and not poll.accepts(tags_code)]
        if len(waiting) == len(parked):
            return
        is_first = not self._woken
        self._woken += [poll for poll in parked if poll not in waiting]
        if waiting:
            self._parked[key] = waiting
        else:
            del self._parked[key]
        if is_first:
            self.run_soon(self.answer_woken)

    def answer_woken(self) -> None:
        """Let the woken pulls read and answer."""
        woken, self._woken = self._woken, []
        for poll in woken:
            _resume(poll)

    def expire(self) -> None:
        """Answer the pulls whose time is up; they read once more and say what they find."""
        now = self._clock.monotonic()
        while self._deadlines and (self._deadlines[0][0] <= now or self._deadlines[0][2].future.done()):
            poll = heapq.heappop(self._deadlines)[2]
            if not poll.future.done():
                self._forget(poll)
                _resume(poll)

    def answer_all(self) -> None:
        """The broker stops: nobody waits any longer."""
        self._stopping = True
        for poll in [poll for parked in self._parked.values() for poll in parked]:
            _resume(poll)
        self._parked.clear()
        self._deadlines.clear()

    def _forget(self, poll: LongPoll) -> None:
        key = poll.topic, poll.queue_id
        parked = [other for other in self._parked.get(key, ()) if other is not poll]
        if parked:
            self._parked[key] = parked
        else:
            self._parked.pop(key, None)


def _resume(poll: LongPoll) -> None:
    if poll.future.done():
        return
    try:
        poll.future.set_result(poll.resume())
    except MQError as error:
        poll.future.set_exception(error)
