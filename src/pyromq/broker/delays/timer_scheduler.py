"""Scheduler of messages with a delivery time: they wait (parked) in the timer topic, and are delivered when due.

A parked message is stored in the commit log and confirmed like any other message. Messages are delivered in order of
due time, then of arrival, never before their time by the machine's clock. `TimerIndex` stores the due times; this
module keeps the next ones in memory.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from pathlib import Path
from typing import NamedTuple

from pyromq.broker.cold_reads import ColdReads, Fetching
from pyromq.broker.config import BrokerConfig
from pyromq.broker.delays.timer_index import TimerIndex
from pyromq.broker.delays.timer_records import (
    LATEST_MS,
    asked_due_ms,
    cancel_of,
    delivery_of,
    park,
    unique_key_of,
)
from pyromq.broker.put_message import PutMessage
from pyromq.clock import Clock
from pyromq.errors import MessageRefused, RecallRefused, StoreCorrupt, StoreNotWritable
from pyromq.logs import logger_of
from pyromq.message import StoredMessage, SysFlag
from pyromq.net.tasks import Alarm
from pyromq.remoting.recall_handle import RecallHandle, encode_handle
from pyromq.slow_work import NotInMemory, PagesToLoad, yield_slice
from pyromq.store.disk import readable
from pyromq.store.message_store import MessageStore
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket

logger = logger_of(__name__)

LONGEST_WAIT = 1.0  # longest wait (seconds) before the clock is read again, since the clock may be set
LIST_MS = 100  # longest time (ms) before a new message's near due time is read; due ones are read earlier
SLICE_SECONDS = 0.001  # longest time in one step for each of: writing, filing, reading due times
WRITE_PAUSE_SECONDS = 0.004  # pause between two slices of writing timer files: sends come first
AHEAD_MS = 120_000  # time before an hour begins at which its bucket's due times are read
ENOUGH_IN_MEMORY = 100_000  # due times in memory beyond which no further overdue hour is read

DELIVERED_MESSAGES = 50  # limit of messages delivered by one write: blocks the event loop for about a millisecond
DELIVERED_BYTES = 512 << 10  # limit of the bodies delivered by one write
READ_ENTRIES = 250  # limit of due times read together: blocks the event loop for a third of a millisecond

_SLOT_BITS = 7
_NUMBER_BITS = 32
_SLOT_MASK = (1 << _SLOT_BITS) - 1
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1


class DueTime(NamedTuple):
    """When a message is due (ms since 1970), and the message's number in its bucket, below 2^32."""

    due_ms: int
    number: int


class _Delivery(NamedTuple):
    """A message about to be delivered, with its due time and bucket."""

    time: DueTime
    bucket: TimerBucket
    message: StoredMessage


@dataclass(slots=True)
class _Batch:
    """Messages delivered by one write.

    `lacking` holds the due times from the first message that is not resident on; `unread` holds the pages to load for
    these.
    """

    deliveries: list[_Delivery] = field(default_factory=list)
    lacking: list[DueTime] = field(default_factory=list)
    unread: PagesToLoad = field(default_factory=list)
    taken: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.taken >= DELIVERED_MESSAGES or self.size >= DELIVERED_BYTES

    def add(self, delivery: _Delivery) -> None:
        self.size += len(delivery.message.stored_body)
        self.deliveries.append(delivery)

    def lacks(self, time: DueTime, unread: PagesToLoad) -> None:
        self.unread += unread
        self.size += sum(each.size for each in unread)
        self.lacking.append(time)


class TimerScheduler:
    """The scheduled messages of one broker. `load` must be called after the store is opened, before other methods.

    `queue_for` maps topic and queue id to the queue id at delivery: the topic may have fewer queues by then. `step`
    returns the seconds until its next call; `alarm` fires if the call must come earlier.
    """

    def __init__(
        self,
        store: MessageStore,
        put_message: PutMessage,
        folder: Path,
        *,
        config: BrokerConfig,
        cold_reads: ColdReads,
        clock: Clock,
        queue_for: Callable[[str, int], int] = lambda topic, queue_id: queue_id,
    ) -> None:
        self.alarm = Alarm(clock)
        self._queue_for = queue_for
        self.index = TimerIndex(store, folder, copies=not config.failover.etcd)
        self.intake = self.index.intake
        self._put_message = put_message
        self._config = config
        self._clock = clock
        self._times = DueTimes()
        self._to_write, self._to_deliver = Fetching(cold_reads, self.alarm), Fetching(cold_reads, self.alarm)
        self.load = self.index.load
        self.persist = self.index.persist

    # -- scheduling and cancelling messages

    def divert(self, message: StoredMessage) -> bytes | None:
        """Turn a message with a future delivery time into a message of the timer topic, before the append.

        Returns the message's recall handle, b"" for a message without unique key, None for a message that does not
        wait. Raises `MessageRefused` if the time is not a number or too far away, `StoreNotWritable` if the timer files
        cannot be written.
        """
        now, text = self._clock.now_ms(), message.property_text
        due = asked_due_ms(text, now)
        if due is None or due <= now or message.sys_flag & SysFlag.HALF:  # HALF is also set after a rollback
            return None
        limit = self._config.timer_max_delay_seconds
        if due - now > limit * 1000:
            raise MessageRefused(
                f"the message would wait {-(-(due - now) // 1000)} s; the limit is {limit} s, broker setting"
                " timerMaxDelaySec: choose an earlier delivery time"
            )
        if self.intake.refusal is not None:
            raise StoreNotWritable(self.intake.refusal)
        if due < self.intake.urgent_ms:
            self.advance_alarm(due, now)
        topic, key = message.topic, unique_key_of(text)
        park(message, due)
        return encode_handle(topic, self._config.name, due, key) if key else b""

    def advance_alarm(self, due_ms: int, now_ms: int) -> None:
        """Let the alarm fire in time for a message that is due before all others."""
        self.intake.urgent_ms = min(due_ms, now_ms + LIST_MS)
        self.alarm.schedule_within((self.intake.urgent_ms - now_ms) / 1000)

    async def cancel(self, handle: RecallHandle, *, born_address: bytes) -> None:
        """Cancel the scheduled messages with the handle's topic, due time and key, by appending a cancel record.

        Raises `RecallRefused` if there is no such message, `StoreNotWritable`.
        """
        await self.index.catch_up()
        with closing(self.index.waiting(handle.topic, handle.due_ms, handle.unique_key.encode())) as waiting:
            for found in waiting:
                if found is not None:
                    break
                await yield_slice()
            else:
                raise RecallRefused(
                    f"no message {handle.unique_key} waits in topic {handle.topic} for {handle.due_ms}: it was"
                    " delivered, or cancelled before"
                )
        # The message is still scheduled here: no other task ran since, and `step` files the cancel before it delivers.
        self._put_message.put_record(cancel_of(handle, now_ms=self._clock.now_ms(), born_address=born_address))
        await self.index.catch_up()

    def unsaved(self) -> Callable[[], None] | None:
        """Return a function that saves, in any thread, the progress whose log is on disk; None if nothing is new."""
        return self.index.unsaved(lambda: self.alarm.schedule_within(0))

    # -- delivering due messages

    @readable()
    def step(self) -> float | None:
        """Deliver due messages and write the timer files, for up to 3 ms.

        Return the seconds until the next call, or None if no scheduled message is left and all files are written.
        Raises `StoreNotWritable`, and `StoreError` if a file cannot be read. A later call delivers the remaining
        messages.
        """
        now = self._clock.now_ms()
        index = self.index
        self.intake.urgent_ms = LATEST_MS
        self._look_ahead(now)
        is_written = self._write()
        if not self._for_a_slice(index.follow):  # a message that is not filed yet may be due before all others
            return 0.0
        is_at_work = self._deliver_due(now)
        if is_at_work and not self._to_deliver.is_under_way:
            return 0.0
        if not index.buckets and is_written:
            return None
        self.intake.urgent_ms = (index.near + 1) * HOUR_MS
        first = None if is_at_work else self._times.first()
        wait = LONGEST_WAIT if first is None else (first.due_ms - self._clock.now_ms()) / 1000
        return min(max(wait, 0.0), LONGEST_WAIT if is_written else WRITE_PAUSE_SECONDS)

    @readable()
    def follow_master(self) -> float:
        """Run instead of `step` at a follower: file and write messages, and mark messages delivered by the master.

        Return the seconds until the next call. Raises as `step` does.
        """
        self._look_ahead(self._clock.now_ms())
        is_written = self._write()
        if not self._for_a_slice(self.index.follow):
            return 0.0
        return LONGEST_WAIT if is_written else WRITE_PAUSE_SECONDS

    def _for_a_slice(self, piece: Callable[[], bool]) -> bool:
        """Call `piece` until it returns True or `SLICE_SECONDS` are over; return whether `piece` returned True."""
        end = self._clock.monotonic() + SLICE_SECONDS
        while not piece():
            if self._clock.monotonic() >= end:
                return False
        return True

    def _write(self) -> bool:
        """Write a slice of the timer files; return True if nothing is left to write."""
        fetching = self._to_write
        if fetching.is_under_way:
            return False
        try:
            return self._for_a_slice(self._write_piece)
        except NotInMemory as lack:
            fetching.lacks(lack.to_load)
            return False

    def _write_piece(self) -> bool:
        done = self.index.write(wait=self._to_write.gave_up)
        self._to_write.reset()
        return done

    def _deliver_due(self, now_ms: int) -> bool:
        """Read due times and deliver due messages; return False if nothing more can be done now."""
        fetching = self._to_deliver
        if fetching.is_under_way:
            return True
        try:
            known_before = self._read_ahead(now_ms)
            delivered = self._deliver(min(now_ms, known_before - 1))
        except NotInMemory as lack:
            fetching.lacks(lack.to_load)
            return True
        return delivered or bool(self.index.unread)

    def _look_ahead(self, now_ms: int) -> None:
        """Mark the buckets whose hour is near, so that they are read. A clock that was set back unmarks none."""
        index = self.index
        hour = (now_ms + AHEAD_MS) // HOUR_MS
        if hour > index.near:
            index.unread |= {each for each in index.buckets if index.near < each <= hour}
            index.near = hour

    def _read_ahead(self, now_ms: int) -> int:
        """Read some due times; return the time (ms since 1970) before which all due times are in memory.

        After a long downtime the overdue hours are read one at a time, as their messages are delivered.
        """
        unread = self.index.unread
        if not unread:
            return self.index.near * HOUR_MS + HOUR_MS
        hour = min(unread)
        if hour >= now_ms // HOUR_MS or len(self._times) < ENOUGH_IN_MEMORY:
            bucket = self.index.buckets.get(hour)
            if bucket is None or self._for_a_slice(partial(self._list, bucket)):
                unread.discard(hour)
        return min(unread, default=self.index.near + 1) * HOUR_MS

    def _list(self, bucket: TimerBucket) -> bool:
        """Read some due times of one bucket; return True if all are read."""
        if not bucket.read_finished_marks():
            return False
        found = [
            # A due time outside the bucket's hour means a damaged entry.
            (due_ms if due_ms // HOUR_MS == bucket.hour else self.index.due_of_damaged(bucket, number), number)
            for due_ms, number in bucket.due_times(bucket.listed, READ_ENTRIES, wait=self._to_deliver.gave_up)
        ]
        for due_ms, number in found:  # added only after all were read: after a failure, all are read again
            self._times.add(due_ms, number)
        self._to_deliver.reset()
        bucket.listed = min(bucket.listed + READ_ENTRIES, bucket.count)
        return bucket.listed == bucket.count

    def _deliver(self, until_ms: int) -> bool:
        """Deliver a batch of the messages due at `until_ms` or earlier; return False if there are none.

        Raises `NotInMemory` at a record that is not resident, `OSError` at an unreadable one. The messages before that
        record are delivered; the others stay scheduled.
        """
        batch = _Batch()
        try:
            try:
                self._take(batch, until_ms)
            finally:
                if batch.taken > len(batch.lacking):
                    self._to_deliver.reset()
                self._append(batch.deliveries)
        finally:
            for time in (*(each.time for each in batch.deliveries), *batch.lacking):
                self._times.add(*time)
        if batch.unread:
            raise NotInMemory(batch.unread)
        return batch.taken > 0

    def _take(self, batch: _Batch, until_ms: int) -> None:
        """Read the messages due at `until_ms` or earlier into the batch, until the batch is full.

        After a failure no later message is read.
        """
        wait = self._to_deliver.gave_up
        while not batch.is_full:
            time = self._times.first()
            if time is None or time.due_ms > until_ms:
                break
            try:
                delivery = self._open(time, wait=wait)
            except NotInMemory as lack:
                batch.lacks(time, lack.to_load)
            except OSError:
                if batch.lacking:  # earlier messages must be delivered first; the error recurs later
                    break
                raise
            else:
                if batch.lacking:  # an earlier message must be delivered first
                    batch.lacking.append(time)
                elif delivery is not None:
                    batch.add(delivery)
            self._times.pop()
            batch.taken += 1

    def _open(self, time: DueTime, *, wait: bool) -> _Delivery | None:
        """Return the message of a due time, ready for delivery; None if it is delivered, cancelled or damaged.

        Damage is logged.
        """
        try:
            found = self.index.open(*time, wait=wait)
            if found is None:
                return None
            bucket, parked = found
            message = delivery_of(parked)
            message.queue_id = self._queue_for(message.topic, message.queue_id)
            return _Delivery(time, bucket, message)
        except (StoreCorrupt, MessageRefused) as error:
            logger.warning("scheduled message %d due at %d is skipped: %s", time.number, time.due_ms, error)
            return None

    def _append(self, deliveries: list[_Delivery]) -> None:
        """Append messages to their queues, and remove the appended ones from `deliveries`.

        Raises `StoreNotWritable`.
        """
        while deliveries:
            done = 0
            try:
                outcomes = self._put_message.put_each([delivery.message for delivery in deliveries])
                for delivery, refused in zip(deliveries, outcomes, strict=False):
                    if refused is not None:
                        offset = ~delivery.message.prepared_offset
                        logger.warning("scheduled message at log offset %d is skipped: %s", offset, refused)
                    self.index.finish(delivery.bucket, delivery.time.number, delivery.message.topic)
                    done += 1
            finally:
                del deliveries[:done]


class DueTimes:
    """Due times in memory, smallest first. Equal due times come in order of their numbers.

    Due times are kept unsorted in slots of 128 ms, eight bytes each; only the next slot is sorted.
    """

    def __init__(self) -> None:
        # A heap of the due times of all slots up to `_opened`; an integer holds time and number.
        self._next: list[int] = []
        self._opened = -1
        self._slots: dict[int, array[int]] = {}
        self._order: list[int] = []  # a heap of the keys of `_slots`
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def add(self, due_ms: int, number: int) -> None:
        self._length += 1
        slot = due_ms >> _SLOT_BITS
        if slot <= self._opened:
            heappush(self._next, due_ms << _NUMBER_BITS | number)
            return
        times = self._slots.get(slot)
        if times is None:
            times = self._slots[slot] = array("Q")
            heappush(self._order, slot)
        times.append((due_ms & _SLOT_MASK) << _NUMBER_BITS | number)

    def first(self) -> DueTime | None:
        """Return the smallest due time; None if there is none."""
        if not self._next:
            if not self._order:
                return None
            self._open_slot()
        return DueTime(self._next[0] >> _NUMBER_BITS, self._next[0] & _NUMBER_MASK)

    def pop(self) -> None:
        """Remove the due time that `first` has returned."""
        heappop(self._next)
        self._length -= 1

    def _open_slot(self) -> None:
        slot = self._opened = heappop(self._order)
        base = slot << _SLOT_BITS + _NUMBER_BITS
        self._next = [base + time for time in self._slots.pop(slot)]
        heapify(self._next)
