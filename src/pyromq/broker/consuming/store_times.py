"""When messages were stored: read from their records, by a thread where those are not in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TypeVar

from pyromq.record import store_ms_of
from pyromq.slow_work import PagesToLoad, breathe, loaded
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.reading import Place

STEP = 64  # queues at once; then others may have a turn
MOST_COLD = 2_000  # records that one round reads from the disk; the next rounds have the others

K = TypeVar("K")


async def stored_time(store: MessageStore, log_offset: int) -> int | None:
    """Find when the record that begins at a log offset was stored (ms); None where none does."""
    await loaded(store.residency.heads_to_load((log_offset,)))
    record = store.record_at(log_offset)
    return None if record is None else store_ms_of(record)


async def look_at(
    store: MessageStore, places: Mapping[K, Place], found: dict[K, int], *, most_cold: int = sys.maxsize
) -> int:
    """Find when these messages were stored (ms); return how many records came from the disk, of `most_cold` at most.

    Those that are not there, or too many, are left out of `found`.
    """
    unread: PagesToLoad = []
    for number, (queue, offset) in enumerate(places.values()):
        if number % STEP == 0:
            await breathe()
        unread += queue.entry_to_load(offset)
    await loaded(unread)
    begins: dict[K, int] = {}
    unread = []
    for number, (key, place) in enumerate(places.items()):
        if number % STEP == 0:
            await breathe()
        if (begin := store.reading.log_offset_of(place)) is None:
            continue
        head = store.residency.heads_to_load((begin,))
        if not head or len(unread) < most_cold:
            begins[key] = begin
            unread += head
    await loaded(unread)
    for number, (key, begin) in enumerate(begins.items()):
        if number % STEP == 0:
            await breathe()
        if (record := store.record_at(begin)) is not None:
            found[key] = store_ms_of(record)
    return len(unread)


class StoreTimes:
    """Remembers from one round to the next what it was asked: a record is read once for as long as somebody asks."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[Place, int] = {}  # ms
        self._before: dict[Place, int] = {}  # the same, of the last round
        self._left = MOST_COLD

    def begin_round(self) -> None:
        """Forget what the last round did not ask for."""
        self._known, self._before = {}, self._known
        self._left = MOST_COLD

    async def look(self, topic: str, offsets: Mapping[int, int], found: dict[int, int]) -> None:
        """Find when the first message from each of these queue offsets on was stored (ms); both are by queue.

        What cannot be told is left out of `found`.
        """
        unknown: dict[int, Place] = {}
        for number, (queue_id, offset) in enumerate(offsets.items()):
            if number % STEP == 0:
                await breathe()
            place = self._store.reading.first_from(topic, queue_id, offset)
            if place is None:
                continue
            stored_ms = self._known.get(place) or self._before.get(place)
            if stored_ms is None:
                unknown[queue_id] = place
            else:
                self._known[place] = found[queue_id] = stored_ms
        read = await look_at(self._store, unknown, found, most_cold=self._left)
        self._left -= read  # not at once: others may have read meanwhile
        for queue_id, place in unknown.items():
            if queue_id in found:
                self._known[place] = found[queue_id]
