"""Feeds the key index in slices between other work, and lets queries wait until it has what was stored before them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.net.alarm import Alarm
from pyromq.remoting.command import Reply
from pyromq.store.message_store import MessageStore

STEP_SECONDS = 0.001  # of work between two turns of the loop: everybody waits as long
QUERY_STEP_SECONDS = 0.005  # the same while a query waits
PAUSE_SECONDS = 0.005  # while there is a backlog, and nobody waits for it
IDLE_SECONDS = 0.5


class _Query(NamedTuple):
    log_end: int  # when it was asked
    find: Callable[[], Reply]
    answered: Future[Reply]


class Indexing:
    """The index of one broker at work. `alarm` rings when `step` has to run earlier than it said."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.alarm = Alarm(clock)
        self._store = store
        self._queries: deque[_Query] = deque()

    def when_indexed(self, find: Callable[[], Reply]) -> Reply | Future[Reply]:
        """Return what `find` returns once all that is in the log now is indexed; its errors are the answer, too.

        Also `StoreNotWritable` where the disk has no room for the index.
        """
        if not self._queries and not self._store.index_behind:
            return find()
        query = _Query(self._store.max_log_offset, find, Future())
        self._queries.append(query)
        self.alarm.ring_within(0)
        return query.answered

    def step(self) -> float:
        """Index a slice, answer one query at most; return in how many seconds to go on."""
        if not self._queries:
            done = not self._store.index_behind or self._store.index_step(STEP_SECONDS)
            return IDLE_SECONDS if done else PAUSE_SECONDS
        try:
            self._store.follow_index(QUERY_STEP_SECONDS)
        except MQError as error:
            self._queries.popleft().answered.set_exception(error)
            return 0
        if self._queries[0].log_end <= self._store.max_log_offset - self._store.index_behind:
            _answer(self._queries.popleft())
        return 0


def _answer(query: _Query) -> None:
    try:
        query.answered.set_result(query.find())
    except MQError as error:
        query.answered.set_exception(error)
