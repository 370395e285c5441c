"""After each append to the log: writes the consume-queue entry, applies the record to a table, calls the listener.

Also rebuilds consume queues from the log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyromq.filter.filter import tag_hash
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, PAIRS, Property, StoredMessage, SysFlag
from pyromq.names import SCHEDULE_TOPIC
from pyromq.plural import counted
from pyromq.record import FIXED_SIZE
from pyromq.store.queue.consume_queue import ConsumeQueue

logger = logger_of(__name__)

_TAGS = Property.TAGS + NAME_VALUE
_UNKNOWN_LEVEL_MS = 1_000  # delay (ms) without levels. Source: ScheduleMessageService.computeDeliverTimestamp

# Transaction messages, half (0x4) and rollback (0xC), have this bit: consume queues have no entries for them.
UNQUEUED = SysFlag.HALF


class RebuiltQueue(Protocol):
    """A queue that a walk over the log rebuilds. `append` writes an entry, or compares the entry with a stored one."""

    topic: str
    queue_id: int
    max_offset: int

    @property
    def covered_to(self) -> int: ...

    def append(self, log_offset: int, size: int, tags_code: int) -> None: ...

    def begin_at(self, queue_offset: int, lost_at: int) -> None: ...

    def cut_at(self, queue_offset: int) -> None: ...


class QueueDispatcher:
    """Writes the consume-queue entry of each record. `on_append(message, tags_code)` is called after each append.

    `followers` maps an internal topic to the function that applies the topic's records to a table. `damaged_heads` has
    log offset and queue offset of replayed records whose queue offset does not fit their queue.
    """

    def __init__(self, delay_levels_ms: tuple[int, ...]) -> None:
        self.on_append: Callable[[StoredMessage, int], None] | None = None
        self.followers: dict[str, Callable[[StoredMessage], None]] = {}
        self.damaged_heads: list[tuple[int, int]] = []
        self._delay_levels_ms = delay_levels_ms
        self._start = 0
        self._before: dict[RebuiltQueue, tuple[int, int]] = {}  # `covered_to` and `max_offset` before the replay
        self._unplaced: dict[RebuiltQueue, StoredMessage] = {}  # records with an unexpected queue offset

    def dispatch(self, message: StoredMessage, queue: ConsumeQueue) -> None:
        """Write the queue entry of a record that the caller has appended, apply the record, call the listener."""
        tags_code = self.tags_code(message)
        if not message.sys_flag & UNQUEUED:
            queue.append(message.log_offset, message.size, tags_code)
        if (apply := self.followers.get(message.topic)) is not None:
            apply(message)
        if self.on_append is not None:
            self.on_append(message, tags_code)

    def tags_code(self, message: StoredMessage) -> int:
        """Return the tags code of a message's queue entry: the hash of the message's tags, 0 without tags.

        For a message of the topic SCHEDULE_TOPIC_XXXX the tags code is the delivery time in ms since 1970.
        """
        if message.topic == SCHEDULE_TOPIC and Property.DELAY in message.properties:
            return self._due_ms(message)
        # The text is searched, not parsed, as this runs for every message. Of repeated properties the last counts.
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

    def begin_replay(self, start: int) -> None:
        """Begin a walk over the log from log offset `start`. The caller must pass each record to `replay` in order."""
        self._start = start
        self._before.clear()
        self._unplaced.clear()
        self.damaged_heads.clear()

    def replay(self, message: StoredMessage, queue: RebuiltQueue, *, complete: bool) -> bool:
        """Append the queue entry of a record found in the log, unless the queue has this entry or later ones.

        Return False if the queue lacks entries that may be found earlier in the log. With `complete` the walk began at
        the log's beginning: missing entries are lost, and the queue continues after the gap.
        """
        if message.sys_flag & UNQUEUED:
            return True
        if (before := self._before.get(queue)) is None:
            before = self._before[queue] = queue.covered_to, queue.max_offset
        if message.log_offset < before[0]:
            return True  # the record has its entry, or its topic was deleted and created again
        unplaced = self._unplaced.pop(queue, None)
        if unplaced is not None and not self._place(unplaced, queue, message.queue_offset, complete=complete):
            return False
        if message.queue_offset == queue.max_offset:
            queue.append(message.log_offset, message.size, self.tags_code(message))
        else:
            self._unplaced[queue] = message  # the next record shows whether the queue or this record is right
        return True

    def end_replay(self, *, complete: bool) -> bool:
        """Write the entries of the records that wait for the next record of their queue.

        Return False if a queue lacks entries that may be found earlier in the log, as `replay` does.
        """
        return all(self._place(message, queue, None, complete=complete) for queue, message in self._unplaced.items())

    def _place(self, message: StoredMessage, queue: RebuiltQueue, following: int | None, *, complete: bool) -> bool:
        """Write the entry of a record whose queue offset is not the next one of the queue.

        Return False as `replay` does. `following` is the queue offset of the queue's next record; None if there is
        none. If the next record continues after this record, earlier messages are lost, or the topic was created again.
        Otherwise the head of this record is damaged.
        """
        offset, expected = message.queue_offset, queue.max_offset
        if following is None:
            is_right = offset == 0 or offset > expected
        elif following == expected:  # the other records leave no gap for this record
            is_right = offset == 0 and expected == 1
        else:
            is_right = following == offset + 1
        if not is_right and offset == expected - 1 and expected == self._before[queue][1]:
            return True  # the stored entry may be damaged: a later read compares entry and record
        max_lost = (message.log_offset - queue.covered_to) // FIXED_SIZE
        where = f"queue {message.topic} {message.queue_id}"
        if is_right and offset < expected:
            queue.cut_at(offset)
        elif is_right and offset - expected <= max_lost:
            if expected and not complete:
                return False
            have_expired = expected == 0 and self._start > 0  # or messages of a deleted topic
            if not have_expired:
                logger.warning(
                    "%s: the log has lost %s before %d", where, counted(offset - expected, "message"), offset
                )
            queue.begin_at(offset, 0 if have_expired else message.log_offset)
        else:
            self.damaged_heads.append((message.log_offset, offset))
            where += f": the head of the record at {message.log_offset} is damaged"
            if following is not None and following <= expected:
                logger.error("%s; the record is skipped: its queue offset is %d", where, offset)
                return True
            logger.error("%s; its queue offset is %d, not %d", where, expected, offset)
        queue.append(message.log_offset, message.size, self.tags_code(message))
        return True
