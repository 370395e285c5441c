"""Waiting pops. A message resumes one pop of each group, which takes all available messages; then the next resumes.

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
from pyromq.store.message_store import MessageStore

_ANY_QUEUE = -1


class PopWaiting:
    """The waiting pops of all connections, by topic and group, in the order of their arrival."""

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
        self._keys: dict[str, dict[str, None]] = {}  # topic, or retry topic -> keys of the groups that wait
        self._woken: dict[str, None] = {}  # keys for which there may be messages
        self._is_scheduled = False  # whether `_answer_woken` will be called

    def park(
        self,
        group: str,
        topic: str,
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
        key = _key(group, topic)
        due = self._clock.monotonic() + seconds

        def answer() -> Reply | None:
            return resume(self._long_polls.is_stopping or self._clock.monotonic() >= due)

        later = self._long_polls.park(LongPoll(key, _ANY_QUEUE, wanted, answer, Later(), peer), seconds)
        for name in (topic, pop_retry_topic(group, topic)):
            self._keys.setdefault(name, {})[key] = None
            self._long_polls.listeners.setdefault(name, partial(self._arrived, name))
        if not self._store.is_confirmed:  # a stored message becomes readable later, without another call of listeners
            self._store.when_confirmed(partial(self._wake, key))
        return later

    def count(self, group: str, topic: str) -> int:
        """Return how many pops of a group wait for messages of a topic."""
        return self._long_polls.count_at(_key(group, topic), _ANY_QUEUE)

    def wake(self, group: str, topic: str) -> None:
        """Resume pops of a group that wait for a topic: messages of the topic are visible again."""
        key = _key(group, topic)
        if (key, _ANY_QUEUE) in self._long_polls.parked:
            self._wake(key)

    def _arrived(self, topic: str) -> None:
        """Resume pops that wait for a topic in which a message was just stored. Called for every message."""
        for key in list(self._keys[topic]):
            if (key, _ANY_QUEUE) not in self._long_polls.parked:
                del self._keys[topic][key]
            elif key not in self._woken:
                self._store.when_confirmed(partial(self._wake, key))
        if not self._keys[topic]:
            del self._keys[topic], self._long_polls.listeners[topic]

    def _wake(self, key: str) -> None:
        self._woken[key] = None
        self._answer_soon()

    def _answer_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._run_soon(self._answer_woken)

    def _answer_woken(self) -> None:
        """Answer waiting pops of each woken group until a pop finds nothing. Stop after 1 ms and run again soon."""
        self._is_scheduled = False
        end = self._clock.monotonic() + SLICE_SECONDS
        while self._woken:
            key = next(iter(self._woken))
            if not self._long_polls.answer_first(key, _ANY_QUEUE):
                del self._woken[key]
            if self._clock.monotonic() >= end:
                self._answer_soon()
                return


def _key(group: str, topic: str) -> str:
    return f"{topic}@{group}"  # topic names have no `@`, so the key differs from the topics of waiting pulls
