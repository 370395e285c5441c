"""After each append: writes the consume-queue entry, applies the record, and calls the listener.

At start it rebuilds missing entries from the log.
"""

from __future__ import annotations

from collections.abc import Callable

from pyromq.java_hash import tag_hash
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, PAIRS, Property, StoredMessage, SysFlag
from pyromq.names import SCHEDULE_TOPIC
from pyromq.record import FIXED_SIZE
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable, is_folder_name

logger = logger_of(__name__)

_TAGS = Property.TAGS + NAME_VALUE
_NO_QUEUES: dict[int, ConsumeQueue] = {}
_UNKNOWN_LEVEL_MS = 1_000  # Source: ScheduleMessageService.computeDeliverTimestamp

# Half (0x4) and rollback (0xC) messages have this bit; their records are in no queue.
UNQUEUED = SysFlag.HALF


class QueueDispatcher:
    """Writes the queue entry of each record. `on_append(message, tags_code)` is called after each append.

    `followers` hold by topic the function that applies an appended record to the table that follows the topic.
    """

    def __init__(self, queues: QueueTable, delay_levels_ms: tuple[int, ...]) -> None:
        self.on_append: Callable[[StoredMessage, int], None] | None = None
        self.followers: dict[str, Callable[[StoredMessage], None]] = {}
        self._queues = queues
        self._delay_levels_ms = delay_levels_ms
        self._ends: dict[ConsumeQueue, int] = {}  # cache of `log_end` for replay: reading an entry is slow
        self._seen: dict[ConsumeQueue, int] = {}  # log offset after the last replayed record
        self._unverified: dict[ConsumeQueue, StoredMessage] = {}  # records with the queue offset of an earlier record

    def dispatch(self, message: StoredMessage, queue: ConsumeQueue) -> None:
        """Write the entry of a record just appended, apply the record, and call the listener."""
        tags_code = self.tags_code(message)
        if not message.sys_flag & UNQUEUED:
            queue.append(message.log_offset, message.size, tags_code)
        if (apply := self.followers.get(message.topic)) is not None:
            apply(message)
        if self.on_append is not None:
            self.on_append(message, tags_code)

    def tags_code(self, message: StoredMessage) -> int:
        """Return the tags code of a message: the hash of its tags, 0 without tags, or its delivery time in ms."""
        if message.topic == SCHEDULE_TOPIC and Property.DELAY in message.properties:
            return self._due_ms(message)
        # Searched instead of parsed, as this runs for every message. The last property of a name counts.
        before, found, rest = message.property_text.rpartition(_TAGS)
        if not found:
            return 0
        if not before or before[-1] == PAIRS:
            tags = rest.partition(PAIRS)[0]
            if tags and NAME_VALUE not in tags:
                return tag_hash(tags)
        return tag_hash(message.properties.get(Property.TAGS, ""))

    def _due_ms(self, message: StoredMessage) -> int:
        try:
            level = int(message.properties[Property.DELAY])
        except ValueError:
            level = 0
        if level <= 0:
            return tag_hash(message.properties.get(Property.TAGS, ""))
        levels = self._delay_levels_ms
        return message.store_ms + (levels[min(level, len(levels)) - 1] if levels else _UNKNOWN_LEVEL_MS)

    def replay(self, message: StoredMessage, *, complete: bool) -> bool:
        """Write the entry of a record found in the log at start, unless it exists.

        Returns False, and does nothing, if previous entries are missing that may be found earlier in the log. With
        `complete` they are lost, and the queue continues after the gap.
        """
        if message.sys_flag & UNQUEUED:
            return True
        queue = self._queues.by_topic.get(message.topic, _NO_QUEUES).get(message.queue_id)
        if queue is None:
            if not is_folder_name(message.topic, message.queue_id):
                logger.error("record at %d is damaged and skipped: topic %r", message.log_offset, message.topic)
                return True
            queue = self._queues.make(message.topic, message.queue_id)
        if (unverified := self._unverified.pop(queue, None)) is not None:
            self._verify(queue, unverified, message)
        if message.queue_offset >= queue.max_offset and message.log_offset < (self._ends.get(queue) or queue.log_end):
            return True  # a record from before the deletion of its topic, which was created again
        if message.queue_offset > queue.max_offset:
            if queue.max_offset and not complete:
                return False
            if not self._begin_after_gap(message, queue):
                return True
        elif message.queue_offset < queue.max_offset:
            entry = queue.find(message.queue_offset)
            if entry is None or entry == (message.log_offset, message.size, self.tags_code(message)):
                self._seen[queue] = message.log_offset + message.size
                return True
            if entry.size != FILLER_SIZE and entry.log_offset < self._seen.get(queue, 0):
                self._unverified[queue] = message  # the next record of the queue decides which of the two is right
                return True
            # The entry is incomplete or damaged: the record is right.
            queue.cut_at(message.queue_offset)
        self._append_entry(message, queue)
        return True

    def begin_replay(self) -> None:
        """Reset the replay, for records from another place of the log."""
        self._seen.clear()
        self._unverified.clear()

    def end_replay(self) -> None:
        """Decide on the remaining unverified records."""
        for queue, unverified in self._unverified.items():
            self._verify(queue, unverified, None)
        self.begin_replay()

    def _verify(self, queue: ConsumeQueue, message: StoredMessage, following: StoredMessage | None) -> None:
        """Write the entry of a record with the queue offset of an earlier record, by the next record of the queue.

        If its topic was created again, or an entry is incomplete, the next record continues after it. If its head is
        damaged, the next record leaves a gap for it; without a gap the record belongs to another queue.
        """
        if following is None:
            is_later = message.queue_offset in (0, queue.max_offset - 1)
        else:
            is_later = following.queue_offset == message.queue_offset + 1
        if is_later and not self._is_verified(queue, message.queue_offset):
            queue.cut_at(message.queue_offset)
        else:
            where = (
                f"queue {message.topic} {message.queue_id}: the head of the record at {message.log_offset} is damaged"
            )
            if following is not None and following.queue_offset <= queue.max_offset:
                logger.error("%s; the record is skipped: its queue offset is %d", where, message.queue_offset)
                return
            logger.error("%s; its queue offset is %d, not %d", where, queue.max_offset, message.queue_offset)
        self._append_entry(message, queue)

    def _is_verified(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry is the newest replayed one and directly follows another message."""
        entry, previous = queue.find(queue_offset), queue.find(queue_offset - 1)
        follows = previous is not None and previous.size != FILLER_SIZE
        return follows and entry is not None and entry.log_offset + entry.size == self._seen.get(queue)

    def _append_entry(self, message: StoredMessage, queue: ConsumeQueue) -> None:
        queue.append(message.log_offset, message.size, self.tags_code(message))
        self._ends[queue] = self._seen[queue] = message.log_offset + message.size

    def _begin_after_gap(self, message: StoredMessage, queue: ConsumeQueue) -> bool:
        """Continue the queue at the message's offset; False if the log is too short for so many messages."""
        gap = message.queue_offset - queue.max_offset
        where = f"queue {message.topic} {message.queue_id}"
        if gap > (message.log_offset - queue.log_end) // FIXED_SIZE:
            logger.error("%s: record at %d is damaged and skipped", where, message.log_offset)
            return False
        logger.warning("%s: the log has lost %d messages before %d", where, gap, message.queue_offset)
        queue.begin_at(message.queue_offset, message.log_offset)
        return True
