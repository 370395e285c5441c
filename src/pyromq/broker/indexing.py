"""Feeds the key index in slices between other work, and lets queries wait until it has what was stored before them."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.net.tasks import Alarm
from pyromq.store.message_store import MessageStore

STEP_SECONDS = 0.0005  # of work between two turns of the loop: everybody waits as long, also while a query waits
PAUSE_SECONDS = 0.0025  # while there is a backlog, and nobody waits for it
BULK_BYTES = 64 << 10  # stored between two steps: who stores so much shall have the processor
BULK_PAUSE_SECONDS = 0.01
FAR_BYTES = 1 << 30  # of the log: further behind, the index has a third of the processor until it is not any more
FAR_PAUSE_SECONDS = 0.001
IDLE_SECONDS = 0.5


class _Query(NamedTuple):
    log_end: int  # when it was asked
    indexed: Future[None]


class Indexing:
    """The index of one broker at work. `alarm` rings when `step` has to run earlier than it said."""

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.alarm = Alarm(clock)
        self._store = store
        self._queries: deque[_Query] = deque()
        self._log_end = 0  # at the last step

    def when_indexed(self) -> Future[None] | None:
        """Return what ends when all that is in the log now is indexed, in the loop's thread; None where that is so.

        Its exception is `StoreNotWritable` where the disk has no room for the index.
        """
        if not self._queries and not self._store.index_behind:
            return None
        query = _Query(self._store.max_log_offset, Future())
        self._queries.append(query)
        self.alarm.ring_within(0)
        return query.indexed

    def step(self) -> float:
        """Index a slice, answer one query at most; return in how many seconds to go on."""
        if not self._queries:
            done = not self._store.index_behind or self._store.index_step(STEP_SECONDS)
            before, self._log_end = self._log_end, self._store.max_log_offset
            if done:
                return IDLE_SECONDS
            if self._store.index_behind > FAR_BYTES:
                return FAR_PAUSE_SECONDS
            return BULK_PAUSE_SECONDS if self._log_end - before > BULK_BYTES else PAUSE_SECONDS
        try:
            self._store.follow_index(STEP_SECONDS)
        except MQError as error:
            self._queries.popleft().indexed.set_exception(error)
            return 0
        if self._queries[0].log_end <= self._store.max_log_offset - self._store.index_behind:
            self._queries.popleft().indexed.set_result(None)
        return 0
