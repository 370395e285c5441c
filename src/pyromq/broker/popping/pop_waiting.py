"""Waiting pops. A message wakes one pop, which takes all available messages. Then the next one is woken.

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
    """The waiting pops of all connections, by topic and group, in order of their arrival."""

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
        self._is_going_on = False

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

        `resume` is called when there may be a message, and returns None to go on waiting; with True, it must return the
        final reply. Raises `LimitReached` if the connection has too many waiting pulls and pops.
        """
        key = _key(group, topic)
        due = self._clock.monotonic() + seconds

        def go_on() -> Reply | None:
            return resume(self._long_polls.is_stopping or self._clock.monotonic() >= due)

        later = self._long_polls.park(LongPoll(key, _ANY_QUEUE, wanted, go_on, Later(), peer), seconds)
        for name in (topic, pop_retry_topic(group, topic)):
            self._keys.setdefault(name, {})[key] = None
            self._long_polls.listeners.setdefault(name, partial(self._arrived, name))
        if not self._store.is_confirmed:  # a message may be stored and become readable without arriving once more
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
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        if not self._is_going_on:
            self._is_going_on = True
            self._run_soon(self._go_on)

    def _go_on(self) -> None:
        """Answer pops until one of each woken group finds nothing; after 1 ms, let other requests run."""
        self._is_going_on = False
        end = self._clock.monotonic() + SLICE_SECONDS
        while self._woken:
            key = next(iter(self._woken))
            if not self._long_polls.answer_first(key, _ANY_QUEUE):
                del self._woken[key]
            if self._clock.monotonic() >= end:
                self._go_on_soon()
                return


def _key(group: str, topic: str) -> str:
    return f"{topic}@{group}"  # no name of a topic has this character, so it is no topic that is pulled
