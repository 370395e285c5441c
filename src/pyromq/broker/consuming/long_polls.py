"""Pulls that found nothing and wait: for a message their subscription wants, or for the end of their patience."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future

import msgspec

from pyromq.clock import Clock
from pyromq.errors import MQError, SystemBusy
from pyromq.filter.filter import Filter
from pyromq.message import StoredMessage
from pyromq.remoting.command import Answered
from pyromq.remoting.exchange import Exchange

MAX_PARKED = 100_000  # upstream's pull queue; beyond it a pull is told to come back later
LONGEST_SECONDS = 90.0  # a connection that is silent for 120 s is closed: better an answer before
SLICE = 100  # answers between two turns of the loop: a few milliseconds of reading
_TICK_SECONDS = 0.0625  # pulls whose time is up within it leave together


class LongPoll(msgspec.Struct, gc=False, eq=False):
    """One parked pull: waits for what is `wanted`; `resume` reads again, for good; it came from `peer`."""

    topic: str
    queue_id: int
    wanted: Filter
    resume: Callable[[], Answered]
    future: Future[Answered]
    peer: Exchange
    due: int = 0  # the tick in which its patience ends


class LongPolls:
    """The parked pulls. One that is answered, or whose connection is gone, leaves all tables at once.

    Arrivals are noted at once and answered when the current turn of the loop has ended, so that a burst of messages
    comes in one answer: `run_soon` runs a function at the end of the turn.
    """

    def __init__(
        self,
        clock: Clock,
        record_at: Callable[[int], memoryview | None],
        run_soon: Callable[[Callable[[], None]], object] = lambda answer: answer(),
    ) -> None:
        self._run_soon = run_soon
        self._clock = clock
        self._record_at = record_at
        # By queue, then by filter: most want the same, and an arrival asks once for all of these.
        self._parked: dict[tuple[str, int], dict[Filter, dict[LongPoll, None]]] = {}
        self._due: dict[int, set[LongPoll]] = {}
        self._of_peer: dict[Exchange, set[LongPoll]] = {}  # all that wait, until the moment they are answered
        self._count = 0
        self._ready: deque[LongPoll] = deque()  # to be answered, unless they leave before
        self._stopping = False

    def __len__(self) -> int:
        return self._count

    def park(self, poll: LongPoll, seconds: float) -> Future[Answered]:
        """Keep a pull for at most `seconds`, and never beyond `LONGEST_SECONDS`.

        Raises `SystemBusy` when too many wait.
        """
        if self._stopping:  # consumers pull again as soon as `answer_all` has answered them
            _resume(poll)
            return poll.future
        if self._count >= MAX_PARKED:
            raise SystemBusy("[OVERLOAD]system busy, start flow control for a while")
        poll.due = math.ceil((self._clock.monotonic() + min(seconds, LONGEST_SECONDS)) / _TICK_SECONDS)
        self._parked.setdefault((poll.topic, poll.queue_id), {}).setdefault(poll.wanted, {})[poll] = None
        self._due.setdefault(poll.due, set()).add(poll)
        self._watched(poll.peer).add(poll)
        self._count += 1
        return poll.future

    def arrived(self, message: StoredMessage, tags_code: int) -> None:
        """A message was appended to its queue. Called for every message stored."""
        if not self._parked:
            return
        key = message.topic, message.queue_id
        parked = self._parked.get(key)
        if parked is None:
            return
        woken = [wanted for wanted in parked if (accepts := wanted.accepts_code) is None or accepts(tags_code)]
        for wanted in woken:
            if (accepts_record := wanted.accepts_record) is None or self._is_accepted(message, accepts_record):
                self._make_ready(parked.pop(wanted))
        if not parked:
            self._parked.pop(key, None)

    def expire(self) -> None:
        """Answer the pulls whose time is up; they read once more and say what they find."""
        now = math.floor(self._clock.monotonic() / _TICK_SECONDS)
        for tick in [tick for tick in self._due if tick <= now]:
            self._make_ready(self._due.pop(tick))

    def answer_ready(self) -> None:
        """Let pulls read and answer; where they are very many, the rest in the next turn."""
        for _ in range(min(SLICE, len(self._ready))):
            self._answer(self._ready.popleft())
        if self._ready:
            self._run_soon(self.answer_ready)

    def answer_all(self) -> None:
        """The broker stops: nobody waits any longer."""
        self._stopping = True
        for poll in [poll for polls in self._of_peer.values() for poll in polls]:
            self._answer(poll)

    def _is_accepted(self, message: StoredMessage, accepts: Callable[[memoryview], bool]) -> bool:
        record = self._record_at(message.log_offset)
        return record is not None and accepts(record)

    def _watched(self, peer: Exchange) -> set[LongPoll]:
        """Return the waiting pulls of a connection, which leave when it is closed."""
        polls = self._of_peer.get(peer)
        if polls is None:
            polls = self._of_peer[peer] = set()
            peer.on_close.append(self._forget_peer)
        return polls

    def _make_ready(self, polls: Iterable[LongPoll]) -> None:
        is_first = not self._ready
        self._ready.extend(polls)
        if is_first:
            self._run_soon(self.answer_ready)

    def _answer(self, poll: LongPoll) -> None:
        waiting = self._of_peer.get(poll.peer)
        if waiting is not None and poll in waiting:  # else it has left since it was found ready
            waiting.remove(poll)
            self._leave(poll)
            _resume(poll)

    def _forget_peer(self, peer: Exchange) -> None:
        for poll in self._of_peer.pop(peer):
            self._leave(poll)

    def _leave(self, poll: LongPoll) -> None:
        """Take it out of the counter and of those tables in which it still is."""
        self._count -= 1
        due = self._due.get(poll.due, set())
        due.discard(poll)
        if not due:
            self._due.pop(poll.due, None)
        key = poll.topic, poll.queue_id
        parked = self._parked.get(key, {})
        polls = parked.get(poll.wanted, {})
        polls.pop(poll, None)
        if not polls:
            parked.pop(poll.wanted, None)
        if not parked:
            self._parked.pop(key, None)


def _resume(poll: LongPoll) -> None:
    try:
        poll.future.set_result(poll.resume())
    except MQError as error:
        poll.future.set_exception(error)
