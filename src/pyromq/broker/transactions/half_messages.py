"""Half messages: stored where no consumer reads them until their producer decides; with a table of the undecided ones.

The half topic holds the messages. The op topic holds the queue offsets of settled half messages. Offsets of the group
CID_RMQ_SYS_TRANS hold the progress through both topics. Each check first appends a copy of the half message, so that an
undecided message does not block this progress. The copy replaces the earlier one; a decision on an earlier copy counts
for the latest.

Each outcome (the final message, the copy, the message given up) is appended in one write with its op record. A crash
can separate them only at the end of the log. `repair` repairs such a separation, so that no decision takes effect
twice. Source: RocketMQ 4.9.8, TransactionalMessageServiceImpl and TransactionalMessageBridge.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from functools import cache
from typing import NamedTuple
from zlib import crc32

import msgspec

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.internal_queues import InternalQueues
from pyromq.broker.limits import DEFAULT_LIMITS
from pyromq.broker.put_message import PutMessage, is_half
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.errors import LimitReached, MessageRefused
from pyromq.message import Property, StoredMessage, SysFlag, encode_properties
from pyromq.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from pyromq.store.message_store import MessageStore

GROUP = "CID_RMQ_SYS_TRANS"
DONE = f"{Property.TAGS}\x01d\x02{Property.WAIT}\x01true"  # property text of each op record
TRANSACTION_BITS = SysFlag.ROLLBACK
OPS_PER_HALF = 5  # limit of op records in memory, per permitted half message: 44 bytes each, so 44 MB by default


class HalfIdentity(NamedTuple):
    """The fields that all copies of one half message have in common."""

    unique_key: str
    born_ms: int
    born_address: bytes
    body_crc: int


class Half(msgspec.Struct, frozen=True, gc=False):
    """An undecided half message, as its latest copy describes it."""

    queue_offset: int
    log_offset: int
    group: str
    born_ms: int
    checks: int  # number of checks sent to the message's producer group
    immune_ms: int | None  # age (ms) before the first check; None if the message sets none
    identity: HalfIdentity | None  # None for a message without unique key: its copies cannot be recognised
    earlier: int  # queue offset of the previous copy; -1 for the first one


class HalfMessages:
    """The undecided half messages of one broker, in order of their queue offset. `len` counts them."""

    def __init__(
        self,
        store: MessageStore,
        put_message: PutMessage,
        *,
        topics: Topics,
        offsets: ConsumerOffsets,
        clock: Clock,
        most: int = DEFAULT_LIMITS.half_messages,
    ) -> None:
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._clock = clock
        self._most = most
        self._open: dict[int, Half] = {}
        self._latest: dict[HalfIdentity, int] = {}  # half message -> queue offset of its latest copy
        # Earlier copies that no op record settles, by queue offset: the message was sent twice, or a crash separated a
        # copy from its op record.
        self._earlier: dict[int, Half] = {}
        # For each op record from queue offset `_first_op` on: the highest queue offset of a half message it settles.
        self._ops: deque[int] = deque()
        self._first_op = 0
        self._queues = InternalQueues(GROUP, [(HALF_TOPIC, 0), (OP_TOPIC, 0)], store, offsets)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def op_count(self) -> int:
        """Number of op records in memory: all since the oldest undecided half message."""
        return len(self._ops)

    # -- following the log: records change the table

    def load(self) -> None:
        """Apply the records of half topic and op topic from the stored progress on."""
        self._first_op = self._queues.stored(OP_TOPIC)
        self._queues.follow(self.apply)
        self._queues.saved = self._worked_through()

    def apply(self, record: StoredMessage) -> None:
        """Enter the half message of a record, or settle the half messages that an op record names."""
        if record.topic == OP_TOPIC:
            self._apply_op(record)
            return
        identity, queue_offset, earlier = identity_of(record), record.queue_offset, -1
        if identity is not None:
            earlier = self._latest.get(identity, -1)
            self._latest[identity] = queue_offset
        if earlier in self._open:
            self._earlier[earlier] = self._open.pop(earlier)
        self._open[queue_offset] = _half(record, identity, earlier=earlier)

    def _apply_op(self, record: StoredMessage) -> None:
        # RocketMQ 5 writes several offsets into one op record, each followed by a comma.
        named = [int(word) for word in record.stored_body.split(b",") if word.isdigit()]
        lost = record.queue_offset - self._first_op - len(self._ops)
        self._ops.extend([-1] * lost)
        self._ops.append(max(named, default=-1))
        for queue_offset in named:
            if (half := self._open.pop(queue_offset, None)) is None:
                self._earlier.pop(queue_offset, None)
            elif half.identity is not None:
                del self._latest[half.identity]
                for earlier in self._earlier_copies(half):
                    del self._earlier[earlier]

    def _earlier_copies(self, half: Half) -> list[int]:
        """Return the queue offsets of the message's earlier copies that no op record settles, oldest first."""
        copies: list[int] = []
        while (earlier := self._earlier.get(half.earlier)) is not None:
            copies.append(earlier.queue_offset)
            half = earlier
        return copies[::-1]

    def repair(self) -> None:
        """Append the op records that a crash lost. Must be called once, after `load`, when records can be appended."""
        # The final message may be delayed. Each queue is read once: there may be 200,000 half messages.
        delayed = {self._committed_last(SCHEDULE_TOPIC, level) for level in self._store.queue_ids(SCHEDULE_TOPIC)}
        committed_last = cache(self._committed_last)
        for half in list(self._open.values()):
            record = self._store.message_at(half.log_offset)
            if record is None or not names_real_queue(record):
                continue
            if half.log_offset in delayed or committed_last(*real_queue(record)) == half.log_offset:
                self.settle(half)

    def _committed_last(self, topic: str, queue_id: int) -> int | None:
        """Return the log offset of the half message whose final message ends a queue. Then a crash lost the op record.

        Return None if the queue ends with another message.
        """
        last = self._last(topic, queue_id)
        # The flag alone proves nothing: a client may set it.
        if last is None or not is_half(last.properties) or last.sys_flag & TRANSACTION_BITS != SysFlag.COMMIT:
            return None
        return last.prepared_offset

    # -- the table of undecided half messages

    def undecided(self) -> list[int]:
        """Return the queue offsets of all undecided half messages, oldest first."""
        return list(self._open)

    def at(self, queue_offset: int) -> Half | None:
        """Return the undecided half message at a queue offset.

        Return None if the half message is decided, or was replaced by a later copy.
        """
        return self._open.get(queue_offset)

    def find(self, record: StoredMessage) -> Half | None:
        """Return the undecided half message of which `record` (of the half topic) is a copy; None if it is decided."""
        half = self._open.get(record.queue_offset)
        if half is None and (identity := identity_of(record)) is not None:
            half = self._open.get(self._latest.get(identity, -1))
        return half

    def holds_back(self, half: Half) -> bool:
        """Return whether this half message is the oldest, and too many op records behind it are kept in memory.

        A new copy of the message lets these op records be forgotten, as a check does. Otherwise a producer group
        without members could let them grow for 72 hours.
        """
        if len(self._ops) <= OPS_PER_HALF * self._most or next(iter(self._open), -1) != half.queue_offset:
            return False
        self._worked_through()
        return len(self._ops) > OPS_PER_HALF * self._most

    # -- writing records

    def prepare(self, message: StoredMessage, properties: Mapping[str, str]) -> None:
        """Turn a client's message into a half message, before the append.

        Raises `LimitReached` if too many are undecided.
        """
        self._check_room()
        self._topics.for_group_retry(HALF_TOPIC, 1)  # tools can read only topics with settings
        kept = {
            **properties,
            Property.REAL_TOPIC: message.topic,
            Property.REAL_QUEUE_ID: str(message.queue_id),
        }
        message.property_text = encode_properties(kept)
        message.sys_flag &= ~TRANSACTION_BITS  # otherwise the store would write no queue entry
        message.topic = HALF_TOPIC
        message.queue_id = 0

    def _check_room(self) -> None:
        kept = len(self._open) + len(self._earlier)
        if kept >= self._most:
            text = f"{kept} half messages of this broker are undecided; commit or roll back some"
            raise LimitReached("maxHalfMessages", self._most, text)

    def settle(self, half: Half, *outcome: StoredMessage) -> None:
        """Settle a half message: append its outcome, if any, and its op records, all or nothing.

        Raises `MessageRefused`, `StoreNotWritable`.
        """
        ops_before = [self._op_record(queue_offset) for queue_offset in self._earlier_copies(half)]
        op = self._op_record(half.queue_offset)
        # Op records of earlier copies come first: a crash that cuts the log must not settle only the latest copy.
        put = self._put_message
        try:
            put.put_batch(outcome, before=ops_before, behind=[op])
        except MessageRefused:  # too large for one write; an outcome too large for a record is refused again below
            for record in ops_before:
                put.put_record(record)
            for message in outcome:
                put.put(message)
            put.put_record(op)

    def renew(self, half: Half, record: StoredMessage, *, checks: int = 1) -> StoredMessage:
        """Append a copy of the half message `record` with `checks` more checks counted; return the copy."""
        copy = half_copy(record, checks=half.checks + checks)
        self.settle(half, copy)
        return copy

    def _op_record(self, queue_offset: int) -> StoredMessage:
        return StoredMessage(
            OP_TOPIC,
            b"%d" % queue_offset,
            DONE,
            born_ms=self._clock.now_ms(),
            born_address=self._store.store_address,
        )

    def _last(self, topic: str, queue_id: int) -> StoredMessage | None:
        """Return the last message of a queue; None if there is none."""
        return self._store.message(topic, queue_id, self._store.next_offset(topic, queue_id) - 1)

    # -- progress on disk

    @property
    def log_needed_from(self) -> int:
        """Log offset of the oldest half message that the saved progress leaves undecided.

        Retention must keep the log from there.
        """
        return self._queues.log_needed_from(HALF_TOPIC)

    def note_progress(self, *, closed: bool = False) -> None:
        """Commit the progress in half topic and op topic as offsets of the group, as far as the log is on disk.

        Progress saved before its log could lose decisions in a power loss. `closed` says that all of the log is on
        disk.
        """
        self._queues.save(self._worked_through(), closed=closed)

    def _worked_through(self) -> dict[tuple[str, int], int]:
        half = next(iter(self._open), self._store.next_offset(HALF_TOPIC, 0))
        while self._ops and self._ops[0] < half:
            self._ops.popleft()
            self._first_op += 1
        return {(HALF_TOPIC, 0): half, (OP_TOPIC, 0): self._first_op}


def names_real_queue(record: StoredMessage) -> bool:
    """Return whether a half message names its destination topic and queue; a damaged one may not."""
    properties = record.properties
    return Property.REAL_TOPIC in properties and properties.get(Property.REAL_QUEUE_ID, "").isdecimal()


def real_queue(record: StoredMessage) -> tuple[str, int]:
    """Return topic and queue id of a half message's destination. Raises `MessageRefused` if the message names none."""
    if not names_real_queue(record):
        raise MessageRefused(f"the half message at log offset {record.log_offset} names no topic and queue")
    return record.properties[Property.REAL_TOPIC], int(record.properties[Property.REAL_QUEUE_ID])


def identity_of(record: StoredMessage) -> HalfIdentity | None:
    """Return the fields that all copies of a half message have in common; None for a message without unique key."""
    key = record.properties.get(Property.UNIQUE_KEY)
    return HalfIdentity(key, record.born_ms, record.born_address, crc32(record.stored_body)) if key else None


def half_copy(record: StoredMessage, *, checks: int, topic: str = HALF_TOPIC) -> StoredMessage:
    """Return a copy of a half message for `topic`, not appended yet, whose count of checks is `checks`."""
    properties = {**record.properties, Property.TRANSACTION_CHECK_TIMES: str(checks)}
    return StoredMessage(
        topic,
        record.stored_body,
        encode_properties(properties),
        0,
        record.flag,
        record.sys_flag,
        record.born_ms,
        record.born_address,
        record.reconsume_times,
    )


def _half(record: StoredMessage, identity: HalfIdentity | None, *, earlier: int) -> Half:
    properties = record.properties
    immune = _number(properties.get(Property.CHECK_IMMUNITY_SECONDS, ""))
    return Half(
        record.queue_offset,
        record.log_offset,
        sys.intern(properties.get(Property.PRODUCER_GROUP, "")),
        record.born_ms,
        _number(properties.get(Property.TRANSACTION_CHECK_TIMES, "")) or 0,
        None if immune is None or immune < 0 else immune * 1000,
        identity,
        earlier,
    )


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
