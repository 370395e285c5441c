"""Index of the scheduled messages: a bucket of entries per hour, files, and a checkpoint.

The index follows the timer topic. Messages and cancels are filed in order, from queue offset `moved` on, at the start
and while the broker runs. Recovery also finishes the messages that the log shows delivered since the last checkpoint.
This module reads no clock: `timer_scheduler` decides when messages are due. Source: RocketMQ 5.3.3, TimerMessageStore,
for the meaning of records, not for files and recovery.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from pyromq import speedups
from pyromq.broker.delays.timer_records import ScheduledMessage, delivered_from, read_parked, scheduled_of
from pyromq.broker.internal_queues import FlushedProgress
from pyromq.errors import StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage
from pyromq.names import TIMER_TOPIC
from pyromq.record import Buffer, decode
from pyromq.slow_work import NotInMemory, yield_slice
from pyromq.store.message_store import MessageStore
from pyromq.store.timers.timer_bucket import (
    ENTRY_BYTES,
    HOUR_MS,
    MISFIT,
    TimerBucket,
    TimerEntry,
    decode_verified,
    matches_entry,
)
from pyromq.store.timers.timer_files import BucketCache, Snapshot, TimerFiles

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.timed import TimerIntake
else:
    from pyromq.broker.delays.timer_records import LATEST_MS, ScheduledMessage
    from pyromq.store.timers.timer_bucket import HOUR_MS
    from pyromq.store.timers.timer_files import TimerFiles

    FILED_AT_ONCE = 256  # limit of messages filed together, in two thirds of the time of single ones

    class TimerIntake:
        """Scheduled messages that are not filed yet, in order of arrival.

        If `add` returns False, the caller must have them filed. `refusal` is the reason why scheduled messages are
        refused now, or None. A message due before `urgent_ms` (ms since 1970) must fire the scheduler's alarm.
        """

        def __init__(self) -> None:
            self.refusal: str | None = None
            self.urgent_ms = LATEST_MS
            self._parked: list[tuple[int, int, int, ScheduledMessage]] = []

        def __len__(self) -> int:
            return len(self._parked)

        def add(self, queue_offset: int, log_offset: int, size: int, scheduled: ScheduledMessage) -> bool:
            """Add a message that was appended to the timer topic; return False if no further message fits."""
            self._parked.append((queue_offset, log_offset, size, scheduled))
            return len(self._parked) < FILED_AT_ONCE

        def continues_at(self, queue_offset: int) -> bool:
            """Return whether the added messages have consecutive queue offsets, from `queue_offset` on."""
            parked = self._parked
            return parked[0][0] == queue_offset and parked[-1][0] == queue_offset + len(parked) - 1

        def clear(self) -> None:
            self._parked = []

        def file(self, files: TimerFiles, *, near: int, unread: set[int]) -> None:
            """Move all messages into the buckets of their hours; add hours up to `near` to `unread`."""
            parked, self._parked = self._parked, []
            find_bucket, topic_hash = files.buckets.get, _topic_hash
            for queue_offset, log_offset, size, (due_ms, key_hash, topic) in parked:
                hour = due_ms // HOUR_MS
                bucket = find_bucket(hour) or files.make(hour, queue_offset)
                bucket.add(due_ms, key_hash, topic_hash(topic), log_offset, size)
                files.changed[bucket] = None
                if hour <= near:
                    unread.add(hour)
            files.count(Counter([scheduled[2] for _, _, _, scheduled in parked]))

    @lru_cache(maxsize=8192)
    def _topic_hash(topic: str) -> int:
        return crc32(topic.encode())


__all__ = ["TimerIntake"]

logger = logger_of(__name__)

Delivered = tuple[TimerBucket, int, str]  # bucket, number of the message in the bucket, topic

# Each of the next three limits bounds a slice that blocks the event loop for about a third of a millisecond.
CHECKED_RECORDS = 400  # limit of log records that recovery checks in one slice
FOLLOWED_RECORDS = 100  # limit of records of the timer topic that are filed in one slice
WRITTEN_RECORDS = 250  # limit of records written to the timer files in one slice

NOTE_EFFORT = 100  # cost of a delivered record, in checked records
CANCEL_EFFORT = 50  # cost of a cancel, in filed records
READ_RECORDS = 100  # limit of records read together from the timer topic: few are read twice when a slice ends

FOLLOWED_MEANWHILE = 4  # older records filed for each new one, so that filing catches up under load
UNWRITTEN_BYTES = 32 << 20  # limit of unwritten bytes of all buckets: more of them start a round of writing
QUIET = 10_000  # limit of new messages since the last checkpoint below which records are copied immediately
COPY_BYTES = 256 << 20  # limit of log kept for uncopied records: beyond it they are copied under any load
REFRESH_BYTES = 64 << 20  # log bytes after which an unchanged checkpoint is saved too: recovery reads at most these


class TimerIndex:
    """The scheduled messages of one broker.

    `near` is the last hour whose due times the scheduler keeps in memory. `unread` holds the hours up to `near` with
    due times that the scheduler has not read.
    """

    def __init__(self, store: MessageStore, folder: Path, *, copies: bool = True) -> None:
        """Make the index. Without `copies` the records are only in the log, and retention must keep them there.

        A new replica of a set receives only the log.
        """
        self.near = -1
        self.unread: set[int] = set()
        self.intake = TimerIntake()  # newly appended messages that are not filed yet
        self._followed = TimerIntake()  # messages read from the timer topic, not filed yet
        self._store = store
        self._copies = copies
        self._files = TimerFiles(folder, self._from_log, disk=store.disk)
        self.buckets = self._files.buckets  # hour, counted from 1970 -> bucket
        self.moved = 0  # queue offset of the next message of the timer topic to file
        self._cancelling: Iterator[int] | None = None  # the remaining work on the cancel at queue offset `moved`
        # For recovery: messages delivered since the checkpoint.
        self._unchecked: Iterator[Delivered | None] | None = None
        self._unchecked_range = (0, 0)  # log offsets between which `_unchecked` searches
        # A follower marks the master's deliveries continuously. Log offset before which all deliveries are marked, and
        # log offset before which `_unchecked` marks them. None: not a follower.
        self._checked_to: int | None = None
        self._checking_to = 0
        self._kept = BucketCache()
        self._loaded = False
        self._news = False  # whether anything has changed since the last snapshot
        self._flushed = FlushedProgress[Snapshot](store)
        self._latest = self._files.saved  # checkpoint of the last snapshot
        self._is_writing = False
        self._moved_before = 0  # value of `moved` at the last checkpoint

    @property
    def pending(self) -> dict[str, int]:
        """Number of scheduled messages of each topic."""
        self.file_recent()
        return dict(self._files.pending)

    # -- filing: messages of the timer topic go into the buckets of their hours

    def load(self) -> None:
        """Load the checkpoint.

        `follow` then files the messages that came after the checkpoint. Raises `StoreCorrupt`.
        """
        known = self._files.load()
        self._latest = saved = self._files.saved
        store = self._store
        first, end = store.min_offset(TIMER_TOPIC, 0), store.next_offset(TIMER_TOPIC, 0)
        self.moved = min(max(saved.moved, first), end)
        if known and self.moved != saved.moved:
            logger.error(
                "scheduled messages are filed up to queue offset %d; the log has offsets %d to %d",
                *(saved.moved, first, end),
            )
        start = max(saved.log_end, store.min_log_offset)
        if (self.buckets or self.moved < end) and start < store.max_log_offset:
            self._begin_check(start, store.max_log_offset)
        self._moved_before = self.moved
        self._loaded = True
        store.follow(TIMER_TOPIC, self.apply)

    def load_to_follow(self) -> None:
        """Load the checkpoint of a broker that follows its master's log.

        Until `lead` is called, `follow` also marks the messages that the log shows delivered.
        """
        self.load()
        self._checked_to = max(self._files.saved.log_end, self._store.min_log_offset)
        self._checking_to = self._store.max_log_offset
        if self._unchecked is None:
            self._checked_to = self._checking_to

    def lead(self) -> None:
        """Mark the other deliveries in the log, by later calls of `follow`. New ones are this broker's own.

        Does nothing unless `load_to_follow` was called.
        """
        if self._checked_to is not None:
            end = self._store.max_log_offset
            has_messages = bool(self.buckets) or self.moved < self._store.next_offset(TIMER_TOPIC, 0)
            if has_messages and self._checking_to < end:
                begin = self._checking_to if self._unchecked is None else self._unchecked_range[0]
                self._begin_check(begin, end)
            self._checked_to = None

    def _begin_check(self, begin: int, end: int) -> None:
        self._unchecked_range = begin, end
        self._unchecked = delivered_timers(self._store.records_from(begin), end, self.buckets)

    def apply(self, record: StoredMessage) -> None:
        """Take a record that was just appended to the timer topic. Called for each record; many are filed together.

        A cancel is left out: `follow` reads the cancel, and the messages after it, from the timer topic.
        """
        scheduled = scheduled_of(record)
        if scheduled and not self.intake.add(record.queue_offset, record.log_offset, record.size, scheduled):
            self.file_recent()

    def file_recent(self) -> None:
        intake = self.intake
        count = len(intake)
        if not count:
            return
        if intake.continues_at(self.moved):
            self._file(intake)
            self.moved += count
            self._news = True
        else:  # earlier messages are not filed yet: new ones are read later, in order, from the timer topic
            intake.clear()
            self._move(FOLLOWED_MEANWHILE * count)

    def _file(self, intake: TimerIntake) -> None:
        intake.file(self._files, near=self.near, unread=self.unread)

    def follow(self) -> bool:
        """Run a slice of the index's recovery after a start; return True if the recovery is complete."""
        if not self._move(FOLLOWED_RECORDS):
            return False
        if self._checked_to is not None and self._unchecked is None and self._checking_to < self._store.max_log_offset:
            begin, self._checking_to = self._checking_to, self._store.max_log_offset
            if self.buckets:
                self._begin_check(begin, self._checking_to)
            self._checked_to = begin if self.buckets else self._checking_to
        return self._check()

    async def catch_up(self) -> None:
        """Complete the recovery of the index after a start, in slices.

        Called before queries; usually nothing is left to do.
        """
        while not self.follow():
            await yield_slice()

    def _move(self, effort: int) -> bool:
        """File about `effort` records of the timer topic; return True if all are filed."""
        self.file_recent()
        end = self._store.next_offset(TIMER_TOPIC, 0)
        if self.moved < end:
            while self.moved < end and effort > 0:
                effort = self._move_some(effort, end)
            self._file(self._followed)
            self._news = True
        return self.moved >= end

    def _move_some(self, effort: int, end: int) -> int:
        """File the next few records of the timer topic; return the remaining effort (in records)."""
        records = self._store.records(TIMER_TOPIC, 0, self.moved, min(effort, READ_RECORDS))
        if not records:
            self.moved = end
        for _, record in records:
            if self._cancelling is None:
                self._take(record, self.moved)
            effort = self._cancel_some(effort - 1)
            if self._cancelling is None:
                self.moved += 1
            if effort <= 0:
                break
        return effort

    def _take(self, record: memoryview | None, queue_offset: int) -> None:
        try:
            if record is None:
                raise ValueError("the log no longer has it")
            log_offset, due_ms, topic, unique_key, is_cancel = read_parked(record)
            topic_name = topic.decode()
        except ValueError as error:
            logger.warning("scheduled message at queue offset %d is skipped: %s", queue_offset, error)
            return
        if is_cancel:
            self._file(self._followed)
            self._cancelling = self._cancel(topic_name, due_ms, unique_key)
            return
        scheduled = due_ms, crc32(unique_key), topic_name
        if not self._followed.add(queue_offset, log_offset, len(record), scheduled):
            self._file(self._followed)

    def _cancel(self, topic: str, due_ms: int, unique_key: bytes) -> Iterator[int]:
        """Mark the messages that a cancel record names as cancelled; yield the effort (in records) of each step."""
        try:
            for found in self.waiting(topic, due_ms, unique_key):
                if found is not None:
                    self._files.finish(*found, topic)
                yield FOLLOWED_RECORDS if found is None else CANCEL_EFFORT
        except StoreCorrupt as error:
            logger.warning("scheduled message %s is not cancelled: %s", unique_key.decode(errors="replace"), error)

    def _cancel_some(self, effort: int) -> int:
        """Continue the cancel in progress, if there is one; return the remaining effort (in records)."""
        cancelling, self._cancelling = self._cancelling, None
        for spent in cancelling or ():
            effort -= spent
            if effort <= 0:
                self._cancelling = cancelling
                break
        return effort

    def _check(self) -> bool:
        """Mark some of the messages that the log shows delivered since the checkpoint.

        Return True if no message is left to mark.
        """
        try:
            for found in self._unchecked or ():
                if found is None:
                    return False
                self.finish(*found)
                self.rest(found[0])
        except OSError:
            self._begin_check(*self._unchecked_range)  # an iterator that has raised has no more elements
            raise
        self._unchecked = None
        if self._checked_to is not None:
            self._checked_to = self._checking_to
        return True

    # -- messages in the buckets

    def waiting(
        self, topic: str, due_ms: int, unique_key: bytes
    ) -> Generator[tuple[TimerBucket, int] | None, None, None]:
        """Yield bucket and number of each scheduled message with this due time and key.

        There are several messages if the send was retried. Yields None between slices, so that the caller can let other
        connections be served.
        """
        bucket = self.buckets.get(due_ms // HOUR_MS)
        if bucket is None:
            return
        try:
            for number in bucket.waiting(due_ms, crc32(unique_key)):
                is_meant = number is not None and self._is_meant(bucket, number, topic, unique_key)
                yield (bucket, number) if number is not None and is_meant else None
                if not self.holds(bucket):
                    return
        finally:
            self.rest(bucket)

    def _is_meant(self, bucket: TimerBucket, number: int, topic: str, unique_key: bytes) -> bool:
        try:
            properties = self.message(bucket, number).properties
        except StoreCorrupt as error:
            logger.warning("%s: scheduled message %d cannot be cancelled: %s", bucket.files[0].path, number, error)
            return False
        key = properties.get(Property.UNIQUE_KEY, "")
        return key.encode() == unique_key and properties.get(Property.REAL_TOPIC) == topic

    def holds(self, bucket: TimerBucket) -> bool:
        """Return whether the bucket is still in use. A finished bucket is dropped, and its files are deleted."""
        return self.buckets.get(bucket.hour) is bucket

    def open(self, due_ms: int, number: int, *, wait: bool = True) -> tuple[TimerBucket, StoredMessage] | None:
        """Return bucket and message for a due time and number; None if the message is delivered or cancelled.

        Raises `StoreCorrupt`; with `wait` False also `NotInMemory`.
        """
        bucket = self.buckets.get(due_ms // HOUR_MS)
        # A new bucket may have replaced the hour's bucket, with other messages under the same numbers.
        if bucket is None or number >= bucket.count or bucket.is_finished(number):
            return None
        entry = bucket.entry(number, wait=wait)
        is_meant = entry.due_ms == due_ms or entry.due_ms // HOUR_MS != bucket.hour or not entry.is_whole
        return (bucket, self._message(bucket, number, entry, wait=wait)) if is_meant else None

    def due_of_damaged(self, bucket: TimerBucket, number: int) -> int:
        """Return the due time (ms) of a message with a damaged entry.

        The due time is that of the message's record; without an intact record, the end of the bucket's hour.
        """
        try:
            due = self.message(bucket, number).properties.get(Property.TIMER_OUT_MS, "")
        except StoreCorrupt as error:
            logger.warning("%s: scheduled message %d: %s", bucket.files[0].path, number, error)
            due = ""
        latest = (bucket.hour + 1) * HOUR_MS - 1
        return int(due) if due.isdecimal() and int(due) <= latest else latest

    def message(self, bucket: TimerBucket, number: int, *, wait: bool = True) -> StoredMessage:
        """Return a scheduled message: from the bucket's file, or from the log if the file has no intact record.

        Raises `StoreCorrupt`, naming file and byte, if neither has an intact record. With `wait` False, raises
        `NotInMemory` if the record is not resident.
        """
        return self._message(bucket, number, bucket.entry(number, wait=wait), wait=wait)

    def _message(self, bucket: TimerBucket, number: int, entry: TimerEntry, *, wait: bool) -> StoredMessage:
        misfit, faults = None, []
        for record_of in (bucket.record, self._record_in_log):
            try:
                if (record := record_of(entry, wait=wait)) is None:
                    continue
                message = decode_verified(record, entry)
            except StoreCorrupt as error:
                faults.append(str(error))
                continue
            if matches_entry(message, entry):
                if faults:
                    place = bucket.place_of(entry)
                    logger.warning("%s: the record is damaged (%s); the log's record is used", place, faults[0])
                return message
            misfit = misfit or message
        if misfit is not None:  # an intact record that does not match its entry: the entry is probably damaged
            logger.warning("%s byte %d: %s", bucket.files[0].path, number * ENTRY_BYTES, MISFIT)
            return misfit
        why = "; ".join(faults) or "it was not copied"
        raise StoreCorrupt(
            f"{bucket.place_of(entry)}: the record is damaged, and the log no longer has it ({why}); restore the file"
            " from a backup"
        )

    def _record_in_log(self, entry: TimerEntry, *, wait: bool) -> Buffer | None:
        if not wait and (unread := self._store.residency.to_load([(entry.log_offset, entry.size)])):
            raise NotInMemory(unread)
        return self._store.record_at(entry.log_offset)

    def finish(self, bucket: TimerBucket, number: int, topic: str) -> None:
        """Mark a scheduled message as delivered or cancelled."""
        self._files.finish(bucket, number, topic)
        self._news = True

    def rest(self, bucket: TimerBucket) -> None:
        """Release a bucket after a query, if its hour is after `near`.

        The last few buckets keep their contents in memory.
        """
        if not self.holds(bucket):
            bucket.release()
        elif bucket.hour > self.near:
            self._kept.keep(bucket, near=self.near)

    # -- timer files and checkpoint on disk

    def write(self, *, wait: bool = True) -> bool:
        """Write a slice of the pending bytes to the timer files; return True if none are left.

        If the disk refuses writes, accepted messages stay in memory and in the log, and new ones are refused. With
        `wait` False, raises `NotInMemory` if records to be copied are not resident.
        """
        self.file_recent()
        if not self._is_writing:
            if self.intake.refusal is None and self._files.unwritten <= UNWRITTEN_BYTES:
                return True
            self._begin_round(copy=False)
        try:
            if not self._files.write_some(WRITTEN_RECORDS, keep=self.near, wait=wait):
                return False
        except (StoreNotWritable, StoreCorrupt) as error:  # corrupt: the entry of a record to copy cannot be read
            if self.intake.refusal is None:
                logger.warning("%s; messages with a delivery time are refused until the disk accepts writes", error)
            self.intake.refusal = str(error)
            return True
        self.intake.refusal = None
        self._is_writing = False
        if self._flushed.is_empty:
            self._flushed.hold(self._taken())
            if not self._files.is_written:  # the snapshot includes messages that arrived meanwhile
                self._begin_round(copy=False)
        return not self._is_writing

    def _begin_round(self, *, copy: bool) -> None:
        if self._flushed.is_empty:  # a held snapshot refers to the buckets, which must stay then
            # Hours before `near` get no more messages. If the clock is set back, a new bucket is made.
            self._files.drop_finished(self.near)
        self._files.begin_round(copy=copy)
        self._is_writing = True

    def _from_log(self, log_offsets: list[int], sizes: list[int], *, wait: bool) -> list[Buffer]:
        """Return the log's records to copy.

        For records that the log no longer has, return zeros, which never pass for a record.
        """
        copies = self._store.copies_of(log_offsets, sizes, wait=wait)
        return [found or bytes(size) for found, size in zip(copies, sizes, strict=True)]

    def _taken(self) -> Snapshot:
        """Return a snapshot of the index (the state that a restart needs), and keep the snapshot as the latest."""
        now = self._store.max_log_offset
        end = now if self._unchecked is None else self._files.saved.log_end
        if self._checked_to is not None:
            end = self._checked_to
        self._news = False
        unmoved = self._store.entries(TIMER_TOPIC, 0, self.moved, 1)
        needed = [end, *(entry.log_offset for entry in unmoved)]
        if (uncopied := self._files.needed_from) is not None:
            needed.append(uncopied)
        snapshot = self._files.snapshot(moved=self.moved, log_end=end, needed_from=min(needed))
        self._latest = snapshot.checkpoint
        return snapshot

    @property
    def log_needed_from(self) -> int:
        """Log offset of the first record that the broker needs after a restart.

        Retention must keep the log from there.
        """
        saved = self._files.saved
        is_unsaved = self._has_news or saved is not self._latest or self._unchecked is not None
        return saved.needed_from if is_unsaved or saved.uncopied else self._store.confirmed_end

    @property
    def _has_news(self) -> bool:
        stale = self._store.confirmed_end - self._files.saved.log_end > REFRESH_BYTES
        unmoved = self.moved < self._store.next_offset(TIMER_TOPIC, 0)
        return self._news or unmoved or (stale and bool(self.buckets))

    def unsaved(self, on_wanted: Callable[[], None]) -> Callable[[], None] | None:
        """Return a function that saves, in any thread, the held snapshot, if its log is on disk; None otherwise.

        If no snapshot is held but something has changed, `on_wanted` is called: `write` must take a snapshot first.
        """
        if self._is_writing:
            return None
        if self._flushed.is_empty:
            self.file_recent()
            if (copy := self._is_time_to_copy()) or self._has_news:
                self._begin_round(copy=copy)
                on_wanted()
            return None
        snapshot = self._flushed.take()
        return None if snapshot is None else partial(self._files.save, snapshot, self._files.unsynced())

    def _is_time_to_copy(self) -> bool:
        """Return whether records must be copied now: few messages arrive, or uncopied records keep much of the log."""
        came, self._moved_before = self.moved - self._moved_before, self.moved
        needed = self._files.needed_from
        return (
            self._copies and needed is not None and (came <= QUIET or self._store.confirmed_end - needed > COPY_BYTES)
        )

    def persist(self) -> None:
        """Save all scheduled messages and a checkpoint to the timer files, if the log is confirmed.

        Must be called after the store is closed, when all of the log is on disk. Raises `StoreNotWritable`.
        """
        if not self._loaded:
            return
        self.file_recent()
        if self._store.is_confirmed and (self.buckets or self.moved != self._files.saved.moved):
            self._files.drop_finished(self.near)
            self._files.write_entries()
            self._files.save(self._taken(), self._files.unsynced())
        self._files.release()


def delivered_timers(
    records: Iterable[tuple[int, memoryview]], end: int, buckets: Mapping[int, TimerBucket]
) -> Iterator[Delivered | None]:
    """Yield the scheduled messages that these records show delivered, up to log offset `end`; None between slices.

    `records` yields each record with its log offset; `buckets` maps hours to buckets.
    """
    effort = 0
    for at, record in records:
        effort += 1
        try:
            if (parked_at := delivered_from(record)) is not None:
                effort += NOTE_EFFORT
                yield from _found(record, parked_at, buckets)
        except (StoreCorrupt, struct.error) as error:
            logger.warning("the record at log offset %d is damaged: %s", at, error)
        if effort >= CHECKED_RECORDS:
            effort = 0
            yield None
        if at + len(record) >= end:
            return


def _found(record: memoryview, parked_at: int, buckets: Mapping[int, TimerBucket]) -> Iterator[Delivered | None]:
    message = decode(record)
    due = message.properties.get(Property.TIMER_OUT_MS, "")
    bucket = buckets.get(int(due) // HOUR_MS) if due.isdecimal() else None
    if bucket is None:
        return
    while not bucket.read_finished_marks():
        yield None
        if buckets.get(bucket.hour) is not bucket:
            return
    if (number := bucket.number_at(parked_at)) is not None:
        yield bucket, number, message.topic
