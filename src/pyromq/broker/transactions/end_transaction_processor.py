"""Answers producers' decisions on half messages, and administrators' requests to list half messages or resume checks.

Source: RocketMQ 4.9.8, EndTransactionProcessor and AdminBrokerProcessor.resumeCheckHalfMessage. Unlike upstream, a
second decision on the same half message has no effect. Upstream has no list of half messages.
"""

from __future__ import annotations

from bisect import bisect_right

from pyromq.broker.confirmation import Confirmation
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.put_message import PutMessage
from pyromq.broker.transactions.decisions import Decisions
from pyromq.broker.transactions.half_messages import (
    TRANSACTION_BITS,
    Half,
    HalfIdentity,
    HalfMessages,
    half_copy,
    identity_of,
    names_real_queue,
    real_queue,
)
from pyromq.errors import BrokerError
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage, SysFlag
from pyromq.message_id import parse_offset_id
from pyromq.names import HALF_TOPIC, TRANSACTION_GIVE_UP_TOPIC
from pyromq.permissions.account import ANY
from pyromq.permissions.permissions import Permissions
from pyromq.remoting.bodies import HalfMessageEntry, HalfMessageList, encode_body
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Outcome, answers
from pyromq.remoting.headers import EndTransaction, ListHalfMessages, ResumeHalfMessage
from pyromq.slow_work import yield_slice
from pyromq.store.message_store import MessageStore

logger = logger_of(__name__)

MAX_LISTED = 200  # limit of half messages on one page of the list


class EndTransactionProcessor:
    """Commits, rolls back, lists and resumes half messages."""

    def __init__(
        self,
        put_message: PutMessage,
        half_messages: HalfMessages,
        *,
        delay_levels: DelayLevels,
        confirmation: Confirmation,
        store: MessageStore,
        permissions: Permissions,
    ) -> None:
        self._put_message = put_message
        self._half_messages = half_messages
        self._delay_levels = delay_levels
        self._confirmation = confirmation
        self._store = store
        self._permissions = permissions
        self._decisions = Decisions()

    @answers(EndTransaction)
    def end(self, header: EndTransaction, call: Call) -> Outcome:
        """Commit or roll back a half message.

        Any other decision leaves the half message undecided, to be checked later.
        """
        if header.decision not in (SysFlag.COMMIT, SysFlag.ROLLBACK):
            return Reply()
        if not call.flag & ONE_WAY:
            self._confirmation.refuse_if_overloaded()
        self._store.residency.need_record(header.log_offset)
        record = self._prepared(header)
        half = self._half_messages.find(record)
        if half is None:
            self._check_repeated(header, record)
        else:
            self._decide(header, record, half)
        # The reply to a repeated decision waits too: the first decision may not be on disk yet.
        return Reply() if call.flag & ONE_WAY else self._confirmation.when_safe(Reply())

    def _decide(self, header: EndTransaction, record: StoredMessage, half: Half) -> None:
        if header.decision == SysFlag.COMMIT:
            self._commit(half, record)
        else:
            self._half_messages.settle(half)
        self._decisions.note(_key(record), header.decision)

    def _prepared(self, header: EndTransaction) -> StoredMessage:
        """Return the half message at the request's log offset.

        Raises `BrokerError` unless all fields of the request match it.
        """
        record = self._store.message_at(header.log_offset)
        if record is None:
            raise BrokerError("Find prepared transaction message failed")
        if record.topic != HALF_TOPIC:
            raise BrokerError(
                f"the message at log offset {header.log_offset} is not a half message; its topic is {record.topic}"
            )
        if record.properties.get(Property.PRODUCER_GROUP) != header.producer_group:
            raise BrokerError("The producer group wrong")
        if record.queue_offset != header.half_queue_offset:
            raise BrokerError("The transaction state table offset wrong")
        meant = record.properties.get(Property.REAL_TOPIC, "")
        if header.topic and header.topic != meant and not meant.endswith(f"%{header.topic}"):
            raise BrokerError(
                f"the half message at log offset {header.log_offset} is for topic {meant}, not {header.topic}"
            )
        return record

    def _check_repeated(self, header: EndTransaction, record: StoredMessage) -> None:
        """Raise `BrokerError` unless the request repeats the first decision on the half message.

        Only the first decision counts.
        """
        if self._decisions.find(_key(record)) != header.decision:
            raise BrokerError(
                f"the half message at log offset {header.log_offset} is decided already, was given up, or is lost"
            )

    def _commit(self, half: Half, record: StoredMessage) -> None:
        topic, queue_id = real_queue(record)
        message = StoredMessage(
            topic,
            record.stored_body,
            record.property_text,
            queue_id,
            record.flag,
            record.sys_flag & ~TRANSACTION_BITS | SysFlag.COMMIT,
            record.born_ms,
            record.born_address,
            record.reconsume_times,
            half.log_offset,
        )
        self._delay_levels.divert(message, record.properties)  # the delay begins at the commit
        self._half_messages.settle(half, message)

    @answers(ResumeHalfMessage)
    def resume(self, header: ResumeHalfMessage, call: Call) -> Outcome:
        """Reset the count of checks of an undecided half message, or make a given-up one undecided again."""
        self._confirmation.refuse_if_overloaded()
        log_offset = parse_offset_id(header.message_id or "").log_offset
        self._store.residency.need_record(log_offset)
        record = self._store.message_at(log_offset)
        if record is None:
            raise BrokerError(f"can not find message {header.message_id}")
        half = self._half_messages.find(record) if record.topic == HALF_TOPIC else None
        copy = half_copy(record, checks=0)
        if half is not None:
            self._half_messages.settle(half, copy)
        elif record.topic == TRANSACTION_GIVE_UP_TOPIC:
            self._put_message.put(copy)
        else:
            raise BrokerError(f"message {header.message_id} is not a half message that is undecided or was given up")
        logger.info("half message %s is checked again for %s", header.message_id, call.peer.address)
        return self._confirmation.when_safe(Reply())

    @answers(ListHalfMessages)
    async def list(self, header: ListHalfMessages, call: Call) -> Reply:
        """Return a page of undecided half messages, oldest first. A check moves its message to the end of the list.

        Messages for topics on which the caller's account has no right are omitted.
        """
        wanted = min(max(header.count, 1), MAX_LISTED)
        found: list[HalfMessageEntry] = []
        after = header.after
        undecided = self._half_messages.undecided()
        for queue_offset in undecided[bisect_right(undecided, after) :]:
            await yield_slice()
            half = self._half_messages.at(queue_offset)
            if half is None or header.producer_group not in (None, half.group):
                continue
            if len(found) == wanted:
                return Reply(body=encode_body(HalfMessageList(found, after)))
            after = queue_offset
            await self._store.residency.load_record(half.log_offset)
            record = self._store.message_at(half.log_offset)
            if record is not None and self._permissions.lacks(call.account, [(_real_topic(record), ANY)]) is None:
                found.append(_entry(half, record))
        return Reply(body=encode_body(HalfMessageList(found)))


def _real_topic(record: StoredMessage) -> str:
    return record.properties.get(Property.REAL_TOPIC, record.topic)


def _entry(half: Half, record: StoredMessage) -> HalfMessageEntry:
    properties = record.properties
    topic, queue_id = real_queue(record) if names_real_queue(record) else (None, None)
    return HalfMessageEntry(
        half.queue_offset,
        half.log_offset,
        record.offset_message_id,
        half.group,
        half.born_ms,
        half.checks,
        len(record.stored_body),
        topic,
        queue_id,
        properties.get(Property.UNIQUE_KEY),
        properties.get(Property.KEYS),
        properties.get(Property.TAGS),
    )


def _key(record: StoredMessage) -> HalfIdentity | int:
    """Return the key under which a decision is remembered.

    All copies of a half message with a unique key have the same key.
    """
    return identity_of(record) or record.log_offset
