"""Half messages: stored where no consumer reads them until their producer decides, and a table of the undecided.

The half topic holds the messages. The op topic holds the queue offsets of settled half messages. Offsets of the group
CID_RMQ_SYS_TRANS say how far both topics are worked through. Each check first appends a copy of the half message, so
that an undecided message does not block this progress. The copy replaces it; a decision on an earlier copy counts for
the latest.

Each outcome (the final message, the copy, the message given up) is appended in one write with its op record. A crash
can separate them only at the end of the log. `mend` repairs that, so that no decision takes effect twice.
Source: RocketMQ 4.9.8, TransactionalMessageServiceImpl and TransactionalMessageBridge.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.consuming.flushed_progress import InternalQueueProgress
from pyromq.broker.limits import DEFAULT_LIMITS
from pyromq.broker.put_message import PutMessage, is_half
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.errors import LimitReached, MessageRefused
from pyromq.message import Property, StoredMessage, SysFlag, encode_properties
from pyromq.names import HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from pyromq.store.message_store import MessageStore

GROUP = "CID_RMQ_SYS_TRANS"
DONE = f"{Property.TAGS}\x01d\x02{Property.WAIT}\x01true"  # properties of an op record
TRANSACTION_BITS = SysFlag.ROLLBACK
OPS_PER_HALF = 5  # op records in memory per permitted half message; 44 bytes each, so 44 MB by default


class HalfIdentity(NamedTuple):
    """The fields that all copies of one half message share."""

    unique_key: str
    born_ms: int
    born_address: bytes
    body_crc: int


class Half(msgspec.Struct, frozen=True, gc=False):
    """An undecided half message, by its latest copy."""

    queue_offset: int
    log_offset: int
    group: str
    born_ms: int
    checks: int  # how often its producer was asked
    immune_ms: int | None  # age before its first check, if the message sets one
    identity: HalfIdentity | None  # None without a unique key: its copies cannot be recognised


class HalfMessages:
    """The undecided half messages of one broker, in order of their queue offset."""

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
        put_message.prepare = self.prepare
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._clock = clock
        self._most = most
        self._open: dict[int, Half] = {}
        self._latest: dict[HalfIdentity, int] = {}  # queue offset of the latest copy
        # Queue offsets of earlier copies without an op record: the message was sent twice, or a crash came between a
        # copy and its op record.
        self._earlier: dict[HalfIdentity, list[int]] = {}
        self._earlier_count = 0
        self._seen = 0  # queue offset of the next half message to read
        # The highest queue offset in each op record from `_first_op` on.
        self._ops: deque[int] = deque()
        self._first_op = 0
        self._progress = InternalQueueProgress(GROUP, store, offsets)

    def __len__(self) -> int:
        return len(self._open)

    @property
    def op_count(self) -> int:
        """Number of op records in memory: those since the oldest undecided message."""
        return len(self._ops)

    # -- opening

    def load(self) -> None:
        """Read both queues from the stored progress on, to find the undecided half messages."""
        done = self._load_ops()
        self._seen = self._progress.stored(HALF_TOPIC)
        self._follow(done)
        self._progress.saved = self._worked_through()

    def mend(self) -> None:
        """Append the op records that a crash lost. Called once, after `load`, when records can be appended."""
        for half in list(self._open.values()):
            if self._is_committed(half):
                self.settle(half)

    def _load_ops(self) -> set[int]:
        """Return the queue offsets that the op records name."""
        done: set[int] = set()
        self._first_op = self._progress.stored(OP_TOPIC)
        for offset in range(self._first_op, self._store.max_offset(OP_TOPIC, 0)):
            record = self._read(OP_TOPIC, 0, offset)
            # RocketMQ 5 names several offsets in one record, each with a comma behind it.
            words = record.stored_body.split(b",") if record is not None else []
            named = [int(word) for word in words if word.isdigit()]
            self._ops.append(max(named, default=-1))
            done.update(named)
        return done

    def _is_committed(self, half: Half) -> bool:
        """Return whether the final message is the last of its queue: a crash lost its op record."""
        record = self._store.message_at(half.log_offset)
        if record is None or not names_real_queue(record):
            return False
        waiting = [(SCHEDULE_TOPIC, level) for level in self._store.queue_ids(SCHEDULE_TOPIC)]  # it may be delayed
        lasts = (self._read(*queue, last=True) for queue in (real_queue(record), *waiting))
        return any(
            last is not None
            and is_half(last.properties)  # a client may send a message with the flag of committed ones
            and last.sys_flag & TRANSACTION_BITS == SysFlag.COMMIT
            and last.prepared_offset == half.log_offset
            for last in lasts
        )

    # -- the table

    def undecided(self) -> list[int]:
        """Return the queue offsets of all undecided half messages, oldest first."""
        self._follow()
        return list(self._open)

    def at(self, queue_offset: int) -> Half | None:
        """Return the undecided half message at a queue offset; None if it is decided or has a later copy."""
        return self._open.get(queue_offset)

    def find(self, record: StoredMessage) -> Half | None:
        """Return the undecided half message of which `record`, of the half topic, is a copy; None if decided."""
        self._follow()
        half = self._open.get(record.queue_offset)
        if half is None and (identity := identity_of(record)) is not None:
            half = self._open.get(self._latest.get(identity, -1))
        return half

    def _follow(self, done: set[int] | frozenset[int] = frozenset()) -> None:
        """Enter the messages appended to the half topic since the last call, except those in `done`."""
        end = self._store.max_offset(HALF_TOPIC, 0)
        while self._seen < end:
            if self._seen not in done and (record := self._read(HALF_TOPIC, 0, self._seen)) is not None:
                self._take_up(record)
            self._seen += 1

    def _take_up(self, record: StoredMessage) -> None:
        half = _half(record)
        if half.identity is not None:
            if (earlier := self._open.pop(self._latest.get(half.identity, -1), None)) is not None:
                self._earlier.setdefault(half.identity, []).append(earlier.queue_offset)
                self._earlier_count += 1
            self._latest[half.identity] = half.queue_offset
        self._open[half.queue_offset] = half

    def holds_back(self, half: Half) -> bool:
        """Return whether this message is the oldest and too many op records behind it are kept in memory.

        A copy lets them be forgotten, as a check does. Without that a group without producers could let them grow
        for 72 hours.
        """
        if len(self._ops) <= OPS_PER_HALF * self._most or next(iter(self._open), -1) != half.queue_offset:
            return False
        self._worked_through()
        return len(self._ops) > OPS_PER_HALF * self._most

    def _forget(self, half: Half) -> None:
        self._open.pop(half.queue_offset, None)
        if half.identity is not None and self._latest.get(half.identity) == half.queue_offset:
            del self._latest[half.identity]
            self._earlier_count -= len(self._earlier.pop(half.identity, ()))

    # -- writing

    def prepare(self, message: StoredMessage, properties: Mapping[str, str]) -> None:
        """Turn a message, before its append, into a half message. Raises `LimitReached` if too many are undecided."""
        self._check_room()
        self._topics.for_group_retry(HALF_TOPIC, 1)  # tools can read only topics with settings
        kept = {
            **properties,
            Property.REAL_TOPIC: message.topic,
            Property.REAL_QUEUE_ID: str(message.queue_id),
        }
        message.property_text = encode_properties(kept)
        message.sys_flag &= ~TRANSACTION_BITS  # a record with these bits gets no queue entry
        message.topic = HALF_TOPIC
        message.queue_id = 0

    def _check_room(self) -> None:
        kept = len(self._open) + self._earlier_count
        if kept + self._store.max_offset(HALF_TOPIC, 0) - self._seen < self._most:
            return
        self._follow()
        kept = len(self._open) + self._earlier_count
        if kept >= self._most:
            text = f"{kept} half messages of this broker are undecided; commit or roll back some"
            raise LimitReached("maxHalfMessages", self._most, text)

    def settle(self, half: Half, *outcome: StoredMessage) -> None:
        """Append the outcome, if any, and the op records, all or nothing: the half message is settled.

        Raises `MessageRefused`, `StoreNotWritable`.
        """
        done = [*(self._earlier.get(half.identity, ()) if half.identity else ()), half.queue_offset]
        *ops_before, op = [self._op_record(queue_offset) for queue_offset in done]
        # Earlier copies first: if a crash cuts the log, the latest must not be settled without them.
        put = self._put_message
        try:
            put.put_batch(outcome, before=ops_before, behind=[op])
        except MessageRefused:  # too large for one write, or an outcome too large for a record, which is refused again
            for record in ops_before:
                put.put_record(record)
            for message in outcome:
                put.put(message)
            put.put_record(op)
        self._ops.extend(done)
        self._forget(half)

    def renew(self, half: Half, record: StoredMessage, *, checks: int = 1) -> StoredMessage:
        """Append a copy of the half message `record` that counts `checks` more; return the copy."""
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

    def _read(self, topic: str, queue_id: int, queue_offset: int = 0, *, last: bool = False) -> StoredMessage | None:
        """Return the message at an offset of a queue, or the last one; None if there is none."""
        if last:
            queue_offset = self._store.max_offset(topic, queue_id) - 1
        return self._store.message(topic, queue_id, queue_offset)

    # -- progress on disk

    @property
    def log_needed_from(self) -> int:
        """Log offset of the oldest undecided half message by the saved progress: retention keeps the log from there."""
        return self._progress.log_needed_from(HALF_TOPIC)

    def note_progress(self, *, closed: bool = False) -> None:
        """Commit the progress in both queues whose log is on disk, as offsets of the group.

        Otherwise a power loss could keep the progress and lose the decisions. `closed`: all of the log is on disk.
        """
        self._progress.save(self._worked_through(), closed=closed)

    def _worked_through(self) -> dict[tuple[str, int], int]:
        half = next(iter(self._open), self._seen)
        while self._ops and self._ops[0] < half:
            self._ops.popleft()
            self._first_op += 1
        return {(HALF_TOPIC, 0): half, (OP_TOPIC, 0): self._first_op}


def names_real_queue(record: StoredMessage) -> bool:
    """Return whether a half message names its destination; a damaged one may not."""
    properties = record.properties
    return Property.REAL_TOPIC in properties and properties.get(Property.REAL_QUEUE_ID, "").isdecimal()


def real_queue(record: StoredMessage) -> tuple[str, int]:
    """Return topic and queue id of a half message's destination. Raises `MessageRefused` if it names none."""
    if not names_real_queue(record):
        raise MessageRefused(f"the half message at log offset {record.log_offset} names no topic and queue")
    return record.properties[Property.REAL_TOPIC], int(record.properties[Property.REAL_QUEUE_ID])


def identity_of(record: StoredMessage) -> HalfIdentity | None:
    """Return the fields that all copies of a half message share; None without a unique key."""
    key = record.properties.get(Property.UNIQUE_KEY)
    return HalfIdentity(key, record.born_ms, record.born_address, record.body_crc) if key else None


def half_copy(record: StoredMessage, *, checks: int, topic: str = HALF_TOPIC) -> StoredMessage:
    """Return a copy of a half message, to be appended, that counts `checks` checks."""
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


def _half(record: StoredMessage) -> Half:
    properties = record.properties
    immune = _number(properties.get(Property.CHECK_IMMUNITY_SECONDS, ""))
    return Half(
        record.queue_offset,
        record.log_offset,
        sys.intern(properties.get(Property.PRODUCER_GROUP, "")),
        record.born_ms,
        _number(properties.get(Property.TRANSACTION_CHECK_TIMES, "")) or 0,
        None if immune is None or immune < 0 else immune * 1000,
        identity_of(record),
    )


def _number(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None
