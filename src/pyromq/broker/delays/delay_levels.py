"""Delay levels: delayed messages are stored in the schedule topic, one queue per level, and delivered when due.

All messages of a level wait equally long, so their order of arrival is the order of their due times. An entry of such a
queue holds the due time in place of the tags code. `config/delayOffset.json` holds the queue offset of the next message
to deliver of each level.
Source: RocketMQ 4.9.8, ScheduleMessageService and CommitLog.asyncPutMessage.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pyromq import speedups
from pyromq.broker.cold_reads import ColdReads, Fetching
from pyromq.broker.internal_queues import FlushedProgress
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.clock import Clock
from pyromq.errors import MessageRefused, StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, Property, StoredMessage, SysFlag, encode_properties
from pyromq.names import HALF_TOPIC, SCHEDULE_TOPIC
from pyromq.net.tasks import Alarm
from pyromq.record import decode, texts_at
from pyromq.remoting.bodies import FILE, DelayOffsetTable, decode_body
from pyromq.store.disk import readable
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore, QueueEntry

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.decoding import pass_records

logger = logger_of(__name__)

LOOKED_AHEAD = 200  # limit of consecutive undeliverable messages that recovery skips in a level
_MARK = f"{Property.REAL_TOPIC}{NAME_VALUE}".encode()

CONSUMER = "SCHEDULE_CONSUMER"  # group under which statistics count delivered messages
SEARCHED_RECORDS = 500  # limit of log records that a follower searches at once: blocks for about half a millisecond
PASSED_BYTES = 1 << 20  # bytes of the log that compiled code searches in the same time
BATCH_MESSAGES = 100  # limit of messages delivered by one write, which blocks the event loop for about 2 ms
BATCH_BYTES = 1 << 20  # limit of the bodies delivered by one write
LONGEST_WAIT = 1.0  # longest wait (seconds) before the clock is read again, since the clock may be set
SET_BACK_MS = 1_000  # backward steps of the clock below this are ordinary corrections, and ignored
REFRESH_BYTES = 64 << 20  # log bytes after which unchanged progress is saved too: recovery reads at most these bytes
_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class _Level:
    """One delay level. `offset` is the queue offset of the next message to deliver.

    After the clock was set back, messages before queue offset `held_before` are due at `held_until` (monotonic seconds)
    at the latest. Messages from queue offset `set_back_at` on arrived after that. The due times
    come from the log, whose store times never decrease.
    """

    queue_id: int
    delay_ms: int
    fetching: Fetching
    offset: int = 0
    held_before: int = 0
    held_until: float = 0.0
    set_back_at: int = _NO_LIMIT


class DelayLevels:
    """The delay levels of one broker. `load` must be called after the store is opened and before any other method.

    `queue_for` maps topic and queue id to the queue id at delivery: the topic may have fewer queues by then. `deliver`
    returns the seconds until its next call; `alarm` fires if the call must come earlier.
    """

    def __init__(
        self,
        store: MessageStore,
        put_message: PutMessage,
        file: JsonFile,
        *,
        statistics: Statistics,
        cold_reads: ColdReads,
        clock: Clock,
        queue_for: Callable[[str, int], int] = lambda topic, queue_id: queue_id,
    ) -> None:
        self.alarm = Alarm(clock)
        self._queue_for = queue_for
        self._store = store
        self._put_message = put_message
        self._file = file
        self._statistics = statistics
        self._cold_reads = cold_reads
        self._clock = clock
        self._levels = [self._level(number, delay_ms) for number, delay_ms in enumerate(store.config.delay_levels_ms)]
        self._ahead_ms = self._clock_ahead_ms()
        self._turn = 0  # index of the level to check next; levels take turns, so that a full one blocks no other
        self._saved = DelayOffsetTable()
        self._flushed = FlushedProgress[DelayOffsetTable](store)
        self._search: DeliverySearch | None = None  # None unless this broker follows its master's log

    def load(self) -> None:
        """Read the offsets of the levels from disk, and find in the log the messages delivered since the last save.

        Offsets outside of their queues are moved to the nearest bound. Raises `StoreCorrupt`.
        """
        stored = self._file.read(partial(decode_body, DelayOffsetTable, bounds=FILE)) or DelayOffsetTable()
        # The configured levels may be fewer than before: the queues of removed levels are delivered too.
        last = max(self._store.queue_ids(SCHEDULE_TOPIC), default=-1)
        self._levels += [self._level(number, _NO_LIMIT) for number in range(len(self._levels), last + 1)]
        for level in self._levels:
            begin, end = self._bounds(level)
            level.offset = min(max(stored.offsets.get(level.queue_id + 1, 0), begin), end)
        log_end = stored.log_end or 0
        self._saved = DelayOffsetTable(self.offsets(), log_end if log_end <= self._store.max_log_offset else 0)
        self._find_delivered()

    # -- at a follower: the master delivers

    def load_to_follow(self) -> None:
        """Read the offsets as `load` does, at a broker that follows its master's log.

        `follow_master` then finds in the log what the master has delivered, until `lead` is called.
        """
        self.load()
        self._search = self._search_from(self._store.max_log_offset)

    def _search_from(self, log_offset: int) -> DeliverySearch:
        return DeliverySearch(self._store, {level.queue_id: level.offset for level in self._levels}, log_offset)

    def follow_master(self) -> float:
        """Search for at most one time slice for messages that the master has delivered.

        Return the seconds until the next call.
        """
        if self._search is None or self._search.advance(SEARCHED_RECORDS):
            self._note_found()
            return LONGEST_WAIT
        return 0.0

    def _note_found(self) -> None:
        if self._search is not None:
            for queue_id, offset in self._search.found().items():
                self._levels[queue_id].offset = max(offset, self._levels[queue_id].offset)

    def adopt(self, table: DelayOffsetTable) -> None:
        """Use a copy of the master's offsets. The log here must have all that the master had delivered at that time.

        `log_end` of the table is a log offset at which the master's log ended before that time. Copies of a Java master
        are needed: its log does not show the level of a delivered message. Does nothing unless this broker follows.
        """
        if self._search is None:
            return
        self._note_found()
        is_news = False
        for level in self._levels:
            begin, end = self._bounds(level)
            offset = min(max(table.offsets.get(level.queue_id + 1, 0), begin), end)
            if offset > level.offset:
                level.offset, is_news = offset, True
        if is_news:
            self._search = self._search_from(table.log_end or 0)

    def lead(self) -> None:
        """Find the last messages that the former master has delivered. This broker delivers the others."""
        if self._search is not None:
            self._search.advance()
            self._note_found()
            self._search = None

    # -- delivering

    def _level(self, queue_id: int, delay_ms: int) -> _Level:
        return _Level(queue_id, delay_ms, Fetching(self._cold_reads, self.alarm))

    def _find_delivered(self) -> None:
        """Advance the offsets past messages that were delivered after the last save, before a crash of the broker."""
        waiting = {level.queue_id: level.offset for level in self._levels if level.offset < self._bounds(level)[1]}
        firsts = (self._entry(self._levels[queue_id], offset) for queue_id, offset in waiting.items())
        first = min((entry.log_offset for entry in firsts if entry is not None), default=0)
        found = delivered_since(self._store, waiting, max(self._saved.log_end or 0, first))
        for queue_id, offset in found.items():
            if offset > self._levels[queue_id].offset:
                logger.info(
                    "delay level %d: the log shows messages up to queue offset %d delivered", queue_id + 1, offset
                )
                self._levels[queue_id].offset = offset

    def offsets(self) -> dict[int, int]:
        """Return for each delay level the queue offset of the next message to deliver, as in request 45 and on disk."""
        return {level.queue_id + 1: level.offset for level in self._levels if level.offset}

    def divert(self, message: StoredMessage, properties: Mapping[str, str]) -> bool:
        """Turn a message with a delay level into a message of the schedule topic, before the append.

        Return False for other messages. Raises `MessageRefused` if the delay level is not a number.
        """
        level = _asked_level(properties)
        if level <= 0 or message.sys_flag & SysFlag.ROLLBACK in (SysFlag.HALF, SysFlag.ROLLBACK):
            return False
        level = min(level, len(self._store.config.delay_levels_ms))
        parked = {
            **properties,
            Property.DELAY: str(level),
            Property.REAL_TOPIC: message.topic,
            Property.REAL_QUEUE_ID: str(message.queue_id),
        }
        message.property_text = encode_properties(parked)
        message.topic = SCHEDULE_TOPIC
        message.queue_id = level - 1
        self._notice_set_back()
        if self._levels[level - 1].offset >= self._store.next_offset(SCHEDULE_TOPIC, level - 1):
            self.alarm.schedule_within(0)  # the level was empty, so its next due time changes
        return True

    @readable()
    def deliver(self) -> float | None:
        """Deliver a batch of the next due level; return the seconds until the next call, None if all levels are empty.

        Raises `StoreNotWritable`, and `StoreError` if a file cannot be read. A later call delivers the remaining
        messages.
        """
        waits = []
        self._notice_set_back()
        for _ in range(len(self._levels)):
            level = self._levels[self._turn]
            self._turn = (self._turn + 1) % len(self._levels)
            begin, end = self._bounds(level)
            level.offset = max(level.offset, begin)  # retention deleted the earlier entries
            if level.offset >= end:
                continue
            wait = LONGEST_WAIT if self._lacks(level, 1) else self._wait_seconds(level, level.offset)
            if wait <= 0 and not self._lacks(level, BATCH_MESSAGES):
                self._deliver_batch(level)
                return 0.0
            waits.append(wait if 0 < wait < LONGEST_WAIT else LONGEST_WAIT)
        return min(waits, default=None)

    def _lacks(self, level: _Level, count: int) -> bool:
        """Return whether the next `count` messages are not resident.

        If so, a thread loads them, and the alarm fires afterwards. With a `count` of 1 only the queue entry is needed,
        which holds the due time.
        """
        if level.fetching.is_under_way:
            return True
        where, reading = (SCHEDULE_TOPIC, level.queue_id, level.offset, count), self._store.reading
        unread = reading.pages_to_verify(*where) if count == 1 else reading.to_load(*where, max_bytes=BATCH_BYTES)
        return (bool(unread) or count > 1) and level.fetching.lacks(unread)

    def _notice_set_back(self) -> None:
        """If the clock was set back since the last call, note for each level that all present messages are older."""
        before, self._ahead_ms = self._ahead_ms, self._clock_ahead_ms()
        if self._ahead_ms < before - SET_BACK_MS:
            for level in self._levels:
                level.set_back_at = self._bounds(level)[1]

    def _clock_ahead_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000

    def _wait_seconds(self, level: _Level, offset: int) -> float:
        """Return the seconds until the message at a queue offset is due; 0 or less if the message is due.

        A due time later than the level's delay from now means: the clock was set back after the message was stored. If
        the clock was set back by more than that delay, the message is due. Source:
        ScheduleMessageService.correctDeliverTimestamp.

        Otherwise, or if the message arrived after the clock was set back, the message waits the level's delay at most.
        So no wait is too short, and none includes the hours by which the clock was wrong.
        """
        entry = self._entry(level, offset)
        wait = 0.0 if entry is None else (entry.tags_code - self._clock.now_ms()) / 1000
        if wait * 1000 > 2 * level.delay_ms and offset < level.set_back_at:
            return 0.0
        if wait * 1000 > level.delay_ms and offset >= level.held_before:
            level.held_before = self._bounds(level)[1]
            level.held_until = self._clock.monotonic() + level.delay_ms / 1000
        if offset < level.held_before:
            wait = min(wait, level.held_until - self._clock.monotonic())
        return wait

    def _deliver_batch(self, level: _Level) -> None:
        messages, offsets, size = [], [], 0
        offset, end = level.offset, min(level.offset + BATCH_MESSAGES, self._bounds(level)[1])
        while offset < end and size < BATCH_BYTES and self._wait_seconds(level, offset) <= 0:
            if (message := self._read(level, offset)) is not None:
                size += len(message.stored_body)
                messages.append(message)
                offsets.append(offset)
            offset += 1
        if messages:
            self._put(level, messages, offsets)
        level.offset = offset

    def _put(self, level: _Level, messages: list[StoredMessage], offsets: list[int]) -> None:
        """Append messages to their queues; refused ones are skipped.

        If `StoreNotWritable` is raised, the next call delivers the same message.
        """
        while messages:
            level.offset = offsets[0]
            outcomes = self._put_message.put_each(messages)
            for offset, refused in zip(offsets, outcomes, strict=False):
                if refused is not None:
                    logger.warning(
                        "delay level %d: message at queue offset %d is skipped: %s", level.queue_id + 1, offset, refused
                    )
            done = len(outcomes)
            self._statistics.count_get(CONSUMER, SCHEDULE_TOPIC, done, sum(message.size for message in messages[:done]))
            del messages[:done], offsets[:done]

    def _read(self, level: _Level, offset: int) -> StoredMessage | None:
        """Return the message for its real queue.

        If the message is lost or names no valid queue, log that and return None.
        """
        parked = self._store.message(SCHEDULE_TOPIC, level.queue_id, offset)
        if parked is None:
            logger.warning(
                "delay level %d: message at queue offset %d is skipped: the log no longer has it",
                level.queue_id + 1,
                offset,
            )
            return None
        topic = parked.properties.get(Property.REAL_TOPIC)
        queue_id = parked.properties.get(Property.REAL_QUEUE_ID, "")
        if not topic or topic == HALF_TOPIC or not queue_id.isdecimal():
            logger.error(
                "delay level %d: message at queue offset %d is skipped: it is for topic %r, queue %r",
                *(level.queue_id + 1, offset, topic, queue_id),
            )
            return None
        return StoredMessage(
            topic,
            parked.stored_body,
            parked.property_text,
            self._queue_for(topic, int(queue_id)),
            parked.flag,
            parked.sys_flag,
            parked.born_ms,
            parked.born_address,
            parked.reconsume_times,
        )

    def _entry(self, level: _Level, offset: int) -> QueueEntry | None:
        entries = self._store.entries(SCHEDULE_TOPIC, level.queue_id, offset, 1)
        return entries[0] if entries else None

    def _bounds(self, level: _Level) -> tuple[int, int]:
        store = self._store
        return store.min_offset(SCHEDULE_TOPIC, level.queue_id), store.next_offset(SCHEDULE_TOPIC, level.queue_id)

    # -- progress on disk

    @property
    def log_needed_from(self) -> int:
        """Log offset of the oldest message that the saved progress leaves undelivered.

        Retention must keep the log from there.
        """
        needed = self._store.confirmed_end
        for level in self._levels:
            begin, _ = self._bounds(level)
            entry = self._entry(level, max(self._saved.offsets.get(level.queue_id + 1, 0), begin))
            if entry is not None:
                needed = min(needed, entry.log_offset)
        return needed

    def unsaved(self) -> Callable[[], None] | None:
        """Return a function that saves, in any thread, the progress whose log is on disk and confirmed.

        Return None if nothing is new. Delivered messages reach the disk and the replicas before the offset after them.
        So a power loss or a failover may repeat messages, but never loses them.
        """
        ready = self._flushed.take()
        self._flushed.hold(self._progress())
        if ready is None or not self._is_news(ready):
            return None
        return partial(self._save, ready)

    def _progress(self) -> DelayOffsetTable:
        reached = self._store.max_log_offset if self._search is None else self._search.reached
        return DelayOffsetTable(self.offsets(), reached)

    def _is_news(self, progress: DelayOffsetTable) -> bool:
        """Return whether `progress` differs from the saved progress, or shortens the log that recovery must read."""
        if progress.offsets != self._saved.offsets:
            return True
        waits = any(level.offset < self._bounds(level)[1] for level in self._levels)
        return waits and (progress.log_end or 0) - (self._saved.log_end or 0) > REFRESH_BYTES

    def persist(self) -> None:
        """Save the progress of all levels, if the log is confirmed.

        Must be called after the store is closed, when all of the log is on disk.
        """
        if self._store.is_confirmed and (progress := self._progress()).offsets != self._saved.offsets:
            self._save(progress)

    def _save(self, progress: DelayOffsetTable) -> None:
        self._file.save(msgspec.json.encode(progress))
        self._saved = progress


def _asked_level(properties: Mapping[str, str]) -> int:
    text = properties.get(Property.DELAY, "0")
    try:
        return int(text)
    except ValueError as error:
        raise MessageRefused(f"property DELAY is {text!r}; it must be a delay level, a whole number") from error


class Likeness(NamedTuple):
    """The fields that a waiting message of the schedule topic and its delivered copy have in common."""

    topic: str
    queue_id: str
    properties: str
    born_ms: int
    born_address: bytes
    body_crc: int
    body_size: int
    reconsume_times: int


class _Pending:
    """The messages of one level that wait in the schedule topic, from the saved progress on."""

    def __init__(self, store: MessageStore, queue_id: int, offset: int) -> None:
        self.offset = offset  # queue offset of the next message to deliver
        self._store = store
        self._queue_id = queue_id
        self._read_to = offset
        self._ahead: deque[tuple[int, Likeness]] = deque()

    def take(self, copy: Likeness) -> None:
        """Advance past the waiting message of a delivered copy, and past skipped messages before it."""
        self._read()
        for place, (offset, likeness) in enumerate(self._ahead):
            if likeness == copy:
                self.offset = offset + 1
                for _ in range(place + 1):
                    self._ahead.popleft()
                return

    def _read(self) -> None:
        while len(self._ahead) < LOOKED_AHEAD:
            entries = self._store.entries(SCHEDULE_TOPIC, self._queue_id, self._read_to, LOOKED_AHEAD)
            if not entries:
                return
            for offset, entry in enumerate(entries, self._read_to):
                parked = self._store.message_of(entry, SCHEDULE_TOPIC, self._queue_id, offset)
                if parked is not None:
                    self._ahead.append((offset, likeness_of(parked)))
            self._read_to += len(entries)


def delivered_since(store: MessageStore, noted: Mapping[int, int], log_offset: int) -> dict[int, int]:
    """Return for each queue id of the schedule topic the queue offset of the next message to deliver, as the log shows.

    `noted` holds those offsets, for non-empty levels, as of the moment when the log ended at `log_offset`.
    """
    search = DeliverySearch(store, noted, log_offset)
    if noted:
        search.advance()
    return search.found()


class DeliverySearch:
    """Finds the messages of the schedule topic that the log shows delivered, piece by piece as the log grows.

    `noted` holds the queue offset of the next message to deliver for each queue id of the schedule topic. The offsets
    were noted when the log ended at `log_offset`. Deliveries before log offset `reached` are found.
    """

    def __init__(self, store: MessageStore, noted: Mapping[int, int], log_offset: int) -> None:
        self.reached = max(log_offset, store.min_log_offset)
        self._store = store
        self._pending = {queue_id: _Pending(store, queue_id, offset) for queue_id, offset in noted.items()}
        self._run = 1 if speedups.is_active else 0  # plain records between those that compiled code passes; 0: all

    def advance(self, most: int | None = None) -> bool:
        """Search the next `most` records, None for all; return True if the log's end is reached.

        Records that compiled code passes count less.
        """
        left = sys.maxsize if most is None else most
        # Retention may have deleted records since the last call, and with them the messages that they delivered.
        self.reached = max(self.reached, self._store.min_log_offset)
        while left > 0:
            left -= self._pass_others()
            count = 0
            for count, (at, record) in enumerate(islice(self._store.records_from(self.reached), self._run or left), 1):  # noqa: B007 - used behind it
                try:
                    if _may_be_copy(record):
                        _take(self._pending, decode(record))
                except StoreCorrupt as error:
                    logger.warning("the record at log offset %d is damaged: %s", at, error)
                self.reached = at + len(record)
            if not count:
                return True
            left -= count
        return False

    def _pass_others(self) -> int:
        """Pass records that are no copies, by compiled code. Return the number of plain records that cost as much."""
        if not self._run or (segment := self._store.reading.segment_of(self.reached)) is None:
            return 0
        base, memory = segment
        position = self.reached - base
        end = min(self._store.max_log_offset - base, position + PASSED_BYTES)
        self.reached = base + pass_records(memory, position, end, _MARK)
        return (self.reached - base - position) * SEARCHED_RECORDS // PASSED_BYTES

    def found(self) -> dict[int, int]:
        """Return for each queue id the queue offset of the next message to deliver, as the log shows."""
        return {queue_id: each.offset for queue_id, each in self._pending.items()}


def level_of_copy(message: StoredMessage) -> int | None:
    """Return the queue id of the level that delivered a message; None for other messages."""
    level = message.properties.get(Property.DELAY, "")
    # The queue id is not compared: the topic may have fewer queues now.
    went_there = message.topic == message.properties.get(Property.REAL_TOPIC)
    is_half = message.sys_flag & SysFlag.HALF  # a client set this flag: no level delivers such a message
    return int(level) - 1 if went_there and level.isdecimal() and not is_half else None


def first_of(store: MessageStore, queue_id: int, copy: StoredMessage, *, near: int, within: int) -> int | None:
    """Return the queue offset of the waiting message of which a level delivered a copy; None if there is none.

    Up to `within` messages before and after queue offset `near` are searched. Of equal messages the first one counts.
    """
    likeness = likeness_of(copy)
    for offset in range(max(near - within, store.min_offset(SCHEDULE_TOPIC, queue_id)), near + within):
        parked = store.message(SCHEDULE_TOPIC, queue_id, offset)
        if parked is not None and likeness_of(parked) == likeness:
            return offset
    return None


def _take(pending: Mapping[int, _Pending], message: StoredMessage) -> None:
    level = level_of_copy(message)
    if level is not None and (waiting := pending.get(level)) is not None:
        waiting.take(likeness_of(message))


def _may_be_copy(record: memoryview) -> bool:
    """Return whether a record's properties name a real topic, as delivered copies do.

    Called for every record since the last save.
    """
    return _MARK in bytes(record[texts_at(record)[1] :])


def likeness_of(message: StoredMessage) -> Likeness:
    """Return the fields that a waiting message and its delivered copy have in common."""
    properties = message.properties
    return Likeness(
        properties.get(Property.REAL_TOPIC, ""),
        properties.get(Property.REAL_QUEUE_ID, ""),
        message.property_text,
        message.born_ms,
        message.born_address,
        message.body_crc,
        len(message.stored_body),
        message.reconsume_times,
    )
