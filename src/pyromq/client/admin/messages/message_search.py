"""Finds single messages in a cluster by offset id, unique id or key.

A message with a damaged body is returned with `is_damaged` set, and a warning is logged.
"""

from __future__ import annotations

from contextlib import suppress

from pyromq.client.admin.admin_client import each_of
from pyromq.client.admin.messages.delayed_messages import find_waiting
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.known_masters import MASTER
from pyromq.client.consumer.pulling import PullRequest, pull
from pyromq.errors import AccessDenied, BrokerError, CodeNotSupported, MQError, QueryNotFound, Unavailable, UsageError
from pyromq.logs import logger_of
from pyromq.message import MessageQueue, StoredMessage
from pyromq.message_id import is_offset_id, parse_offset_id
from pyromq.names import HALF_TOPIC, SCHEDULE_TOPIC, TIMER_TOPIC, TOOLS_GROUP
from pyromq.record import decode, decode_all
from pyromq.remoting.bodies import ClusterTable, TopicList, decode_body
from pyromq.remoting.headers import BrokerClusterInfo, QueryMessage, TopicNames, ViewMessage
from pyromq.remoting.recall_handle import decode_handle, is_recall_handle

logger = logger_of(__name__)

MAX_PER_BROKER = 64  # limit of messages in a broker's response. Source: MessageStoreConfig.maxMsgsNumBatch
FOR_EVER_MS = (1 << 63) - 1
PARKED_IN = (TIMER_TOPIC, SCHEDULE_TOPIC, HALF_TOPIC)  # internal topics of messages that are not delivered yet


async def find_message(
    cluster: ClusterClient, message_id: str, topic: str | None = None, *, timeout: float
) -> StoredMessage:
    """Return the message with this unique id, offset id or recall handle.

    A unique id is searched in `topic`, or without `topic` in all topics of all brokers. Of several copies the one
    stored first is returned. A scheduled or half message is returned as stored in its internal topic. Raises
    `QueryNotFound`, `Unavailable`, and `UsageError` for the joined ids of a batch.
    """
    unique_id = one_id(message_id)
    if topic is not None and (copies := await find_copies(cluster, topic, unique_id, timeout=timeout)):
        return _first(copies)
    not_there: MQError = QueryNotFound(
        f"no message of {f'topic {topic}' if topic else 'any topic'} has id {unique_id!r}"
    )
    if is_offset_id(unique_id):
        try:
            return await find_by_offset_id(cluster, unique_id, timeout=timeout)
        except (QueryNotFound, Unavailable) as error:
            not_there = error
    if topic is None and (copies := await _find_in_all_topics(cluster, unique_id, timeout=timeout)):
        return _first(copies)
    if (parked := await _find_waiting(cluster, message_id, topic, timeout=timeout)) is not None:
        return parked
    raise not_there


def one_id(text: str) -> str:
    """Return a message id without surrounding blanks; for a recall handle, the unique id in it.

    Raises `UsageError` for an empty string, and for several ids joined by commas.
    """
    text = text.strip()
    if not text:
        raise UsageError("the message id is empty; give a unique id, an offset id or a recall handle")
    if "," in text:
        raise UsageError(f"message id {text!r:.80} joins the ids of a batch; give one of them")
    return decode_handle(text).unique_key if is_recall_handle(text) else text


async def _find_waiting(
    cluster: ClusterClient, message_id: str, topic: str | None, *, timeout: float
) -> StoredMessage | None:
    """Return a scheduled message, which no key index contains; None if it is not found."""
    due_ms = 0
    if is_recall_handle(message_id):
        topic, _, due_ms, message_id = decode_handle(message_id)
    try:
        found = await find_waiting(cluster, message_id.strip(), topic, due_ms=due_ms, timeout=timeout)
    except (CodeNotSupported, AccessDenied):  # a Java broker, or an account without the right to list
        return None
    if found is None or found.offset_message_id is None:
        return None
    message = await find_by_offset_id(cluster, found.offset_message_id, timeout=timeout)
    message.broker_name = found.broker_name
    return message


def _first(copies: list[StoredMessage]) -> StoredMessage:
    return min(copies, key=lambda message: (message.topic in PARKED_IN, message.store_ms, message.reconsume_times))


async def find_by_offset_id(cluster: ClusterClient, message_id: str, *, timeout: float) -> StoredMessage:
    """Return the message with an offset id. Raises `QueryNotFound`, `UsageError` or `Unavailable`."""
    place = parse_offset_id(message_id)
    try:
        message = await _view(cluster, place.address, place.log_offset, timeout=timeout)
    except Unavailable as error:
        found = await _view_at_successor(cluster, message_id, timeout=timeout)
        if found is None:
            raise Unavailable(f"message id {message_id} points at broker {place.address}: {error}") from error
        message = found
    except BrokerError as error:
        raise QueryNotFound(f"no message has id {message_id}: {error}") from error
    return _looked_at([message])[0]


async def _view(cluster: ClusterClient, address: str, log_offset: int, *, timeout: float) -> StoredMessage:
    response = await cluster.ask(address, ViewMessage(offset=log_offset), timeout=timeout)
    return decode(response.check().body)


async def _view_at_successor(cluster: ClusterClient, message_id: str, *, timeout: float) -> StoredMessage | None:
    """Return the message with the offset id of a former master: the replicas of a set have the same log.

    The name server does not know a dead replica's set, so the masters of all sets are asked. None if none has it.
    """
    log_offset = parse_offset_id(message_id).log_offset
    for name, broker in sorted((await cluster.cluster_table()).brokers.items()):
        address = cluster.routes.believed(broker).get(MASTER)
        if broker.failover and address is not None:
            with suppress(MQError):
                message = await _view(cluster, address, log_offset, timeout=timeout)
                if message.offset_message_id == message_id.upper():
                    message.broker_name = name
                    return message
    return None


async def find_copies(
    cluster: ClusterClient, topic: str, message_id: str, *, timeout: float, at_brokers_of: str | None = None
) -> list[StoredMessage]:
    """Return all messages of a topic with this unique id, at most 64 of each broker. A producer's retry stores copies.

    `at_brokers_of` names another topic whose brokers are asked, for internal topics without a route.
    """
    question = _by_unique_id(topic, message_id)
    found = await _ask_brokers(cluster, question, timeout=timeout, route_topic=at_brokers_of or topic)
    return _looked_at([message for message in found if message.message_id == message_id])


async def _find_in_all_topics(cluster: ClusterClient, message_id: str, *, timeout: float) -> list[StoredMessage]:
    """Return all messages with a unique id, in any topic. If there is none, raises the first refusal of a broker."""
    table = decode_body(ClusterTable, (await cluster.name_servers.ask(BrokerClusterInfo())).check().body)
    topics = decode_body(TopicList, (await cluster.name_servers.ask(TopicNames())).check().body).topics
    brokers = [(name, min(each.addresses.items())[1]) for name, each in sorted(table.brokers.items()) if each.addresses]
    refused: list[MQError] = []

    async def look(place: tuple[str, str, str]) -> list[StoredMessage]:
        topic, broker_name, address = place
        try:
            question = _by_unique_id(topic, message_id)
            return await _ask_broker(cluster, question, broker_name, address, timeout=timeout)
        except MQError as error:
            refused.append(error)
            return []

    places = [(topic, *broker) for topic in sorted({*topics, *PARKED_IN}) for broker in brokers]
    found = [message for messages in await each_of(look, places) for message in messages]
    found = [message for message in found if message.message_id == message_id]
    if not found and refused:
        raise refused[0]
    return _looked_at(found)


def _by_unique_id(topic: str, message_id: str) -> QueryMessage:
    return QueryMessage(
        topic=topic,
        key=message_id,
        max_count=MAX_PER_BROKER,
        begin_ms=0,
        end_ms=FOR_EVER_MS,
        by_unique_key=True,
    )


async def find_at(cluster: ClusterClient, queue: MessageQueue, offset: int, *, timeout: float) -> StoredMessage:
    """Return the message at a queue offset. Raises `QueryNotFound` if there is none."""
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
    at_brokers_of: str | None = None,
) -> list[StoredMessage]:
    """Return the messages with a key, stored `between` two times (ms since 1970; None: no end), newest first.

    `at_brokers_of` names another topic whose brokers are asked, for internal topics without a route.
    """
    begin_ms, end_ms = between
    question = QueryMessage(
        topic=topic,
        key=key,
        max_count=min(max_count, MAX_PER_BROKER),
        begin_ms=begin_ms,
        end_ms=FOR_EVER_MS if end_ms is None else end_ms,
    )
    found = await _ask_brokers(cluster, question, timeout=timeout, route_topic=at_brokers_of or topic)
    # A broker's index has hashes of keys only, so other keys may match.
    matching = [message for message in found if key in message.keys or key == message.message_id]
    return sorted(_looked_at(matching), key=lambda message: (message.store_ms, message.log_offset), reverse=True)


def _looked_at(messages: list[StoredMessage]) -> list[StoredMessage]:
    """Return `messages`, and log a warning for each damaged one."""
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
    """Return the messages that the brokers of a topic found.

    If there is none and a broker is out of reach, raises `Unavailable`.
    """
    route = await cluster.route(route_topic)
    replicas = {route.replica(name): name for name in sorted(route.addresses)}
    names = {address: name for address, name in replicas.items() if address is not None}
    answers = await cluster.ask_reachable(
        names, lambda address: _ask_broker(cluster, question, names[address], address, timeout=timeout)
    )
    found = [message for messages in answers.values() for message in messages]
    if not found and (silent := names.keys() - answers.keys()):
        raise Unavailable(f"no message was found, and broker {', '.join(sorted(silent))} cannot be reached")
    return found


async def _ask_broker(
    cluster: ClusterClient, question: QueryMessage, broker_name: str, address: str, *, timeout: float
) -> list[StoredMessage]:
    response = await cluster.ask(address, question, timeout=timeout)
    try:
        messages = decode_all(response.check().body)
    except QueryNotFound:
        return []
    for message in messages:
        message.broker_name = broker_name
    return messages
