"""Messages that wait for a time of their own: parked in the timer topic, delivered when due.

A parked message is in the commit log, and confirmed, like any other. What leaves does so in order of due time, then
of arrival, and never before its time by the machine's clock. Where messages wait is `filed_timers`' matter; here are
the due times near now. `step` says when it wants to run next; `alarm` rings when it has to earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from pyromq.broker.cold_reads import ColdReads, Fetching
from pyromq.broker.config import BrokerConfig
from pyromq.broker.delays.timer_index import TimerIndex
from pyromq.broker.delays.timer_records import (
    LATEST_MS,
    ScheduledMessage,
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
from pyromq.net.alarm import Alarm
from pyromq.remoting.recall_handle import RecallHandle, encode_handle
from pyromq.store.disk import readable
from pyromq.store.looking import FilePiece, NotInMemory, Unread
from pyromq.store.message_store import MessageStore
from pyromq.store.timers.due_times import DueTime, DueTimes
from pyromq.store.timers.timer_bucket import HOUR_MS, TimerBucket

logger = logger_of(__name__)

LONGEST_WAIT = 1.0  # seconds until the clock is looked at again: somebody may have set it
LIST_MS = 100  # how long a due time that is near may stay unread, unless it has come
SLICE_SECONDS = 0.001  # of writing, of filing, of reading due times, in one step
WRITE_PAUSE_SECONDS = 0.004  # between two slices of writing: accepting comes first
AHEAD_MS = 120_000  # how long before its hour a bucket's due times are read
ENOUGH_IN_MEMORY = 100_000  # due times, before those of a later overdue hour are read

DELIVERED_MESSAGES = 50  # by one write: about a millisecond
DELIVERED_BYTES = 512 << 10
READ_ENTRIES = 250  # a third of a millisecond


class _Delivery(NamedTuple):
    """One message on its way out."""

    time: DueTime
    bucket: TimerBucket
    message: StoredMessage


@dataclass(slots=True)
class _Batch:
    """What leaves by one write; what cannot yet, and all behind it; what has to come from the disk for that."""

    deliveries: list[_Delivery] = field(default_factory=list)
    lacking: list[DueTime] = field(default_factory=list)
    unread: Unread = field(default_factory=list)
    taken: int = 0
    size: int = 0

    @property
    def is_full(self) -> bool:
        return self.taken >= DELIVERED_MESSAGES or self.size >= DELIVERED_BYTES

    def add(self, delivery: _Delivery) -> None:
        self.size += len(delivery.message.stored_body)
        self.deliveries.append(delivery)

    def lacks(self, time: DueTime, unread: Unread) -> None:
        self.unread += unread
        self.size += sum(map(_size_of, unread))
        self.lacking.append(time)


class TimerScheduler:
    """The waiting messages of one broker. `load` after the store is open, before anything else.

    `queue_for` says which queue of a topic a message for a queue goes to, as the topic is by then.
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
        put_message.park = self.divert
        self.alarm = Alarm(clock)
        self._queue_for = queue_for
        self.index = TimerIndex(store, folder)
        self.intake = self.index.intake
        self._put_message = put_message
        self._config = config
        self._clock = clock
        self._times = DueTimes()
        self._to_write, self._to_deliver = Fetching(cold_reads, self.alarm), Fetching(cold_reads, self.alarm)
        self.load = self.index.load
        self.parked = put_message.parked = self.index.parked
        self.persist = self.index.persist

    # -- taking in

    def divert(self, message: StoredMessage) -> ScheduledMessage | None:
        """Make a message that is about to be appended wait if its properties ask for it; None: it does not wait.

        One whose time has come does not. When it is appended, `parked` should be told, in order. Raises
        `MessageRefused` for a time that is no number or too far away, `StoreNotWritable` while nothing can be filed.
        """
        now, text = self._clock.now_ms(), message.property_text
        due = asked_due_ms(text, now)
        if due is None or due <= now or message.sys_flag & SysFlag.HALF:  # half messages and rolled back ones
            return None
        limit = self._config.timer_max_delay_seconds
        if due - now > limit * 1000:
            raise MessageRefused(
                f"the message would wait {-(-(due - now) // 1000)} s; the limit is {limit} s, broker setting"
                " timerMaxDelaySec"
            )
        if self.intake.refusal is not None:
            raise StoreNotWritable(self.intake.refusal)
        if due < self.intake.urgent_ms:
            self.hurry(due, now)
        topic, key = message.topic, unique_key_of(text)
        park(message, due)
        return encode_handle(topic, self._config.name, due, key) if key else b"", due, crc32(key.encode()), topic

    def hurry(self, due_ms: int, now_ms: int) -> None:
        """Have the alarm ring in time for a message that is due before the others."""
        self.intake.urgent_ms = min(due_ms, now_ms + LIST_MS)
        self.alarm.ring_within((self.intake.urgent_ms - now_ms) / 1000)

    def cancel(self, handle: RecallHandle, *, born_address: bytes) -> Iterator[None]:
        """Cancel what waits for the handle's time under its key; the record that says so is stored by the end.

        Yields where others may have a turn. Raises `RecallRefused` where nothing waits there, `StoreNotWritable`.
        """
        yield from self.index.catch_up()
        for found in self.index.waiting(handle.topic, handle.due_ms, handle.unique_key.encode()):
            if found is not None:
                break
            yield
        else:
            raise RecallRefused(
                f"no message {handle.unique_key} waits in topic {handle.topic} for {handle.due_ms}: it was delivered,"
                " or cancelled before"
            )
        # No turn of others is between: it waits, and `step` delivers nothing before it has followed.
        self._put_message.put_record(cancel_of(handle, now_ms=self._clock.now_ms(), born_address=born_address))
        yield from self.index.catch_up()

    def unsaved(self) -> Callable[[], None] | None:
        """Return what writes progress that may be written by now, in any thread; None if there is nothing new."""
        return self.index.unsaved(lambda: self.alarm.ring_within(0))

    # -- delivering

    @readable()
    def step(self) -> float | None:
        """Read ahead, deliver and write for up to three milliseconds; return in how many seconds there is more to do.

        None: nothing waits. Raises `StoreNotWritable`, and `StoreError` where a file cannot be read; then what could
        not be stored, or read, is delivered next time.
        """
        now = self._clock.now_ms()
        index = self.index
        self.intake.urgent_ms = LATEST_MS
        self._look_ahead(now)
        is_written = self._write()
        if not self._for_a_slice(index.follow):  # what is still to be filed may be due before all others
            return 0.0
        is_at_work = self._work_off(now)
        if is_at_work and not self._to_deliver.is_under_way:
            return 0.0
        if not index.buckets and is_written:
            return None
        self.intake.urgent_ms = (index.near + 1) * HOUR_MS
        first = None if is_at_work else self._times.first()
        wait = LONGEST_WAIT if first is None else (first.due_ms - self._clock.now_ms()) / 1000
        return min(max(wait, 0.0), LONGEST_WAIT if is_written else WRITE_PAUSE_SECONDS)

    def _for_a_slice(self, piece: Callable[[], bool]) -> bool:
        """Do pieces of some work for a while; True if all of it is done."""
        end = self._clock.monotonic() + SLICE_SECONDS
        while not piece():
            if self._clock.monotonic() >= end:
                return False
        return True

    def _write(self) -> bool:
        """Write some of what there is to write; True if nothing is left."""
        fetching = self._to_write
        if fetching.is_under_way:
            return False
        try:
            return self._for_a_slice(self._write_piece)
        except NotInMemory as lack:
            fetching.lacks(lack.unread)
            return False

    def _write_piece(self) -> bool:
        done = self.index.write(wait=self._to_write.is_in_vain)
        self._to_write.went_on()
        return done

    def _work_off(self, now_ms: int) -> bool:
        """Read due times, deliver what is due; False if there is nothing left to do of that now."""
        fetching = self._to_deliver
        if fetching.is_under_way:
            return True
        try:
            known_before = self._read_ahead(now_ms)
            delivered = self._deliver(min(now_ms, known_before - 1))
        except NotInMemory as lack:
            fetching.lacks(lack.unread)
            return True
        return delivered or bool(self.index.unread)

    def _look_ahead(self, now_ms: int) -> None:
        """Let the buckets whose hour comes closer be read; none is let go when the clock is set back."""
        index = self.index
        hour = (now_ms + AHEAD_MS) // HOUR_MS
        if hour > index.near:
            index.unread |= {each for each in index.buckets if index.near < each <= hour}
            index.near = hour

    def _read_ahead(self, now_ms: int) -> int:
        """Read some due times; return the time (ms) before which all are in memory.

        After a long stop the overdue hours are read one by one, as they are delivered.
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
        """Read due times of one bucket; True if none is left."""
        if not bucket.learn_finished():
            return False
        found = [
            # Of another hour: only damage says so.
            (due_ms if due_ms // HOUR_MS == bucket.hour else self.index.due_of_damaged(bucket, number), number)
            for due_ms, number in bucket.due_times(bucket.listed, READ_ENTRIES, wait=self._to_deliver.is_in_vain)
        ]
        for due_ms, number in found:  # all or none: they are read again where one cannot be
            self._times.add(due_ms, number)
        self._to_deliver.went_on()
        bucket.listed = min(bucket.listed + READ_ENTRIES, bucket.count)
        return bucket.listed == bucket.count

    def _deliver(self, until_ms: int) -> bool:
        """Deliver a batch of what is due by then; False if nothing is.

        Raises `NotInMemory` when it has come to one that has to come from the disk, `OSError` at one that cannot be
        read. Whatever is raised: what was opened before is delivered, and all others are delivered later.
        """
        batch = _Batch()
        try:
            try:
                self._take(batch, until_ms)
            finally:
                if batch.taken > len(batch.lacking):
                    self._to_deliver.went_on()
                self._append(batch.deliveries)
        finally:
            for time in (*(each.time for each in batch.deliveries), *batch.lacking):
                self._times.add(*time)
        if batch.unread:
            raise NotInMemory(batch.unread)
        return batch.taken > 0

    def _take(self, batch: _Batch, until_ms: int) -> None:
        """Open what is due by then, as much as goes by one write. Where that fails nothing is taken from there on."""
        wait = self._to_deliver.is_in_vain
        while not batch.is_full:
            time = self._times.first()
            if time is None or time.due_ms > until_ms:
                break
            try:
                delivery = self._open(time, wait=wait)
            except NotInMemory as lack:
                batch.lacks(time, lack.unread)
            except OSError:
                if batch.lacking:  # those come first; then it is met again
                    break
                raise
            else:
                if batch.lacking:  # order is kept
                    batch.lacking.append(time)
                elif delivery is not None:
                    batch.add(delivery)
            self._times.pop()
            batch.taken += 1

    def _open(self, time: DueTime, *, wait: bool) -> _Delivery | None:
        """Return the message of a due time; None, and a line in the log if it is broken, where there is none to go."""
        try:
            found = self.index.open(*time, wait=wait)
            if found is None:
                return None
            bucket, parked = found
            message = delivery_of(parked)
            message.queue_id = self._queue_for(message.topic, message.queue_id)
            return _Delivery(time, bucket, message)
        except (StoreCorrupt, MessageRefused) as error:
            logger.warning("timer %d of those due at %d is left out: %s", time.number, time.due_ms, error)
            return None

    def _append(self, deliveries: list[_Delivery]) -> None:
        """Store messages; none of those that are is left in the list. Raises `StoreNotWritable`."""
        if not deliveries:
            return
        errors = self._put_message.put_each([delivery.message for delivery in deliveries])
        done = 0
        try:
            for delivery, error in zip(deliveries, errors, strict=True):
                if isinstance(error, MessageRefused):
                    logger.warning("timer at %d is left out: %s", ~delivery.message.prepared_offset, error)
                elif error is not None:
                    raise error
                self.index.finish(delivery.bucket, delivery.time.number, delivery.message.topic)
                done += 1
        finally:
            del deliveries[:done]


def _size_of(unread: memoryview | FilePiece) -> int:
    return unread.size if isinstance(unread, FilePiece) else len(unread)
