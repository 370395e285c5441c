"""Messages that wait: parked in the schedule topic, a queue per delay level, and delivered from there when due.

Every level is a queue in order of arrival and of due time, since all its messages wait equally long. Its entries hold
the due time where others hold the hash of the tags. How far each level is delivered is in `config/delayOffset.json`.
`deliver` says when it wants to run next; `alarm` rings when this has changed.
Source: RocketMQ 4.9.8, ScheduleMessageService and CommitLog.asyncPutMessage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import msgspec

from pyromq.broker.cold_reads import ColdReads, Fetching
from pyromq.broker.consuming.flushed_progress import FlushedProgress
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import Statistics
from pyromq.clock import Clock
from pyromq.errors import MessageRefused, StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import NAME_VALUE, Property, StoredMessage, SysFlag, encode_properties
from pyromq.names import HALF_TOPIC, SCHEDULE_TOPIC
from pyromq.net.alarm import Alarm
from pyromq.record import decode, texts_at
from pyromq.remoting.bodies import FILE, DelayOffsetTable, decode_body
from pyromq.store.disk import readable
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore, QueueEntry

logger = logger_of(__name__)

_LOOKED_AHEAD = 200  # parked messages: so many in a row may have been left out when they should have been delivered
_MARK = f"{Property.REAL_TOPIC}{NAME_VALUE}".encode()

CONSUMER = "SCHEDULE_CONSUMER"  # under this name statistics count what is read from the levels
BATCH_MESSAGES = 100  # delivered by one write, after which others get their turn; it takes about 2 ms
BATCH_BYTES = 1 << 20
LONGEST_WAIT = 1.0  # seconds until the clock is looked at again: somebody may have set it
SET_BACK_MS = 1_000  # by less a clock is corrected every day
REFRESH_BYTES = 64 << 20  # how much of the log may have to be looked through after a crash, when nothing else changes
_NO_LIMIT = 1 << 62


@dataclass(slots=True)
class _Level:
    """One level: `offset` is the queue offset of the next message to deliver.

    After the clock was set back, entries before `held_before` are due at `held_until` (monotonic) at the latest.
    Those from `set_back_at` on came after it was: their times are the log's, which do not go back.
    """

    queue_id: int
    delay_ms: int
    fetching: Fetching
    offset: int = 0
    held_before: int = 0
    held_until: float = 0.0
    set_back_at: int = _NO_LIMIT


class DelayLevels:
    """The levels of one broker. `load` after the store is open, before anything else.

    `queue_for` says which queue of a topic a message for a queue goes to, as the topic is by then.
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
        put_message.delay = self.divert
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
        self._turn = 0  # the level that is looked at next, so that a full one does not keep the others waiting
        self._saved = DelayOffsetTable()
        self._flushed = FlushedProgress[DelayOffsetTable](store)

    def load(self) -> None:
        """Read the offsets from disk, and find in the log what was delivered since.

        Offsets outside of their queues are put right.
        """
        stored = self._file.read(partial(decode_body, DelayOffsetTable, bounds=FILE)) or DelayOffsetTable()
        # A shorter table may have come: what waits in the queues of the old one is delivered all the same.
        last = max(self._store.queue_ids(SCHEDULE_TOPIC), default=-1)
        self._levels += [self._level(number, _NO_LIMIT) for number in range(len(self._levels), last + 1)]
        for level in self._levels:
            begin, end = self._bounds(level)
            level.offset = min(max(stored.offsets.get(level.queue_id + 1, 0), begin), end)
        log_end = stored.log_end or 0
        self._saved = DelayOffsetTable(self.offsets(), log_end if log_end <= self._store.max_log_offset else 0)
        self._find_delivered()

    def _level(self, queue_id: int, delay_ms: int) -> _Level:
        return _Level(queue_id, delay_ms, Fetching(self._cold_reads, self.alarm))

    def _find_delivered(self) -> None:
        """Take up what was delivered after the last note: a crash came before the next one."""
        waiting = {level.queue_id: level.offset for level in self._levels if level.offset < self._bounds(level)[1]}
        firsts = (self._entry(self._levels[queue_id], offset) for queue_id, offset in waiting.items())
        first = min((entry.log_offset for entry in firsts if entry is not None), default=0)
        found = delivered_since(self._store, waiting, max(self._saved.log_end or 0, first))
        for queue_id, offset in found.items():
            if offset > self._levels[queue_id].offset:
                logger.info("level %d is delivered up to %d, as the log tells", queue_id + 1, offset)
                self._levels[queue_id].offset = offset

    def offsets(self) -> dict[int, int]:
        """Return by level the queue offset of the next message to deliver, as request 45 answers and the file holds."""
        return {level.queue_id + 1: level.offset for level in self._levels if level.offset}

    def divert(self, message: StoredMessage, properties: Mapping[str, str]) -> bool:
        """Make a message that is about to be appended wait if its properties ask for it; tell whether they do.

        Raises `MessageRefused` for a delay level that is no number.
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
        if self._levels[level - 1].offset >= self._store.max_offset(SCHEDULE_TOPIC, level - 1):
            self.alarm.ring_within(0)  # the first one of its level; behind others it is due after them
        return True

    @readable()
    def deliver(self) -> float | None:
        """Deliver a batch of the next level that is due; return in how many seconds there is more to do.

        None: nothing waits. Raises `StoreNotWritable`, and `StoreError` where a file cannot be read; then what could
        not be stored, or read, is delivered next time.
        """
        waits = []
        self._notice_set_back()
        for _ in range(len(self._levels)):
            level = self._levels[self._turn]
            self._turn = (self._turn + 1) % len(self._levels)
            begin, end = self._bounds(level)
            level.offset = max(level.offset, begin)  # what was before is not in the log any more
            if level.offset >= end:
                continue
            wait = LONGEST_WAIT if self._lacks(level, 1) else self._wait_seconds(level, level.offset)
            if wait <= 0 and not self._lacks(level, BATCH_MESSAGES):
                self._deliver_batch(level)
                return 0.0
            waits.append(wait if 0 < wait < LONGEST_WAIT else LONGEST_WAIT)
        return min(waits, default=None)

    def _lacks(self, level: _Level, count: int) -> bool:
        """Whether the next so many messages have to come from the disk; one is looked at to tell when it is due.

        They are loaded, and the alarm rings then.
        """
        if level.fetching.is_under_way:
            return True
        where, reading = (SCHEDULE_TOPIC, level.queue_id, level.offset, count), self._store.reading
        unread = reading.unread_to_prove(*where) if count == 1 else reading.unread(*where, most_bytes=BATCH_BYTES)
        return (bool(unread) or count > 1) and level.fetching.lacks(unread)

    def _notice_set_back(self) -> None:
        """Note which messages came before the clock was set back: all there are when that is seen."""
        before, self._ahead_ms = self._ahead_ms, self._clock_ahead_ms()
        if self._ahead_ms < before - SET_BACK_MS:
            for level in self._levels:
                level.set_back_at = self._bounds(level)[1]

    def _clock_ahead_ms(self) -> float:
        return self._clock.now_ms() - self._clock.monotonic() * 1000

    def _wait_seconds(self, level: _Level, offset: int) -> float:
        """Return in how many seconds the message at a queue offset is due; 0 or less: it is.

        A message due later than its level's delay from now was stored before the clock was set back. By more than that
        delay: it is due. Source: ScheduleMessageService.correctDeliverTimestamp. By less, or if it came afterwards, it
        waits that delay at most: never too short, and not the hours by which the clock was wrong.
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
        """Deliver them; those that fit nowhere are left out. Raises `StoreNotWritable`, the level at its message."""
        for offset, error in zip(offsets, self._put_message.put_each(messages), strict=True):
            level.offset = offset
            if isinstance(error, MessageRefused):
                logger.warning("level %d, message %d is left out: %s", level.queue_id + 1, offset, error)
            elif error is not None:
                raise error
        self._statistics.count_get(CONSUMER, SCHEDULE_TOPIC, len(messages), sum(message.size for message in messages))

    def _read(self, level: _Level, offset: int) -> StoredMessage | None:
        """Return the message as it goes to its real queue; None, and a line in the log, where there is none to go."""
        parked = self._store.message(SCHEDULE_TOPIC, level.queue_id, offset)
        if parked is None:
            logger.warning("level %d, message %d is not in the log any more", level.queue_id + 1, offset)
            return None
        topic = parked.properties.get(Property.REAL_TOPIC)
        queue_id = parked.properties.get(Property.REAL_QUEUE_ID, "")
        if not topic or topic == HALF_TOPIC or not queue_id.isdecimal():
            logger.error("level %d, message %d is left out: topic %r", level.queue_id + 1, offset, topic)
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
        return store.min_offset(SCHEDULE_TOPIC, level.queue_id), store.max_offset(SCHEDULE_TOPIC, level.queue_id)

    # -- progress on disk

    @property
    def log_needed_from(self) -> int:
        """Log offset of the first record not known to be delivered by what is on disk: no older one is needed."""
        needed = self._store.max_log_offset
        for level in self._levels:
            begin, _ = self._bounds(level)
            entry = self._entry(level, max(self._saved.offsets.get(level.queue_id + 1, 0), begin))
            if entry is not None:
                needed = min(needed, entry.log_offset)
        return needed

    def unsaved(self) -> Callable[[], None] | None:
        """Return what writes the progress that may be written by now, in any thread; None if there is nothing new.

        Messages delivered must be on disk before the offset behind them is: a power cut may repeat them, not lose them.
        """
        ready = self._flushed.take()
        self._flushed.hold(self._progress())
        if ready is None or not self._is_news(ready):
            return None
        return partial(self._save, ready)

    def _progress(self) -> DelayOffsetTable:
        return DelayOffsetTable(self.offsets(), self._store.max_log_offset)

    def _is_news(self, progress: DelayOffsetTable) -> bool:
        """Whether it differs from what is on disk, or spares a start after a crash reading much of the log."""
        if progress.offsets != self._saved.offsets:
            return True
        waits = any(level.offset < self._bounds(level)[1] for level in self._levels)
        return waits and (progress.log_end or 0) - (self._saved.log_end or 0) > REFRESH_BYTES

    def persist(self) -> None:
        """Write the progress to disk. Called when the store is closed: all is flushed."""
        if (progress := self._progress()).offsets != self._saved.offsets:
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


class _Likeness(NamedTuple):
    """What a parked message and its copy have in common."""

    topic: str
    queue_id: str
    properties: str
    born_ms: int
    born_address: bytes
    body_crc: int
    body_size: int
    reconsume_times: int


class _Pending:
    """The parked messages of one level, from the first that is not noted as delivered."""

    def __init__(self, store: MessageStore, queue_id: int, offset: int) -> None:
        self.offset = offset  # of the next one to deliver, as far as seen
        self._store = store
        self._queue_id = queue_id
        self._read_to = offset
        self._ahead: deque[tuple[int, _Likeness]] = deque()

    def take(self, copy: _Likeness) -> None:
        """Note one as delivered, and those before it, which were left out."""
        self._read()
        for place, (offset, likeness) in enumerate(self._ahead):
            if likeness == copy:
                self.offset = offset + 1
                for _ in range(place + 1):
                    self._ahead.popleft()
                return

    def _read(self) -> None:
        while len(self._ahead) < _LOOKED_AHEAD:
            entries = self._store.entries(SCHEDULE_TOPIC, self._queue_id, self._read_to, _LOOKED_AHEAD)
            if not entries:
                return
            for offset, entry in enumerate(entries, self._read_to):
                parked = self._store.message_at(entry.log_offset)
                if parked is not None:
                    self._ahead.append((offset, _likeness(parked)))
            self._read_to += len(entries)


def delivered_since(store: MessageStore, noted: Mapping[int, int], log_offset: int) -> dict[int, int]:
    """Return by level's queue id the queue offset of the next message to deliver.

    `noted`: those offsets as they were when the log ended at `log_offset`, of the levels where messages wait.
    """
    pending = {queue_id: _Pending(store, queue_id, offset) for queue_id, offset in noted.items()}
    if pending:
        for at, record in store.records_from(max(log_offset, store.min_log_offset)):
            try:
                if _may_be_copy(record):
                    _take(pending, decode(record))
            except StoreCorrupt as error:
                logger.warning("the record at log offset %d is damaged: %s", at, error)
    return {queue_id: each.offset for queue_id, each in pending.items()}


def _take(pending: Mapping[int, _Pending], message: StoredMessage) -> None:
    properties = message.properties
    level = properties.get(Property.DELAY, "")
    likeness = _likeness(message)
    went_there = message.topic == likeness.topic  # and not always to its queue: the topic may have lost that
    if message.sys_flag & SysFlag.HALF:  # a client sent it marked so: no level delivers such a message
        return
    if went_there and level.isdecimal() and (waiting := pending.get(int(level) - 1)) is not None:
        waiting.take(likeness)


def _may_be_copy(record: memoryview) -> bool:
    """Whether a record names a real topic. Called for every one that was stored since the note."""
    return _MARK in bytes(record[texts_at(record)[1] :])


def _likeness(message: StoredMessage) -> _Likeness:
    properties = message.properties
    return _Likeness(
        properties.get(Property.REAL_TOPIC, ""),
        properties.get(Property.REAL_QUEUE_ID, ""),
        message.property_text,
        message.born_ms,
        message.born_address,
        message.body_crc,
        len(message.stored_body),
        message.reconsume_times,
    )
