"""Keeps pulls that found no message, until a message arrives that their filter accepts, or until they expire."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import msgspec

from pyromq.broker.limits import DEFAULT_LIMITS
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.filter.filter import Filter
from pyromq.message import StoredMessage
from pyromq.quota import Quota
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Later, Peer
from pyromq.store.queue.consume_queue import QueueEntry

LONGEST_SECONDS = 90.0  # longest wait of a pull: a connection idle for 120 s is closed, so the reply must come earlier
SLICE_SECONDS = 0.001  # longest time spent on replies before other connections are served
MAX_UNCONFIRMED = 800  # limit of unconfirmed entries that are compared with a new pull: as many as a read scans
_TICK_SECONDS = 0.0625  # pulls that expire within the same tick are answered together
_MAX_CODES = 16  # limit of tags codes of a filter in the index by code; other filters are called for each message


class LongPoll(msgspec.Struct, gc=False, eq=False):
    """A waiting pull of the connection `peer`.

    `wanted` is the pull's filter; `resume` reads the queue again and returns the final reply. A pop's `resume` returns
    None if the pop must wait again.
    """

    topic: str
    queue_id: int
    wanted: Filter
    resume: Callable[[], Reply | None]
    future: Later
    peer: Peer
    due: int = 0  # number of the tick in which the pull expires

    @property
    def weight(self) -> int:
        """The weight of this pull against the limit, at least 1; grows with the memory of the filter."""
        return 1 + self.wanted.weight


class _QueuePolls:
    """The pulls waiting at one queue, grouped by filter.

    Most pulls have the same filter, which is called once per message.
    """

    __slots__ = ("by_code", "others", "polls")

    def __init__(self) -> None:
        self.polls: dict[Filter, dict[LongPoll, None]] = {}
        self.by_code: dict[int, dict[Filter, None]] = {}  # tags code -> filters that accept it
        self.others: dict[Filter, None] = {}  # filters that must be called for every message

    def add(self, poll: LongPoll) -> None:
        polls = self.polls.get(poll.wanted)
        if polls is None:
            polls = self.polls[poll.wanted] = {}
            for filters in self._tables_of(poll.wanted):
                filters[poll.wanted] = None
        polls[poll] = None

    def discard(self, poll: LongPoll) -> None:
        polls = self.polls.get(poll.wanted, {})
        polls.pop(poll, None)
        if not polls:
            self.take(poll.wanted)

    def take(self, wanted: Filter) -> Iterable[LongPoll]:
        """Remove and return all pulls with this filter; () if there are none."""
        polls = self.polls.pop(wanted, None)
        if polls is None:
            return ()
        for filters in self._tables_of(wanted):
            filters.pop(wanted, None)
        for code in wanted.codes or ():
            if self.by_code.get(code) == {}:
                del self.by_code[code]
        return polls

    def that_accept(self, tags_code: int) -> list[Filter]:
        """Return the filters that accept this tags code, or that need the record to decide."""
        found = [each for each in self.others if (accepts := each.accepts_code) is None or accepts(tags_code)]
        return [*found, *self.by_code.get(tags_code, ())]

    def _tables_of(self, wanted: Filter) -> Iterator[dict[Filter, None]]:
        codes = wanted.codes
        if not codes or len(codes) > _MAX_CODES:
            yield self.others
        else:
            for code in codes:
                yield self.by_code.setdefault(code, {})


class LongPolls:
    """The waiting pulls of all connections. `most` limits their weights; one connection may use a part of that limit.

    A message's arrival only marks pulls as ready, by `when_confirmed`: consumers may not read the message earlier.
    Ready pulls are answered after the current iteration of the event loop, by `run_soon`, so that one reply carries a
    whole burst of messages.
    """

    def __init__(
        self,
        clock: Clock,
        record_at: Callable[[int], memoryview | None],
        run_soon: Callable[[Callable[[], None]], object] = lambda answer: answer(),
        *,
        when_confirmed: Callable[[Callable[[], None]], object] = lambda action: action(),
        most: int = DEFAULT_LIMITS.waiting_pulls,
    ) -> None:
        self._run_soon = run_soon
        self._when_confirmed = when_confirmed
        self._clock = clock
        self._record_at = record_at
        self._quota: Quota[Peer] = Quota("maxWaitingPulls", most)  # counts the weights of pulls
        self.parked: dict[tuple[str, int], _QueuePolls] = {}  # topic, queue id -> pulls that wait there
        self.listeners: dict[str, Callable[[], None]] = {}  # topic -> called for each stored message
        self._due: dict[int, dict[LongPoll, None]] = {}  # tick -> pulls that expire in the tick, in order of arrival
        self._of_peer: dict[Peer, set[LongPoll]] = {}  # the unanswered pulls of each connection
        self._ready: deque[deque[LongPoll]] = deque()  # pulls to be answered, if their connection is still open
        self._closed: deque[set[LongPoll]] = deque()  # pulls of closed connections, still to be removed from the tables
        self._is_scheduled = False
        self.is_stopping = False

    def __len__(self) -> int:
        return sum(map(len, self._of_peer.values()))

    def park(self, poll: LongPoll, seconds: float) -> Later:
        """Keep a pull for at most `seconds`, and at most `LONGEST_SECONDS`; return the future of the pull's reply.

        Raises `LimitReached` if the connection exceeds its part of the limit.
        """
        if self.is_stopping:  # consumers pull again when `answer_all` has answered them
            poll.future.set_result(_outcome(poll))
            return poll.future
        polls = self._polls_of(poll.peer)
        text = f"[OVERLOAD]{len(polls)} pulls of this connection wait, the limit of one connection; send fewer"
        self._quota.acquire(poll.peer, poll.weight, text=text)
        poll.due = math.ceil((self._clock.monotonic() + min(seconds, LONGEST_SECONDS)) / _TICK_SECONDS)
        key = poll.topic, poll.queue_id
        waiting = self.parked.get(key)
        if waiting is None:
            waiting = self.parked[key] = _QueuePolls()
        waiting.add(poll)
        self._due.setdefault(poll.due, {})[poll] = None
        polls.add(poll)
        return poll.future

    def arrived(self, message: StoredMessage, tags_code: int) -> None:
        """Mark as ready the pulls that accept a message just appended. Called for every message."""
        if self.parked:
            self.arrived_at(message.topic, message.queue_id, message.log_offset, tags_code)

    def arrived_together(self, topic: str, queue_id: int, arrivals: Callable[[], Iterable[tuple[int, int]]]) -> None:
        """Mark pulls as ready for messages appended to one queue.

        `arrivals` yields log offset and tags code of each message.
        """
        if (topic, queue_id) in self.parked or topic in self.listeners:
            for log_offset, tags_code in arrivals():
                self.arrived_at(topic, queue_id, log_offset, tags_code)

    def arrived_at(self, topic: str, queue_id: int, log_offset: int, tags_code: int) -> None:
        """Mark pulls as ready, as `arrived` does, without a message object.

        Compiled sends call this if any pull is `parked`.
        """
        if self.listeners and (listener := self.listeners.get(topic)) is not None:
            listener()
        key = topic, queue_id
        waiting = self.parked.get(key)
        if waiting is None:
            return
        for wanted in waiting.that_accept(tags_code):
            if (accepts_record := wanted.accepts_record) is None or self._is_accepted(log_offset, accepts_record):
                self._when_confirmed(partial(self._make_ready, waiting.take(wanted)))
        if not waiting.polls:
            self.parked.pop(key, None)

    def park_behind(self, entries: Sequence[QueueEntry], poll: LongPoll, seconds: float) -> Later:
        """Keep a pull, as `park` does, until one of `entries` that the pull accepts is confirmed.

        The entries are stored and not confirmed, at most `MAX_UNCONFIRMED`. With that many entries, the pull is
        answered once they are confirmed, even without an accepted message.
        """
        later = self.park(poll, seconds)
        if len(entries) >= MAX_UNCONFIRMED:
            self._when_confirmed(partial(self._make_ready, (poll,)))
        else:
            for entry in entries:
                self.arrived_at(poll.topic, poll.queue_id, entry.log_offset, entry.tags_code)
        return later

    def answer_first(self, topic: str, queue_id: int) -> bool:
        """Answer the pull or pop that has waited longest at a queue.

        Return False if no pull or pop waits, or if it must wait again.
        """
        waiting = self.parked.get((topic, queue_id))
        if waiting is None:
            return False
        poll = next(iter(next(iter(waiting.polls.values()))))
        if poll not in self._of_peer.get(poll.peer, ()):
            self._remove(poll)
            return True
        return self._answer(poll)

    def count_at(self, topic: str, queue_id: int) -> int:
        """Return how many pulls or pops wait at a queue."""
        waiting = self.parked.get((topic, queue_id))
        return 0 if waiting is None else sum(map(len, waiting.polls.values()))

    def expire(self) -> None:
        """Mark the expired pulls as ready. Each reads its queue once more before the reply."""
        now = math.floor(self._clock.monotonic() / _TICK_SECONDS)
        for tick in [tick for tick in self._due if tick <= now]:
            self._make_ready(self._due.pop(tick))

    def answer_ready(self) -> None:
        """Answer ready pulls, then remove the pulls of closed connections.

        After `SLICE_SECONDS`, the next iteration of the event loop continues.
        """
        self._is_scheduled = False
        end = self._clock.monotonic() + SLICE_SECONDS
        while self._ready:
            polls = self._ready[0]
            while polls:  # each pull is freed when answered: freeing 100,000 together would take 50 ms
                self._answer(polls.popleft())
                if self._clock.monotonic() >= end:
                    self._answer_soon()
                    return
            self._ready.popleft()
        while self._closed:
            while self._closed[0]:
                self._remove(self._closed[0].pop())
                if self._clock.monotonic() >= end:
                    self._answer_soon()
                    return
            self._closed.popleft()

    def answer_all(self) -> None:
        """Answer all pulls immediately, and every later pull without waiting: the broker stops."""
        self.is_stopping = True
        for poll in [poll for polls in self._of_peer.values() for poll in polls]:
            self._answer(poll)

    def _is_accepted(self, log_offset: int, accepts: Callable[[memoryview], bool]) -> bool:
        record = self._record_at(log_offset)
        return record is not None and accepts(record)

    def _polls_of(self, peer: Peer) -> set[LongPoll]:
        """Return the set of a connection's waiting pulls, which is dropped when the connection closes."""
        polls = self._of_peer.get(peer)
        if polls is None:
            polls = self._of_peer[peer] = set()
            peer.on_close += (self._forget_peer,)
        return polls

    def _make_ready(self, polls: Iterable[LongPoll]) -> None:
        self._ready.append(deque(polls))
        self._answer_soon()

    def _answer_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._run_soon(self.answer_ready)

    def _answer(self, poll: LongPoll) -> bool:
        """Answer a pull whose connection is still open. Return False if the pull or pop must wait again."""
        polls = self._of_peer.get(poll.peer, set())
        if poll not in polls:  # its connection is closed
            return True
        outcome = _outcome(poll)
        if outcome is None:
            return False
        polls.remove(poll)
        self._quota.release(poll.peer, poll.weight)
        self._remove(poll)
        poll.future.set_result(outcome)
        return True

    def _forget_peer(self, session: Peer) -> None:
        self._quota.end(session)
        self._closed.append(self._of_peer.pop(session))
        self._answer_soon()

    def _remove(self, poll: LongPoll) -> None:
        """Remove a pull from the tables by tick and by queue. Idempotent."""
        due = self._due.get(poll.due, {})
        due.pop(poll, None)
        if not due:
            self._due.pop(poll.due, None)
        key = poll.topic, poll.queue_id
        waiting = self.parked.get(key)
        if waiting is not None:
            waiting.discard(poll)
            if not waiting.polls:
                self.parked.pop(key, None)


def _outcome(poll: LongPoll) -> Reply | MQError | None:
    try:
        return poll.resume()
    except MQError as error:
        return error.with_traceback(None)  # the traceback's frames hold the poll
