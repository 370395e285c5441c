"""A broker's message store as the log that a `Replica` works with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from zlib import crc32

from pyromq.broker.replication.replica_stream import RecordMark
from pyromq.record import store_ms_of
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.consume_queue import FILLER_SIZE


def last_offsets(store: MessageStore) -> Iterator[int]:
    """Yield for each topic the log offset of the last record that is in a queue; -1 for a topic without records."""
    for topic in store.topics():
        last = -1
        for queue_id in store.queue_ids(topic):
            for entry in store.entries(topic, queue_id, store.next_offset(topic, queue_id) - 1, 1):
                if entry.size != FILLER_SIZE:
                    last = max(last, entry.log_offset)
        yield last


class StoreLog:
    """The log of an open store, as a `ReplicaLog`. From now on, consumers read only up to the store's confirmed end.

    `confirm(end)` is called with a new confirmed end; None: it is set in the store directly. `begin` is the log offset
    at which an empty log begins.
    """

    def __init__(self, store: MessageStore, confirm: Callable[[int], None] | None = None, begin: int = 0) -> None:
        self._store = store
        self._begin = begin
        store.bound_reads()
        self.append_bytes = store.append_bytes
        self.views = store.views
        self.confirm = confirm or store.confirm
        self.drop_incomplete = store.drop_incomplete

    @property
    def _is_empty(self) -> bool:
        return not self._store.written_end

    @property
    def first(self) -> int:
        return self._begin if self._is_empty else self._store.min_log_offset

    @property
    def end(self) -> int:
        return self._begin if self._is_empty else self._store.max_log_offset

    @property
    def written_end(self) -> int:
        return self._begin if self._is_empty else self._store.written_end

    @property
    def flushed_end(self) -> int:
        return self._store.flushed_to

    @property
    def confirmed_end(self) -> int:
        return self._store.confirmed_end

    def last_mark(self) -> RecordMark | None:
        """Return the mark of the last record that is in a queue; None if no record is."""
        return self.mark_at(max(last_offsets(self._store), default=-1))

    def mark_at(self, offset: int) -> RecordMark | None:
        record = self._store.record_at(offset)
        return None if record is None else RecordMark(offset, crc32(record), store_ms_of(record))
