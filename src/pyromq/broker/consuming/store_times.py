"""When messages were stored: read from their records, by a thread where those are not in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyromq.record import store_ms_of
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.reading import Place

STEP = 64  # queues at once; then others may have a turn
MOST_COLD = 2_000  # records that one round reads from the disk; the next rounds have the others

Unread = list[memoryview]  # what a thread should load before it goes on; []: nothing, others may have a turn


class StoreTimes:
    """Remembers from one round to the next what it was asked: a record is read once for as long as somebody asks."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[Place, int] = {}  # ms
        self._before: dict[Place, int] = {}  # the same, of the last round
        self._read = 0

    def begin_round(self) -> None:
        """Forget what the last round did not ask for."""
        self._known, self._before = {}, self._known
        self._read = 0

    def look(self, topic: str, offsets: Mapping[int, int], found: dict[int, int]) -> Iterator[Unread]:
        """Find when the first message from each of these queue offsets on was stored (ms); both are by queue.

        What cannot be told is left out of `found`.
        """
        reading = self._store.reading
        cold: list[tuple[int, Place, int]] = []  # with the log offset
        unread: Unread = []
        for number, (queue_id, offset) in enumerate(offsets.items()):
            if number % STEP == 0:
                yield []
            place = reading.first_from(topic, queue_id, offset)
            if place is None:
                continue
            stored_ms = self._known.get(place) or self._before.get(place)
            if stored_ms is not None:
                self._known[place] = found[queue_id] = stored_ms
            elif (log_offset := reading.begin_of(place)) is None:
                continue
            elif self._store.is_cold(log_offset):
                cold.append((queue_id, place, log_offset))
                unread += reading.head_at(log_offset)
            else:
                self._read_time(queue_id, place, log_offset, found)
        if unread and self._read < MOST_COLD:
            self._read += len(unread)
            yield unread
            for each in cold:
                self._read_time(*each, found)

    def _read_time(self, queue_id: int, place: Place, log_offset: int, found: dict[int, int]) -> None:
        if (record := self._store.record_at(log_offset)) is not None:
            self._known[place] = found[queue_id] = store_ms_of(record)
