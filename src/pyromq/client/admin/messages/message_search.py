"""Finding single messages in a cluster: by offset id, by unique id, by key.

One whose body is damaged is found as well, for rescue: a warning tells of it, and `is_damaged` is true.
"""

from __future__ import annotations

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.pulling import PullRequest, pull
from pyromq.errors import BrokerError, QueryNotFound, Unavailable
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage
from pyromq.message_id import parse_offset_id
from pyromq.names import TOOLS_GROUP
from pyromq.record import decode, decode_all
from pyromq.remoting.headers import QueryMessage, ViewMessage

logger = logger_of(__name__)

MAX_PER_BROKER = 64  # what a broker gives at most. Source: MessageStoreConfig.maxMsgsNumBatch
FOR_EVER_MS = (1 << 63) - 1


async def find_by_offset_id(cluster: ClusterClient, message_id: str, *, timeout: float) -> StoredMessage:
    """Return the message a broker's id points at. Raises `QueryNotFound`, `UsageError`, `Unavailable`."""
    place = parse_offset_id(message_id)
    hint = "if it is the producer's unique id, give its topic too"
    try:
        response = await cluster.ask(place.address, ViewMessage(offset=place.log_offset), timeout=timeout)
        message = decode(response.check().body)
    except Unavailable as error:
        raise Unavailable(f"message id {message_id} points at broker {place.address}: {error}; {hint}") from error
    except BrokerError as error:
        raise QueryNotFound(f"no message has id {message_id}: {error}; {hint}") from error
    return _looked_at([message])[0]


async def find_by_unique_id(
    cluster: ClusterClient, topic: str, message_id: str, *, timeout: float
) -> StoredMessage | None:
    """Return the message with a producer's id, the first stored if a retry stored it twice; None if there is none."""
    copies = await find_copies(cluster, topic, message_id, timeout=timeout)
    return min(copies, key=lambda message: message.store_ms, default=None)


async def find_copies(
    cluster: ClusterClient, topic: str, message_id: str, *, timeout: float, at_brokers_of: str | None = None
) -> list[StoredMessage]:
    """Return all messages of a topic with a producer's id, as retries store it several times; 64 of each broker.

    `at_brokers_of` names a topic whose brokers are asked, for topics that have no route.
    """
    question = QueryMessage(
        topic=topic,
        key=message_id,
        max_count=MAX_PER_BROKER,
        begin_ms=0,
        end_ms=FOR_EVER_MS,
        by_unique_key=True,
    )
    found = await _ask_brokers(cluster, question, timeout=timeout, route_topic=at_brokers_of or topic)
    return _looked_at([message for message in found if message.message_id == message_id])


async def find_at(cluster: ClusterClient, queue: MessageQueue, offset: int, *, timeout: float) -> StoredMessage:
    """Return the message at a queue offset. Raises `QueryNotFound`."""
    request = PullRequest(max_count=1, timeout=timeout, verify=False)
    found = (await pull(cluster, TOOLS_GROUP, queue, offset, request=request)).messages
    if not found or found[0].queue_offset != offset:
        raise QueryNotFound(f"{queue} has no message at offset {offset}")
    return _looked_at(found[:1])[0]


async def find_by_key(
    cluster: ClusterClient,
    topic: str,
    key: str,
    *,
    max_count: int,
    between: tuple[int, int | None],
    timeout: float,
) -> list[StoredMessage]:
    """Return the messages that carry a key, stored `between` two times (ms; None: no end), newest first."""
    begin_ms, end_ms = between
    question = QueryMessage(
        topic=topic,
        key=key,
        max_count=min(max_count, MAX_PER_BROKER),
        begin_ms=begin_ms,
        end_ms=FOR_EVER_MS if end_ms is None else end_ms,
    )
    found = await _ask_brokers(cluster, question, timeout=timeout, route_topic=topic)
    # The index knows hashes of keys only.
    matching = [message for message in found if key in message.keys or key == message.message_id]
    return sorted(_looked_at(matching), key=lambda message: (message.store_ms, message.log_offset), reverse=True)


def _looked_at(messages: list[StoredMessage]) -> list[StoredMessage]:
    """Return the messages; those that are not what was stored are told."""
    for message in messages:
        if message.is_damaged:
            logger.warning(
                "damaged message %s in topic %s, queue %d, queue offset %d, log offset %d: its body does not match its"
                " checksum",
                message.message_id,
                message.topic,
                message.queue_id,
                message.queue_offset,
                message.log_offset,
            )
    return messages


async def _ask_brokers(
    cluster: ClusterClient, question: QueryMessage, *, timeout: float, route_topic: str
) -> list[StoredMessage]:
    found = []
    route = await cluster.route(route_topic)
    for broker_name in sorted(route.addresses):
        address = route.replica(broker_name)
        if address is None:
            continue
        response = await cluster.ask(address, question, timeout=timeout)
        try:
            messages = decode_all(response.check().body)
        except QueryNotFound:
            continue
        for message in messages:
            message.broker_name = broker_name
        found += messages
    return found
