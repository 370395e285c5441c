"""Tells of pulls from where a queue has no messages: a message in topic OFFSET_MOVED_EVENT for each, as upstream.

Who pulls there again and again writes one a second and queue, not one each time: the log is not a stranger's to fill.
Source: RocketMQ 4.9.8, PullMessageProcessor.generateOffsetMovedEvent.
"""

from __future__ import annotations

from pyromq.broker.put_message import PutMessage
from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import logger_of
from pyromq.message import Message, MessageQueue, StoredMessage, encode_properties, pack_address
from pyromq.names import OFFSET_MOVED_TOPIC
from pyromq.remoting.bodies import OffsetMoved, WireQueue, encode_body
from pyromq.remoting.headers import PullMessage

logger = logger_of(__name__)

PAUSE_SECONDS = 1.0
MOST_REMEMBERED = 10_000  # queues and groups; beyond that all are forgotten


class OffsetMovedEvents:
    """Writes the events of one broker."""

    def __init__(self, put_message: PutMessage, broker_name: str, clock: Clock) -> None:
        self._put_message = put_message
        self._broker_name = broker_name
        self._clock = clock
        self._told: dict[tuple[str, str, int], float] = {}

    def tell(self, header: PullMessage, new_offset: int) -> None:
        """A group has pulled where nothing is, and is told to go on at `new_offset`. The pull never fails by it."""
        key, now = (header.consumer_group, header.topic, header.queue_id), self._clock.monotonic()
        if now - self._told.get(key, -PAUSE_SECONDS) < PAUSE_SECONDS:
            return
        if len(self._told) >= MOST_REMEMBERED:
            self._told.clear()
        self._told[key] = now
        queue = MessageQueue(header.topic, self._broker_name, header.queue_id)
        event = OffsetMoved(header.consumer_group, WireQueue.of(queue), header.queue_offset, new_offset)
        try:
            self._put_message.put(self._message(header.consumer_group, encode_body(event)))
        except MQError as error:
            logger.warning("the moved offset of group %s in %s is not told: %s", header.consumer_group, queue, error)

    def _message(self, group: str, body: bytes) -> StoredMessage:
        properties = Message(OFFSET_MOVED_TOPIC, body, tags=group, keys=group).all_properties()
        return StoredMessage(
            OFFSET_MOVED_TOPIC,
            body,
            encode_properties(properties),
            born_ms=self._clock.now_ms(),
            born_address=pack_address("127.0.0.1", 0),
        )
