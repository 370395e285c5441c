"""Adds stored messages to the key index in slices, between the requests of connections."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.net.tasks import Alarm
from pyromq.store.message_store import MessageStore

STEP_SECONDS = 0.0005  # longest time of indexing before other connections are served
PAUSE_SECONDS = 0.0025  # pause between two steps of indexing if no query waits
BULK_BYTES = 64 << 10  # producers are busy if more bytes are stored between two steps; sends then come first
BULK_PAUSE_SECONDS = 0.01  # pause between two steps of indexing if producers are busy
FAR_BYTES = 1 << 30  # bytes of log not indexed, beyond which indexing gets a third of the processor
FAR_PAUSE_SECONDS = 0.001  # pause between two steps of indexing if the index is `FAR_BYTES` behind
IDLE_SECONDS = 0.5  # pause between two steps of indexing if all messages are indexed


class _Query(NamedTuple):
    log_end: int  # log offset at which the log ended when the query arrived
    indexed: Future[None]


class Indexing:
    """Adds stored messages to the key index of one broker.

    `step` returns the seconds until its next call; `alarm` fires if the call must come earlier.
    """

    def __init__(self, store: MessageStore, clock: Clock) -> None:
        self.alarm = Alarm(clock)
        self._store = store
        self._queries: deque[_Query] = deque()
        self._log_end = 0  # log offset at which the log ended at the last step

    def when_indexed(self) -> Future[None] | None:
        """Return a future that completes when all messages stored so far are indexed; None if they are indexed already.

        The future completes in the event loop's thread, with `StoreNotWritable` if the disk has no room for the index.
        """
        if not self._queries and not self._store.index_behind:
            return None
        query = _Query(self._store.max_log_offset, Future())
        self._queries.append(query)
        self.alarm.schedule_within(0)
        return query.indexed

    def step(self) -> float:
        """Index a slice of the log and complete one query at most; return the seconds until the next call."""
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
