"""When messages were stored: read from their records, by a thread where those are not in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pyromq.record import store_ms_of
from pyromq.store.message_store import MessageStore

STEP = 64  # queues at once; then others may have a turn
MOST_COLD = 2_000  # records that one round reads from the disk; the next rounds have the others

Unread = list[memoryview]  # what a thread should load before it goes on; []: nothing, others may have a turn


class StoreTimes:
    """Remembers from one round to the next what it was asked: a record is read once for as long as somebody asks."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._known: dict[int, int] = {}  # by log offset (ms)
        self._before: dict[int, int] = {}  # the same, of the last round
        self._read = 0

    def begin_round(self) -> None:
        """Forget what the last round did not ask for."""
        self._known, self._before = {}, self._known
        self._read = 0

    def look(self, topic: str, offsets: Mapping[int, int], found: dict[int, int]) -> Iterator[Unread]:
        """Find when the first message from each of these queue offsets on was stored (ms); both are by queue.

        What cannot be told is left out of `found`.
        """
        cold: dict[int, int] = {}  # log offsets
        unread: Unread = []
        for number, (queue_id, offset) in enumerate(offsets.items()):
            if number % STEP == 0:
                yield []
            log_offset = self._store.reading.begin_from(topic, queue_id, offset)
            if log_offset is None:
                continue
            if log_offset not in self._known and log_offset not in self._before and self._store.is_cold(log_offset):
                cold[queue_id] = log_offset
                unread += self._store.reading.head_at(log_offset)
            elif (stored_ms := self._stored_ms(log_offset)) is not None:
                found[queue_id] = stored_ms
        if unread and self._read < MOST_COLD:
            self._read += len(unread)
            yield unread
            for queue_id, log_offset in cold.items():
                if (stored_ms := self._stored_ms(log_offset)) is not None:
                    found[queue_id] = stored_ms

    def _stored_ms(self, log_offset: int) -> int | None:
        stored_ms = self._known.get(log_offset, self._before.get(log_offset))
        if stored_ms is None and (record := self._store.record_at(log_offset)) is not None:
            stored_ms = store_ms_of(record)
        if stored_ms is not None:
            self._known[log_offset] = stored_ms
        return stored_ms
