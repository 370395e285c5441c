"""Internal queues and the tables that follow them.

Progress is saved only after its part of the commit log is on disk and confirmed. Saved progress that survives a power
loss or a failover, while its log does not, would lose delivered or decided messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import merge
from typing import Generic, TypeVar

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.message import StoredMessage
from pyromq.store.message_store import MessageStore, QueueEntry

T = TypeVar("T")


class FlushedProgress(Generic[T]):
    """Holds one state of progress until the commit log, as long as it was at that moment, is on disk and confirmed."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._held: T | None = None
        self._log_end = 0

    @property
    def is_empty(self) -> bool:
        return self._held is None

    def hold(self, progress: T) -> None:
        """Hold the present progress; do nothing if an older state is still held."""
        if self._held is None:
            self._held, self._log_end = progress, self._store.max_log_offset

    def take(self) -> T | None:
        """Return the held progress and forget it, if its log is on disk and confirmed; else, or without one, None."""
        if self._log_end > min(self._store.flushed_to, self._store.confirmed_end):
            return None
        progress, self._held = self._held, None
        return progress


class InternalQueues:
    """The internal queues that a table in memory follows, and the progress of the table through them.

    A method of the table applies one record. The method is called once for each record, in log order. At the start it
    is called for the records after the saved progress, later for each appended record. Progress is stored as the
    offsets of `group`.
    """

    def __init__(
        self, group: str, queues: Sequence[tuple[str, int]], store: MessageStore, offsets: ConsumerOffsets
    ) -> None:
        self.saved: Mapping[tuple[str, int], int] = {}
        self._group = group
        self._queues = queues
        self._store = store
        self._offsets = offsets
        self._flushed = FlushedProgress[Mapping[tuple[str, int], int]](store)

    def follow(
        self,
        apply: Callable[[StoredMessage], None],
        read: Callable[[QueueEntry, str, int, int], StoredMessage | None] | None = None,
    ) -> None:
        """Apply the records after the saved progress now, and each new record before its append returns.

        `read` replaces `MessageStore.message_of`, for tables that do not need all of a record; None skips the record.
        """
        read = read or self._store.message_of
        for entry, place in merge(*(self._entries(*queue) for queue in self._queues)):
            if (record := read(entry, *place)) is not None:
                apply(record)
        for topic in dict(self._queues):
            self._store.follow(topic, apply)

    def _entries(self, topic: str, queue_id: int) -> Iterator[tuple[QueueEntry, tuple[str, int, int]]]:
        first = self.stored(topic, queue_id)
        for queue_offset in range(first, self._store.next_offset(topic, queue_id)):
            for entry in self._store.entries(topic, queue_id, queue_offset, 1):
                yield entry, (topic, queue_id, queue_offset)

    def stored(self, topic: str, queue_id: int = 0) -> int:
        """Return the stored queue offset, moved into the bounds of the queue."""
        offset = self._offsets.find(self._group, topic, queue_id) or 0
        return min(max(offset, self._store.min_offset(topic, queue_id)), self._store.next_offset(topic, queue_id))

    def save(self, now: Mapping[tuple[str, int], int], *, closed: bool) -> None:
        """Commit the latest held progress whose log is on disk and confirmed, and hold `now`.

        With `closed` all of the log is on disk: then commit `now` if all of the log is confirmed.
        """
        ready = now if closed and self._store.is_confirmed else self._flushed.take()
        self._flushed.hold(now)
        if ready is not None and any(offset != self.saved.get(queue, 0) for queue, offset in ready.items()):
            self.saved = ready
            for (topic, queue_id), offset in ready.items():
                self._offsets.commit(self._group, topic, queue_id, offset)

    def log_needed_from(self, topic: str) -> int:
        """Return the log offset of the first record of queue 0 after the saved progress.

        Without such a record this is the log's end.
        """
        first = max(self.saved.get((topic, 0), 0), self._store.min_offset(topic, 0))
        entries = self._store.entries(topic, 0, first, 1)
        return entries[0].log_offset if entries else self._store.confirmed_end
