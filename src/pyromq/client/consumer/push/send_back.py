"""Sends failed messages back to the broker, which redelivers them later or makes them dead letters.

The broker that stored the message is asked first. If that request fails, a copy is sent to the group's retry topic.
Source: RocketMQ 4.9.8, DefaultMQPushConsumerImpl.sendMessageBack.
"""

from __future__ import annotations

import random

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.push.listener import TO_DEAD_LETTERS
from pyromq.clock import Clock
from pyromq.errors import MQError, Unavailable
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, Property, StoredMessage
from pyromq.names import retry_topic
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.remoting.headers import SendMessageBack

logger = logger_of(__name__)

SEND_BACK_SECONDS = 5.0
MAX_RETRIES = 16  # limit if the group's settings name none. Source: DefaultMQPushConsumerImpl.getMaxReconsumeTimes
FIRST_RETRY_LEVEL = 3  # delay level of the first retry: 10 s; each further retry waits one level longer


class SendBack:
    """Sends back messages of one group. After `max_retries` retries they become dead letters.

    If `max_retries` is None, the group's setting at the broker counts.
    """

    def __init__(self, group: str, cluster: ClusterClient, clock: Clock, *, max_retries: int | None) -> None:
        self._group = group
        self._cluster = cluster
        self._clock = clock
        self._max_retries = max_retries
        # Limit of retries for copies of messages: the broker reads the limit from the copy.
        self._retry_limit = MAX_RETRIES if max_retries is None else max_retries

    async def give_back(self, message: StoredMessage, queue: MessageQueue, delay_level: int, reason: str) -> None:
        """Have a message redelivered after the time of `delay_level` (0: longer with each attempt; -1: dead letter).

        The message was pulled from `queue`. A broker has stored the message for redelivery when this method returns.
        Raises `MQError` if neither its broker nor the retry topic accepts the message.
        """
        try:
            await self._ask_broker(message, queue, delay_level, reason)
        except MQError as error:
            logger.info(
                "group %s: %s was not accepted by its broker, a copy is sent: %s",
                self._group,
                message.message_id,
                error,
            )
            if delay_level == TO_DEAD_LETTERS or message.reconsume_times >= self._retry_limit:
                await self.make_dead_letter(message, reason)
            else:
                level = delay_level or FIRST_RETRY_LEVEL + message.reconsume_times
                await self._send_copy(message, message.reconsume_times + 1, level, reason)

    async def make_dead_letter(self, message: StoredMessage, reason: str) -> None:
        """Make a message a dead letter by sending a copy. Raises `MQError` if no broker accepts it."""
        await self._send_copy(message, max(message.reconsume_times, 1), TO_DEAD_LETTERS, reason)

    async def _ask_broker(self, message: StoredMessage, queue: MessageQueue, delay_level: int, reason: str) -> None:
        order = SendMessageBack(
            offset=message.log_offset,
            group=self._group,
            delay_level=delay_level,
            origin_message_id=message.message_id,
            origin_topic=self._cluster.names.wrap(message.topic),
            max_reconsume_times=self._max_retries,
            broker_name=queue.broker_name,
            reason=reason or None,
        )
        (await self._cluster.ask_master(queue, order, timeout=SEND_BACK_SECONDS)).check()

    async def _send_copy(self, message: StoredMessage, attempts: int, delay_level: int, reason: str) -> None:
        """Send a copy with its attempts to the retry topic; the broker delays it or makes it a dead letter."""
        topic = retry_topic(self._group)
        route = await self._cluster.route(topic)
        if not route.writable:
            raise Unavailable(f"no broker takes messages for topic {topic!r} now")
        queue = random.choice(route.writable)  # any broker, because the message's own broker has just failed
        properties = _copied_properties(message, delay_level, reason)
        properties[Property.RETRY_TOPIC] = self._cluster.names.wrap(message.original_topic)
        properties[Property.RECONSUME_TIME] = str(attempts)
        properties[Property.MAX_RECONSUME_TIMES] = str(self._retry_limit)
        # The broker makes a message with this number of attempts a dead letter.
        most = attempts if delay_level == TO_DEAD_LETTERS else attempts + 1
        await self._cluster.send_copy(
            queue,
            message,
            properties,
            born_ms=self._clock.now_ms(),
            attempts=attempts,
            max_attempts=most,
            timeout=SEND_BACK_SECONDS,
        )


def _copied_properties(message: StoredMessage, delay_level: int, reason: str) -> dict[str, str]:
    properties = dict(message.properties)
    properties.pop(Property.TRANSACTION, None)
    properties.pop(Property.DELAY, None)
    properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.message_id)
    # As at brokers: the copy must not become too large.
    if reason and len(message.property_text) < MAX_PROPERTIES_SIZE // 8:
        properties[Property.RETRY_REASON] = reason
    if delay_level != TO_DEAD_LETTERS:  # a dead letter is not delayed. Source: RocketMQ 5
        properties[Property.DELAY] = str(delay_level)
    return properties
