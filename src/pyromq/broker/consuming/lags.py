"""Computes how far consumer groups are behind, in messages and in time, and reads when messages were stored.

Store times are read from records; a thread loads records that are not resident in memory.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.record import store_ms_of
from pyromq.slow_work import PagesToLoad, loaded, yield_slice
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.reading import Place

STEP = 64  # queues read between two pauses, in which the event loop serves other connections
MAX_COLD = 2_000  # limit of records that one round reads from the disk; the following rounds read the others

K = TypeVar("K")


async def stored_time(store: MessageStore, log_offset: int) -> int | None:
    """Return the store time (ms since 1970) of the record at a log offset; None if no record begins there."""
    await loaded(store.residency.heads_to_load((log_offset,)))
    record = store.record_at(log_offset)
    return None if record is None else store_ms_of(record)


async def read_store_times(
    store: MessageStore, places: Mapping[K, Place], found: dict[K, int], *, max_cold: int = sys.maxsize
) -> int:
    """Enter the store times (ms) of the messages at `places` in `found`; return the number of records read from disk.

    At most `max_cold` records are read from disk. The other messages on disk, and missing ones, are omitted in
    `found`.
    """
    unread: PagesToLoad = []
    for number, (queue, offset) in enumerate(places.values()):
        if number % STEP == 0:
            await yield_slice()
        unread += queue.entry_to_load(offset)
    await loaded(unread)
    begins: dict[K, int] = {}
    unread = []
    for number, (key, place) in enumerate(places.items()):
        if number % STEP == 0:
            await yield_slice()
        if (begin := store.reading.log_offset_of(place)) is None:
            continue
        head = store.residency.heads_to_load((begin,))
        if not head or len(unread) < max_cold:
            begins[key] = begin
            unread += head
    await loaded(unread)
    for number, (key, begin) in enumerate(begins.items()):
        if number % STEP == 0:
            await yield_slice()
        if (record := store.record_at(begin)) is not None:
            found[key] = store_ms_of(record)
    return len(unread)


class StoreTimes:
    """Reads store times of messages, and remembers them from one round to the next. Each record is thus read once."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[Place, int] = {}  # message's place -> store time (ms) read or reused in this round
        self._before: dict[Place, int] = {}  # message -> store time (ms) known in the round before
        self._left = MAX_COLD  # records that this round may still read from the disk

    def begin_round(self) -> None:
        """Begin a new round, and drop the messages that were not looked up in the previous round."""
        self._known, self._before = {}, self._known
        self._left = MAX_COLD

    async def read(self, topic: str, offsets: Mapping[int, int], found: dict[int, int]) -> None:
        """Enter in `found`, by queue id, the store time (ms) of the first message at or after each queue's offset.

        Queues without such a message, or whose store time is not known in this round, are omitted.
        """
        unknown: dict[int, Place] = {}
        for number, (queue_id, offset) in enumerate(offsets.items()):
            if number % STEP == 0:
                await yield_slice()
            place = self._store.reading.first_from(topic, queue_id, offset)
            if place is None:
                continue
            stored_ms = self._known.get(place) or self._before.get(place)
            if stored_ms is None:
                unknown[queue_id] = place
            else:
                self._known[place] = found[queue_id] = stored_ms
        read = await read_store_times(self._store, unknown, found, max_cold=self._left)
        self._left -= read  # subtracted, not assigned: other calls may have read records meanwhile
        for queue_id, place in unknown.items():
            if queue_id in found:
                self._known[place] = found[queue_id]


def in_steps(queues: int) -> Iterator[range]:
    """Yield the queue ids from 0 to `queues` - 1 in ranges of at most `STEP`."""
    for first in range(0, queues, STEP):
        yield range(first, min(first + STEP, queues))


@dataclass(slots=True)
class Lag:
    """The lag of a group in a topic, by queue id: messages not consumed, and store time (ms) of the first of them."""

    group: str
    topic: str
    counts: dict[int, int] = field(default_factory=dict)
    stored_ms: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def age_ms(self, now_ms: int) -> int:
        """Return the age (ms) of the oldest message that the group has not consumed; 0 if none is known."""
        return max(0, now_ms - min(self.stored_ms.values(), default=now_ms))


class Lags:
    """Reads the lags of groups of one broker. Each caller that reads repeatedly needs its own `Lags`."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets, times: StoreTimes) -> None:
        self._store = store
        self._offsets = offsets
        self._times = times

    async def fill(self, lag: Lag, queues: int) -> None:
        """Fill in `lag` for the first `queues` queues. For a queue without a stored offset every message counts."""
        behind = {}
        consumed = self._offsets.of_topic(lag.group, lag.topic)
        for queue_ids in in_steps(queues):
            await yield_slice()
            for queue_id in queue_ids:
                offset = consumed.get(queue_id, 0)
                count = lag.counts[queue_id] = max(0, self._store.max_offset(lag.topic, queue_id) - offset)
                if count:
                    behind[queue_id] = offset
        await self._times.read(lag.topic, behind, lag.stored_ms)
