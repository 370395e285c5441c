"""Waiting pops. A message resumes one pop of each group, which takes all available messages; then the next resumes.

Pops of one queue and pops of all queues wait apart.

`LongPolls` keeps the waiting pops, expires them, and drops the pops of closed connections.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pyromq.broker.consuming.long_polls import SLICE_SECONDS, LongPoll, LongPolls
from pyromq.clock import Clock
from pyromq.filter.filter import Filter
from pyromq.names import pop_retry_topic
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Later, Peer
from pyromq.remoting.headers import Notification, PopMessage
from pyromq.store.message_store import MessageStore

_Place = tuple[str, int]  # topic and group, and queue id: -1 for all queues


class PopWaiting:
    """The waiting pops of all connections, by topic, group and queue id, in the order of their arrival."""

    def __init__(
        self,
        long_polls: LongPolls,
        store: MessageStore,
        clock: Clock,
        run_soon: Callable[[Callable[[], None]], object],
    ) -> None:
        self._long_polls = long_polls
        self._store = store
        self._clock = clock
        self._run_soon = run_soon
        self._places: dict[str, dict[_Place, None]] = {}  # topic, or retry topic -> where pops wait
        self._woken: dict[_Place, None] = {}  # places for which there may be messages
        self._is_scheduled = False  # whether `_answer_woken` will be called

    def park(
        self,
        header: PopMessage | Notification,
        wanted: Filter,
        resume: Callable[[bool], Reply | None],
        *,
        seconds: float,
        peer: Peer,
    ) -> Later:
        """Keep a pop for at most `seconds`; return the future of its reply.

        `resume(is_last)` is called when there may be a message. It returns the reply, or None to wait again. With True
        it must return a reply. Raises `LimitReached` if the connection has too many waiting pulls and pops.
        """
        place = _name(header.consumer_group, header.topic), header.queue_id
        due = self._clock.monotonic() + seconds

        def answer() -> Reply | None:
            return resume(self._long_polls.is_stopping or self._clock.monotonic() >= due)

        later = self._long_polls.park(LongPoll(*place, wanted, answer, Later(), peer), seconds)
        for name in (header.topic, pop_retry_topic(header.consumer_group, header.topic)):
            self._places.setdefault(name, {})[place] = None
            self._long_polls.listeners.setdefault(name, partial(self._arrived, name))
        if not self._store.is_confirmed:  # a stored message becomes readable later, without another call of listeners
            self._store.when_confirmed(partial(self._wake, place))
        return later

    def count(self, group: str, topic: str) -> int:
        """Return how many pops of a group wait for messages of a topic."""
        return sum(self._long_polls.count_at(*place) for place in self._waiting(group, topic))

    def wake(self, group: str, topic: str) -> None:
        """Resume pops of a group that wait for a topic: messages of the topic are visible again."""
        for place in self._waiting(group, topic):
            self._wake(place)

    def _waiting(self, group: str, topic: str) -> list[_Place]:
        name, parked = _name(group, topic), self._long_polls.parked
        return [place for place in self._places.get(topic, ()) if place[0] == name and place in parked]

    def _arrived(self, topic: str) -> None:
        """Resume pops that wait for a topic in which a message was just stored. Called for every message."""
        for place in list(self._places[topic]):
            if place not in self._long_polls.parked:
                del self._places[topic][place]
            # The pop that is resumed next reads no message that is confirmed later.
            elif place not in self._woken or not self._store.is_confirmed:
                self._store.when_confirmed(partial(self._wake, place))
        if not self._places[topic]:
            del self._places[topic], self._long_polls.listeners[topic]

    def _wake(self, place: _Place) -> None:
        self._woken[place] = None
        self._answer_soon()

    def _answer_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._run_soon(self._answer_woken)

    def _answer_woken(self) -> None:
        """Answer waiting pops of each woken place until a pop finds nothing. Stop after 1 ms and run again soon."""
        self._is_scheduled = False
        end = self._clock.monotonic() + SLICE_SECONDS
        while self._woken:
            place = next(iter(self._woken))
            if not self._long_polls.answer_first(*place):
                del self._woken[place]
            if self._clock.monotonic() >= end:
                self._answer_soon()
                return


def _name(group: str, topic: str) -> str:
    return f"{topic}@{group}"  # topic names have no `@`, so the name differs from the topics of waiting pulls
