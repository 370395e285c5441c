"""Replies to requests: what a consumer sends back to the one client that waits for it.

Source: RocketMQ 4.9.8, MessageUtil.createReplyMessage.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.routes import Route
from pyromq.client.producer.pending_send import check_body
from pyromq.clock import Clock
from pyromq.errors import MQError, Unavailable, UsageError
from pyromq.message import MessageQueue, Property, StoredMessage, encode_properties
from pyromq.names import AUTO_CREATE_TOPIC, INNER_PRODUCER_GROUP, REPLY_SUFFIX
from pyromq.remoting.headers import SendReplyMessageV2

REPLY_SECONDS = 3.0  # per broker. Source: DefaultMQProducer.sendMsgTimeout
MAX_BODY_BYTES = 4 << 20


class Replies:
    """Sends replies for one consumer."""

    def __init__(self, cluster: ClusterClient, clock: Clock) -> None:
        self._cluster = cluster
        self._clock = clock

    async def send(self, request: StoredMessage, body: bytes) -> None:
        """Hand `body` to the client that sent `request`: true when this returns.

        Raises `UsageError` for a message that is no request, `IllegalMessage` for a body that cannot be sent, and a
        `BrokerError` or `Unavailable` when no broker reaches the client: it does not wait any more.
        """
        check_body(body, MAX_BODY_BYTES)
        topic, text = _reply_topic(request), _reply_properties(request)
        failure: MQError = Unavailable(f"no broker takes messages for topic {topic!r} now")
        for queue, address in _places(await self._cluster.route(topic), request.broker_name):
            order = SendReplyMessageV2(
                producer_group=INNER_PRODUCER_GROUP,
                topic=topic,
                default_topic=AUTO_CREATE_TOPIC,
                default_topic_queue_count=4,
                queue_id=queue.queue_id,
                sys_flag=0,
                born_ms=self._clock.now_ms(),
                flag=0,
                properties=text,
                reconsume_times=0,
                unit_mode=False,
                batch=False,
            )
            try:
                (await self._cluster.ask(address, order, body, timeout=REPLY_SECONDS)).check()
            except MQError as error:
                failure = error
            else:
                return
        raise failure


def _reply_topic(request: StoredMessage) -> str:
    cluster = request.properties.get(Property.CLUSTER)
    if not cluster or Property.REPLY_TO_CLIENT not in request.properties:
        raise UsageError(
            f"message {request.message_id} is no request, nobody waits for a reply: it has no {Property.CLUSTER} or "
            f"no {Property.REPLY_TO_CLIENT}"
        )
    return cluster + REPLY_SUFFIX


def _reply_properties(request: StoredMessage) -> str:
    names = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)
    copied = {name: request.properties[name] for name in names if name in request.properties}
    return encode_properties({**copied, Property.MESSAGE_TYPE: "reply"})


def _places(route: Route, first: str) -> Iterator[tuple[MessageQueue, str]]:
    """Yield a queue and the address of each broker, one after the other: the request's own knows the client best."""
    queues = {queue.broker_name: queue for queue in route.writable}
    for broker_name in sorted(queues, key=lambda name: (name != first, name)):
        address = route.master(broker_name)
        if address is not None:
            yield queues[broker_name], address
