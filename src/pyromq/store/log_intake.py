"""Appends the bytes of a master's log to a follower's log, and dispatches each complete record as an append does.

The bytes arrive in pieces of any size, which may end inside a record. The follower's log files are equal to the
master's files, byte for byte. No sockets here.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from pyromq import speedups
from pyromq.errors import StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.message import StoredMessage
from pyromq.names import SCHEDULE_TOPIC
from pyromq.plural import counted
from pyromq.record import BLANK_MAGIC, BLANK_SIZE, FIXED_SIZE, MAGIC, Buffer, decode, unpack_size_and_magic
from pyromq.store.batch_appends import BatchListener
from pyromq.store.disk import disk_advice
from pyromq.store.log.commit_log import CommitLog
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable, is_folder_name
from pyromq.store.queue_dispatcher import UNQUEUED, QueueDispatcher

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.intake import RecordIntake

logger = logger_of(__name__)

# Limit of queue offsets that may be missing before a record. After a power loss a master does not use the queue offsets
# of lost messages again, so the log has gaps in them.
_MAX_LOST = 1 << 20


class LogIntake:
    """Appends the bytes of a master's log to one store. Only the store's thread may use this object.

    `arrived_together(topic, queue id, arrivals)` is called when compiled code has added several messages to one queue.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, dispatcher: QueueDispatcher) -> None:
        self.arrived_together: BatchListener | None = None
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        self._ordinary: RecordIntake | None = None
        if speedups.is_active:
            self._ordinary = RecordIntake(queues.by_topic, dispatcher.followers, SCHEDULE_TOPIC)

    def append(self, offset: int, data: Buffer) -> None:
        """Append bytes that begin at log offset `offset`, and dispatch the records that are complete now.

        Raises `UsageError` if `offset` is not the end of the written bytes, `StoreCorrupt` for bytes that are not
        records, and `StoreNotWritable`. After an error, the log ends with the last dispatched record.
        """
        try:
            self._log.receive(offset, data)
            self._enter_ordinary()
            while self._enter_next():
                self._enter_ordinary()
        except OSError as error:
            self._log.drop_incomplete()
            raise StoreNotWritable(
                f"cannot write the queues in {self._queues.folder}: {disk_advice(error, 'the slave continues')}"
            ) from error
        except (StoreCorrupt, StoreNotWritable):
            self._log.drop_incomplete()
            raise

    def _enter_ordinary(self) -> None:
        """Dispatch ordinary records with compiled code, up to the first other record."""
        log = self._log
        if self._ordinary is not None and log.memory is not None:
            before = self._ordinary.take(log, log.written_end, log.base + log.files.segment_bytes)
            for queue, start in before.items():
                if self.arrived_together is not None and start < queue.max_offset:
                    assert isinstance(queue, ConsumeQueue)
                    self.arrived_together(
                        queue.topic, queue.queue_id, partial(_arrivals, queue, start, queue.max_offset)
                    )

    def _enter_next(self) -> bool:
        """Dispatch the record at the log's end. Return False if the record is incomplete."""
        log = self._log
        if (memory := log.memory) is None or log.written_end - log.end < BLANK_SIZE:
            return False
        position = log.end - log.base
        size, magic = unpack_size_and_magic(memory, position)
        left = log.files.segment_bytes - position
        is_blank = magic == BLANK_MAGIC and size == left
        if not is_blank and not (magic == MAGIC and FIXED_SIZE <= size <= left - BLANK_SIZE):
            raise self._refused(f"no record begins there, but {bytes(memory[position : position + 8]).hex()}")
        if log.written_end - log.end < size:
            return False
        if is_blank:
            log.complete(size, 0)
        else:
            self._enter(memory, position, size)
        return True

    def _enter(self, memory: memoryview, position: int, size: int) -> None:
        try:
            message = decode(memory, position, check_crc=True)
        except StoreCorrupt as error:
            raise self._refused(str(error)) from error
        if message.log_offset != self._log.end:
            raise self._refused(f"a record that belongs to log offset {message.log_offset}")
        if not is_folder_name(message.topic, message.queue_id):
            logger.error("record at %d is in no queue: topic %r is illegal", message.log_offset, message.topic)
            self._log.complete(size, message.store_ms)
            return
        queue = self._queues.make(message.topic, message.queue_id)
        if not message.sys_flag & UNQUEUED:
            self._prepare(queue, message)
        self._log.complete(size, message.store_ms)
        self._dispatcher.dispatch(message, queue)

    def _refused(self, fault: str) -> StoreCorrupt:
        return StoreCorrupt(
            f"{self._log.place_of(self._log.end)}: the master sent damaged bytes ({fault}), which are not stored; run"
            " `pyromq store check` on the stopped master"
        )

    def _prepare(self, queue: ConsumeQueue, message: StoredMessage) -> None:
        """Make the queue end at the record's queue offset, with disk space for the entry.

        Different from RocketMQ: after the master has deleted a topic and created it again, its queues begin at 0.
        """
        offset, expected = message.queue_offset, queue.max_offset
        if offset < expected and self._is_obsolete(queue, message):
            logger.warning("queue %s %d begins again at %d", message.topic, message.queue_id, offset)
            self._queues.begin_again(queue, offset)
        elif expected < offset <= expected + self._max_lost(queue, message):
            begins = not expected and self._log.min_offset > 0  # the log begins after the queue's earlier messages
            if not begins:
                lost = counted(offset - expected, "message")
                logger.warning(
                    "queue %s %d: the master lacks %s before %d", message.topic, message.queue_id, lost, offset
                )
            queue.begin_at(offset, 0 if begins else message.log_offset)
        elif offset != expected:
            logger.error(
                "queue %s %d: the head of the record at %d is damaged; its queue offset is %d, not %d",
                *(message.topic, message.queue_id, message.log_offset, expected, offset),
            )
        if queue.max_offset >= queue.reserved:
            queue.reserve(queue.max_offset)

    @staticmethod
    def _is_obsolete(queue: ConsumeQueue, message: StoredMessage) -> bool:
        """Return True if the queue's entries from the record's queue offset on do not exist at the master."""
        entry = queue.find(message.queue_offset)
        is_later = entry is None or entry.size == FILLER_SIZE or entry.log_offset >= message.log_offset
        return message.queue_offset == 0 or is_later

    def _max_lost(self, queue: ConsumeQueue, message: StoredMessage) -> int:
        if not queue.max_offset and self._log.min_offset > 0:
            return message.queue_offset
        return _MAX_LOST + (message.log_offset - queue.covered_to) // FIXED_SIZE


def _arrivals(queue: ConsumeQueue, first: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield log offset and tags code of the messages from queue offset `first` up to, not including, `end`."""
    for offset in range(first, end):
        if (entry := queue.find(offset)) is not None:
            yield entry.log_offset, entry.tags_code
