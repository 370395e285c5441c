"""Appends the messages of a batch to log and queue in compiled code, without a message object for each.

A member is one message of a batch. Without compiled code, and for unusual members, `Shape.messages` and
`MessageStore.append_batch` store the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.message import PAIRS, StoredMessage
from pyromq.record import BatchMember
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queue.consume_queue import ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.batches import Members, read_members

Arrivals = Callable[[], Iterable[tuple[int, int]]]  # returns log offset and tags code of each message
BatchListener = Callable[[str, int, Arrivals], None]  # called with topic, queue id and arrivals


@dataclass(frozen=True, slots=True)
class Shape:
    """The fields that all records of a batch share. `more` is appended to the properties of each message."""

    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    born_address: bytes
    more: str
    reconsume_times: int = 0
    prepared_offset: int = 0

    def text(self, own: str) -> str:
        """Return the property text to store for a message: the message's own text `own`, then `more`."""
        return own + ("" if not own or own.endswith(PAIRS) else PAIRS) + self.more

    def messages(self, members: Iterable[BatchMember]) -> Iterator[StoredMessage]:
        """Yield the messages to store: each has its own flag, body and properties, and the shared fields."""
        for flag, body, text in members:
            yield StoredMessage(
                self.topic,
                body,
                self.text(text),
                self.queue_id,
                flag,
                self.sys_flag,
                self.born_ms,
                self.born_address,
                self.reconsume_times,
                self.prepared_offset,
            )


@dataclass(frozen=True, slots=True)
class Stored:
    """The place of messages stored back to back: log and queue offset of the first, and bytes of all records."""

    log_offset: int
    queue_offset: int
    size: int


def members_of(body: bytes, more: str) -> Members | None:
    """Return the messages of an encoded batch for `BatchAppends.append`, or None.

    None means that there is no compiled code, or that a message is unusual or damaged. `more` is appended to the
    properties of each message when the message is stored.
    """
    return read_members(body, more.encode()) if speedups.is_active else None


class BatchAppends:
    """Appends batches to one store. `on_append(topic, queue id, arrivals)` is called after each append.

    `arrivals()` returns log offset and tags code of each appended message.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, clock: Clock) -> None:
        self.on_append: BatchListener | None = None
        self._log = log
        self._queues = queues
        self._now_ms = clock.now_ms

    def append(
        self, members: Members, shape: Shape, *, first: int, count: int, store_address: bytes, spare_bytes: int
    ) -> Stored | None:
        """Store `count` messages of the batch from message `first` on, all or none.

        Return their place; None, with nothing stored, for unusual messages. All records, and `spare_bytes` more after
        them, fit into one segment. Raises as `MessageStore.append_batch` does.
        """
        queue = self._queues.make(shape.topic, shape.queue_id)
        queue_offset, topic = queue.max_offset, shape.topic.encode()
        while queue.reserved < queue_offset + count:
            queue.reserve(max(queue_offset, queue.reserved))
        log = self._log
        now = max(self._now_ms(), log.last_store_ms)
        size = members.record_bytes(first, count, len(topic))
        if log.end + size + spare_bytes > log.limit or size + spare_bytes > log.max_record_bytes:
            log.ensure_capacity(size + spare_bytes)
        log_offset = log.end
        try:
            is_done = members.append(
                *(log, first, count, topic),
                queue_id=shape.queue_id,
                queue_offset=queue_offset,
                sys_flag=shape.sys_flag,
                born_ms=shape.born_ms,
                born_address=shape.born_address,
                now_ms=now,
                store_address=store_address,
                reconsume_times=shape.reconsume_times,
                prepared_offset=shape.prepared_offset,
            )
        except OverflowError:  # a number of the batch is too large for its field in a record
            return None
        if not is_done:
            return None
        self._enter(members, queue, first=first, count=count, log_offset=log_offset)
        if self.on_append is not None:
            self.on_append(
                *(shape.topic, shape.queue_id),
                lambda: members.arrivals(first, count, len(topic), log_offset),
            )
        return Stored(log_offset, queue_offset, size)

    @staticmethod
    def _enter(members: Members, queue: ConsumeQueue, *, first: int, count: int, log_offset: int) -> None:
        """Write the queue entries of stored messages, into several files of the queue if needed."""
        topic_size = len(queue.topic.encode())
        while count:
            if queue.max_offset >= queue.end:
                queue.open_file(queue.max_offset)
            done = members.enter(queue, first, count, topic_size, log_offset)
            log_offset += members.record_bytes(first, done, topic_size)
            first, count = first + done, count - done
