"""What follows an append: the entry in the message's queue, and whoever listens."""

from __future__ import annotations

from collections.abc import Callable

from pyromq.java_hash import tag_hash
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, PAIRS, Property, StoredMessage, SysFlag
from pyromq.names import SCHEDULE_TOPIC
from pyromq.record import FIXED_SIZE
from pyromq.store.queue.consume_queue import FILLER_SIZE, ConsumeQueue
from pyromq.store.queue.queue_table import QueueTable, names_folders

logger = logger_of(__name__)

_TAGS = Property.TAGS + NAME_VALUE
_NO_QUEUES: dict[int, ConsumeQueue] = {}
_UNKNOWN_LEVEL_MS = 1_000  # Source: ScheduleMessageService.computeDeliverTimestamp

# Both half (0x4) and rollback (0xC) have this bit; such records are in no queue.
UNQUEUED = SysFlag.HALF


class QueueDispatcher:
    """Leads every record into its queue. `on_append(message, tags_code)` is called after each live append."""

    def __init__(self, queues: QueueTable, delay_levels_ms: tuple[int, ...]) -> None:
        self.on_append: Callable[[StoredMessage, int], None] | None = None
        self._queues = queues
        self._delay_levels_ms = delay_levels_ms
        self._ends: dict[ConsumeQueue, int] = {}  # `log_end` of those replayed into: reading an entry takes long
        self._seen: dict[ConsumeQueue, int] = {}  # log offset behind the last record replayed
        self._suspects: dict[ConsumeQueue, StoredMessage] = {}

    def follow(self, message: StoredMessage, queue: ConsumeQueue) -> None:
        """Enter a record just appended. Called for every message stored."""
        tags_code = self.tags_code(message)
        if not message.sys_flag & UNQUEUED:
            queue.append(message.log_offset, message.size, tags_code)
        if self.on_append is not None:
            self.on_append(message, tags_code)

    def tags_code(self, message: StoredMessage) -> int:
        """Return what the message's entry is filtered by: hash of the tags, 0 without, or the due time in ms."""
        if message.topic == SCHEDULE_TOPIC and Property.DELAY in message.properties:
            return self._due_ms(message)
        # Searched, not parsed: this runs for every message. The last of a name is valid.
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
        """Enter a record found in the log at the start, unless it is there already.

        Return False, having done nothing, if entries before it are missing and may still be found further back in
        the log; with `complete` they are known to be nowhere, and the queue goes on behind the gap.
        """
        if message.sys_flag & UNQUEUED:
            return True
        queue = self._queues.by_topic.get(message.topic, _NO_QUEUES).get(message.queue_id)
        if queue is None:
            if not names_folders(message.topic, message.queue_id):
                logger.error("record at %d is damaged, and left out: topic %r", message.log_offset, message.topic)
                return True
            queue = self._queues.make(message.topic, message.queue_id)
        if (suspect := self._suspects.pop(queue, None)) is not None:
            self._settle(queue, suspect, message)
        if message.queue_offset >= queue.max_offset and message.log_offset < (self._ends.get(queue) or queue.log_end):
            return True  # of the topic as it was before it was deleted and made again
        if message.queue_offset > queue.max_offset:
            if queue.max_offset and not complete:
                return False
            if not self._begin_behind_gap(message, queue):
                return True
        elif message.queue_offset < queue.max_offset:
            entry = queue.find(message.queue_offset)
            if entry is None or entry == (message.log_offset, message.size, self.tags_code(message)):
                self._seen[queue] = message.log_offset + message.size
                return True
            if entry.size != FILLER_SIZE and entry.log_offset < self._seen.get(queue, 0):
                self._suspects[queue] = message  # the next record of the queue tells which of the two is right
                return True
            # The entry was cut short or damaged: the record is right.
            queue.cut_at(message.queue_offset)
        self._enter(message, queue)
        return True

    def begin_replay(self) -> None:
        """Be ready for records from another place of the log on."""
        self._seen.clear()
        self._suspects.clear()

    def end_replay(self) -> None:
        """Decide on what no further record tells about."""
        for queue, suspect in self._suspects.items():
            self._settle(queue, suspect, None)
        self.begin_replay()

    def _settle(self, queue: ConsumeQueue, suspect: StoredMessage, following: StoredMessage | None) -> None:
        """Enter a record that says a queue offset which an earlier one has.

        Its topic was deleted and made again, or an entry was torn: then the next one goes on behind it. Or its head is
        damaged: then the next one leaves out the place that is really its own, or none, if it is of another queue.
        """
        if following is None:
            is_later = suspect.queue_offset in (0, queue.max_offset - 1)
        else:
            is_later = following.queue_offset == suspect.queue_offset + 1
        if is_later and not self._is_proven(queue, suspect.queue_offset):
            queue.cut_at(suspect.queue_offset)
        else:
            where = (
                f"queue {suspect.topic} {suspect.queue_id}: the head of the record at {suspect.log_offset} is damaged"
            )
            if following is not None and following.queue_offset <= queue.max_offset:
                logger.error("%s, and it is left out: it says %d", where, suspect.queue_offset)
                return
            logger.error("%s, it is message %d, not %d", where, queue.max_offset, suspect.queue_offset)
        self._enter(suspect, queue)

    def _is_proven(self, queue: ConsumeQueue, queue_offset: int) -> bool:
        """Whether an entry is the newest that was replayed, and goes on from the one before it."""
        entry, before = queue.find(queue_offset), queue.find(queue_offset - 1)
        follows = before is not None and before.size != FILLER_SIZE
        return follows and entry is not None and entry.log_offset + entry.size == self._seen.get(queue)

    def _enter(self, message: StoredMessage, queue: ConsumeQueue) -> None:
        queue.append(message.log_offset, message.size, self.tags_code(message))
        self._ends[queue] = self._seen[queue] = message.log_offset + message.size

    def _begin_behind_gap(self, message: StoredMessage, queue: ConsumeQueue) -> bool:
        """Let the queue go on at the message's offset; False for one that no queue can have reached."""
        gap = message.queue_offset - queue.max_offset
        where = f"queue {message.topic} {message.queue_id}"
        if gap > (message.log_offset - queue.log_end) // FIXED_SIZE:
            logger.error("%s: record at %d is damaged, and left out", where, message.log_offset)
            return False
        logger.warning("%s: %d messages before %d are not in the log any more", where, gap, message.queue_offset)
        queue.begin_at(message.queue_offset, message.log_offset)
        return True
