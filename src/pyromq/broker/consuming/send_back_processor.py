"""Answers consumers that send a message back: the message is redelivered later, and finally becomes a dead letter.

Source: RocketMQ 4.9.8, SendMessageProcessor.asyncConsumerSendMsgBack.
"""

from __future__ import annotations

import random

from pyromq.broker.members.consumer_groups import max_tries
from pyromq.broker.shared_state import SharedState
from pyromq.broker.topics import FAQ
from pyromq.errors import BrokerError, GroupNotFound, MessageRefused, NoPermission, StoreError
from pyromq.message import NAME_VALUE, PAIRS, Property, StoredMessage, encode_properties
from pyromq.names import dead_letter_topic, retry_topic
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.remoting.bodies import GroupConfig
from pyromq.remoting.codes import UNIT_SUBSCRIPTION, Permission
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import Outcome, answers
from pyromq.remoting.headers import SendMessageBack

FIRST_LEVEL = 3  # delay level of the first retry, 10 s; each further retry waits one level longer
MAX_REASON = 1_000  # limit of a failed listener's reason (characters), stored with the message
_NO_SEPARATORS = str.maketrans({NAME_VALUE: " ", PAIRS: " "})


class SendBackProcessor:
    """Stores copies of messages that a consumer sends back: in the group's retry topic, or as dead letters."""

    def __init__(self, state: SharedState) -> None:
        self._put_message = state.put_message
        self._delay_levels = state.delay_levels
        self._admission = state.admission
        self._confirmation = state.confirmation
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._statistics = state.statistics

    @answers(SendMessageBack)
    def send_back(self, header: SendMessageBack, call: Call) -> Outcome:
        """Store a copy of the message, to be redelivered to the group.

        Nothing is stored for a group without retry queues: such a group wants no retries. Unlike upstream, the reply
        waits for the flush like the reply to a send, since the consumer commits past the message.
        """
        group = self._group(header, call)
        if group.retry_queues <= 0:
            return Reply()
        self._check_retry_topic(header, group)
        self._confirmation.refuse_if_overloaded()
        self._store.residency.need_record(header.offset)
        message = self._store.message_at(header.offset, check_crc=False)  # no CRC check: the copy has the same bytes
        if message is None:
            raise BrokerError(f"look message by offset failed, {header.offset}")
        if message.reconsume_times >= max_tries(group, header, call) or header.delay_level < 0:
            level = 0
            topic = self._topics.for_group_retry(dead_letter_topic(group.name), 1).name
            queue_id = 0
        else:
            level = header.delay_level or FIRST_LEVEL + message.reconsume_times
            topic = retry_topic(group.name)
            queue_id = random.randrange(group.retry_queues)
        properties = _properties(header, message, level)
        self._append(_copy(message, topic, queue_id), properties)
        self._statistics.count_send_back(properties[Property.RETRY_TOPIC], group.name)
        return self._confirmation.when_safe(Reply())

    def _group(self, header: SendMessageBack, call: Call) -> GroupConfig:
        group = self._groups.find(header.group, call.peer)
        if group is None:
            raise GroupNotFound(f"subscription group not exist, {header.group} {FAQ}")
        self._admission.check_writable()
        return group

    def _check_retry_topic(self, header: SendMessageBack, group: GroupConfig) -> None:
        sys_flag = UNIT_SUBSCRIPTION if header.unit_mode else 0
        topic = self._topics.for_group_retry(retry_topic(group.name), group.retry_queues, sys_flag=sys_flag)
        if not topic.permission & Permission.WRITE:
            raise NoPermission(f"the topic[{topic.name}] sending message is forbidden")

    def _append(self, message: StoredMessage, properties: dict[str, str]) -> None:
        """Store the copy, delayed if it has a delay level. Raises only `BrokerError`: consumers expect code 1."""
        try:
            message.property_text = encode_properties(properties)
            self._delay_levels.divert(message, properties)
            self._put_message.put(message)
        except MessageRefused as error:
            raise BrokerError(f"MESSAGE_ILLEGAL: {error}") from error
        except StoreError as error:
            raise BrokerError(f"SERVICE_NOT_AVAILABLE: {error}") from error


def _properties(header: SendMessageBack, message: StoredMessage, level: int) -> dict[str, str]:
    """Return the copy's properties: the message's own, its original topic and id, its delay level, the reason."""
    properties = dict(message.properties)
    properties.setdefault(Property.RETRY_TOPIC, message.topic)
    properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.offset_message_id)
    properties[Property.WAIT] = "false"
    properties[Property.DELAY] = str(level)
    room = len(message.property_text) < MAX_PROPERTIES_SIZE // 8  # with any reason added, still below the limit
    if header.reason and room and (reason := header.reason.translate(_NO_SEPARATORS).strip()):
        properties[Property.RETRY_REASON] = reason[:MAX_REASON]
    return properties


def _copy(message: StoredMessage, topic: str, queue_id: int) -> StoredMessage:
    return StoredMessage(
        topic,
        message.stored_body,
        "",
        queue_id,
        message.flag,
        message.sys_flag,
        message.born_ms,
        message.born_address,
        message.reconsume_times + 1,
    )
