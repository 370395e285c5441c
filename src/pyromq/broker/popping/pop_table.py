"""The state of pop consumption: messages in flight, their journal, and the groups' committed offsets."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.popping.in_flight import InFlight, Pop, PoppedQueue
from pyromq.broker.popping.pop_journal import PopJournal
from pyromq.clock import Clock
from pyromq.errors import (
    InvalidReceiptHandle,
    LimitReached,
    MQError,
    PopsInFlight,
    ReceiptHandleExpired,
    StoreNotWritable,
)
from pyromq.logs import logger_of
from pyromq.net.tasks import Alarm
from pyromq.remoting.receipt_handle import ReceiptHandle, bits_from, check_offset, offsets_in
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

RENEWED_MS = 10_000  # time by which a connected member's pop is prolonged; so long its messages wait after its end
LONGEST_RENEWED_MS = 3 * 3_600_000  # limit of all renewals of a pop: a listener may hang
RECONNECT_MS = 30_000  # time after a start of the broker in which members can connect before their pops are due


class PopTable:
    """Hands out messages and takes acknowledgements, at a master only.

    A pop is written to the journal before it is handed out, and refused if the journal cannot be written. An
    acknowledgement is accepted without the journal; after a kill of the broker its message may be redelivered. `alarm`
    fires when a pop is due.
    """

    def __init__(
        self, store: MessageStore, offsets: ConsumerOffsets, folder: Path, *, clock: Clock, max_pops: int
    ) -> None:
        self.in_flight = InFlight(max_pops)
        self.alarm = Alarm(clock)
        self.journal_alarm = Alarm(clock)
        self._store = store
        self._offsets = offsets
        self._clock = clock
        self._journal = PopJournal(folder, store.disk, clock, self.in_flight)
        self.journal_step = self._journal.step
        self._is_noted = True  # False after a failed write to the journal, which is logged once

    @property
    def journal_bytes(self) -> int:
        return self._journal.size

    # -- life of the broker

    def load(self) -> None:
        """Read the journal. Offsets above a queue's end are lowered to the end: a power loss may have cut the log."""
        if self._journal.load():
            self._reset_to_committed()
        restarted_ms = self._clock.now_ms() + RECONNECT_MS
        for queue in self.in_flight:
            for pop in queue.leases():
                if pop.client_id is not None:
                    self.in_flight.prolong(pop, restarted_ms)
        is_lower = self.lower_to_ends()
        for queue in self.in_flight:
            self._follow_offsets(queue)
        # A full disk must not prevent reading of stored messages.
        self._note(partial(self._journal.begin, lasting=is_lower))
        self._ring()

    def lower_to_ends(self) -> bool:
        """Lower the state of each queue to the queue's end. Otherwise new messages would count as finished.

        Return whether a queue was behind its state.
        """
        is_lower = False
        for queue in self.in_flight:
            end = self._store.next_offset(queue.topic, queue.queue_id)
            is_lower |= queue.next_offset > end
            for pop in list(queue.leases()):
                if lost := bits_from(pop.leased, pop.start, end):
                    self.in_flight.finish(pop, lost)
            queue.next_offset = min(queue.next_offset, end)
            self._commit(queue)
        return is_lower

    def discard(self) -> None:
        """Delete the journal. A follower calls this, because the master's log may replace messages of its queues."""
        self._journal.discard()

    def lead(self) -> None:
        """Begin as the new master, without messages in flight. Groups continue at their committed offsets."""
        self._note(self._journal.begin)

    def close(self) -> None:
        self._offsets.watched.clear()
        self._note(self._journal.close)  # if this fails, the next start treats the broker as killed
        self.in_flight.clear()

    def _reset_to_committed(self) -> None:
        """Reset the queues whose committed offset another program has changed since the broker was stopped."""
        for queue in self.in_flight:
            offset = self._offsets.find(queue.group, queue.topic, queue.queue_id)
            if offset is None:
                self.in_flight.drop(queue)
            elif _first_from(offset) != queue.committed:
                self.in_flight.reset(queue, _first_from(offset))

    # -- queues

    def open_queue(self, group: str, topic: str, queue_id: int, *, first: int) -> PoppedQueue:
        """Return the state of a queue. A group without a committed offset begins at `first`.

        Raises `LimitReached` if the table of offsets is full, `StoreNotWritable` if the journal cannot be written.
        """
        queue = self.in_flight.find(group, topic, queue_id)
        if queue is None:
            committed = self._offsets.find(group, topic, queue_id)
            if committed is None and not self._offsets.commit(group, topic, queue_id, first):
                raise self._offsets.too_many(group)
            queue = self.in_flight.add(group, topic, queue_id, _first_from(first if committed is None else committed))
            try:
                self._journal.note_queue(queue)
            except StoreNotWritable:
                self.in_flight.drop(queue)
                raise
            self._follow_offsets(queue)
        return queue

    def _follow_offsets(self, queue: PoppedQueue) -> None:
        """Let `_offset_changed` be called when a request resets or removes the group's offset of a queue."""
        self._offsets.on_change = self._offset_changed
        # After a power loss a dropped queue must not return: the first messages of a new topic would be skipped.
        self._offsets.flush_removed = self._journal.flush
        self._offsets.watch(queue.group, queue.topic)

    def skip_to(self, queue: PoppedQueue, next_offset: int) -> None:
        """Skip messages that the group's filter refuses, or that are deleted. After a crash they are skipped again."""
        queue.next_offset = next_offset
        self._commit(queue)

    def rewind(self, queue: PoppedQueue) -> None:
        """Make the messages in flight of an orderly queue visible, so that a repeated request gets them again."""
        tries = queue.tries
        self.in_flight.reset(queue, queue.committed)
        queue.tries = tries
        self._note(partial(self._journal.note_queue, queue))

    def committed(self, group: str, topic: str, queue_id: int) -> int:
        """Return a group's committed offset in a queue that was not popped since the start; 0 without one."""
        return self._offsets.find(group, topic, queue_id) or 0

    def _offset_changed(self, group: str, topic: str, queue_id: int | None, offset: int) -> None:
        """Reset a queue whose committed offset a request has set. Remove the queues of a deleted topic or group."""
        if queue_id is None:
            for dropped in list(self.in_flight.queues(group, topic).values()):
                self.in_flight.drop(dropped)
                self._note(partial(self._journal.note_dropped, dropped))
            return
        queue = self.in_flight.find(group, topic, queue_id)
        if queue is not None and offset != queue.committed:
            if queue.in_flight:
                logger.info(
                    "group %s was reset to offset %d in queue %d of topic %s: %d messages in flight are forgotten",
                    *(group, offset, queue_id, topic, queue.in_flight),
                )
            self.in_flight.reset(queue, _first_from(offset))
            self._note(partial(self._journal.note_queue, queue))

    def _commit(self, queue: PoppedQueue) -> None:
        self._offsets.commit(queue.group, queue.topic, queue.queue_id, queue.committed)

    def _note(self, write: Callable[[], None]) -> None:
        """Write to the journal. A failure is only logged: messages without a record are redelivered after a crash."""
        try:
            write()
            self._is_noted = True
        except StoreNotWritable as error:
            if self._is_noted:
                logger.warning("%s; after a kill of the broker, acknowledged messages may be redelivered", error)
            self._is_noted = False
            self._journal.expect_new_segment()
        if self._journal.is_behind:
            self.journal_alarm.schedule_within(0)

    # -- messages

    def check_quota(self, group: str) -> None:
        """Raise `PopsInFlight` if the unfinished pops of a group, or of all groups, have reached their limit."""
        pops = self.in_flight.pops
        try:
            pops.check(group, text="")
        except LimitReached as error:
            raise PopsInFlight(
                pops.setting,
                pops.limit,
                f"group {group} has {pops.of(group)} unfinished pops, of {pops.used} of all groups: acknowledge"
                " messages, or pop more of them with one request",
            ) from error

    def hand_out(self, pop: Pop, next_offset: int) -> None:
        """Hand out the messages of a pop. Raises `StoreNotWritable` without any change."""
        self._journal.note_pop(pop, next_offset)
        self.in_flight.hand_out(pop, next_offset)
        self._commit(pop.queue)
        if self._journal.is_behind:
            self.journal_alarm.schedule_within(0)
        if pop.due_ms == self.in_flight.next_due_ms():
            self._ring()

    def try_to_hand_out(self, pop: Pop, next_offset: int) -> bool:
        """Hand out a pop that compiled code has made. Return False, without any change, if the pop is refused."""
        try:
            self.check_quota(pop.queue.group)
            self.hand_out(pop, next_offset)
        except MQError:
            return False  # Python code handles the request again, and answers with the error
        return True

    def finish(self, pop: Pop, bits: int) -> None:
        """End the delivery of messages of a pop."""
        self._note(partial(self._journal.note_finished, pop, bits))
        self.in_flight.finish(pop, bits)
        self._commit(pop.queue)

    def acknowledge(self, group: str, topic: str, handle: ReceiptHandle, bits: int) -> int:
        """Acknowledge messages of one receipt handle. Return the messages whose handle has expired.

        Bits are relative to the handle's start. A repeated acknowledgement is not an error.
        """
        queue = self.in_flight.find(group, topic, handle.queue_id)
        if queue is None:
            return bits_from(bits, handle.start, self.committed(group, topic, handle.queue_id))
        pop = queue.pop_at(handle.start, handle.pop_ms)
        if pop is not None and (leased := bits & pop.leased):
            self.finish(pop, leased)
            bits &= ~leased
        if bits and self._clock.now_ms() < handle.expires_ms:
            bits = queue.unfinished_in(bits, handle.start)
        return bits

    def is_free(self, group: str, topic: str, queue_id: int) -> bool:
        """Return whether a group has no invisible messages in a queue."""
        queue = self.in_flight.find(group, topic, queue_id)
        return queue is None or not queue.in_flight

    def change(self, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int) -> Pop:
        """Let a message become visible in `invisible_ms` from now on. Return the message's new pop.

        Raises `ReceiptHandleExpired`, `PopsInFlight`.
        """
        queue = self.in_flight.find(group, topic, handle.queue_id)
        pop = None if queue is None else queue.lease(handle.start, handle.pop_ms, handle.offset)
        if pop is None:
            raise self.expired(group, topic, handle, 1 << handle.offset - handle.start)
        if pop.parent is None:
            self.check_quota(group)
        now_ms = self._clock.now_ms()
        moved = self.in_flight.move(pop, handle.offset, pop_ms=now_ms, due_ms=now_ms + invisible_ms)
        moved.client_id = None
        self._note(partial(self._journal.note_moved, pop, moved))
        self._ring()
        return moved

    def release(self, pop: Pop) -> bool:
        """Make the messages of an orderly pop visible. Return whether the queue can be popped again."""
        self._note(partial(self._journal.note_released, pop))
        return self.in_flight.release(pop)

    def expired(self, group: str, topic: str, handle: ReceiptHandle, bits: int) -> ReceiptHandleExpired:
        """Return the error for a receipt handle that is no longer valid."""
        offsets = offsets_in(bits, handle.start)
        late_ms = self._clock.now_ms() - handle.expires_ms
        why = "its invisible time was changed, or the group was reset"
        if late_ms >= 0:
            why = f"its invisible time ended {late_ms} ms ago"
        return ReceiptHandleExpired(
            f"the receipt handle of {'offset' if len(offsets) == 1 else 'offsets'} {', '.join(map(str, offsets[:32]))}"
            f" in queue {handle.queue_id} of topic {topic} is no longer valid for group {group}: {why}"
        )

    def _ring(self) -> None:
        due_ms = self.in_flight.next_due_ms()
        if due_ms is not None:
            self.alarm.schedule_within(max(0, due_ms - self._clock.now_ms()) / 1000)


def _first_from(committed: int) -> int:
    """Return the offset at which pops begin. The journal has no negative offsets, and a client may commit one."""
    return max(0, committed)


def check_handle(handle: ReceiptHandle, queue_id: int, offset: int) -> None:
    """Raise `InvalidReceiptHandle` if a handle belongs to another message, or to no message."""
    if (handle.queue_id, handle.offset) != (queue_id, offset):
        raise InvalidReceiptHandle(
            f"queueId={queue_id}, offset={offset}, but the receipt handle {handle.encode()!r} belongs to offset"
            f" {handle.offset} of queue {handle.queue_id}: send the handle that came with the message"
        )
    check_offset(handle)
