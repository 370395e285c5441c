"""The life of one message: its events in clients' traces and in the brokers' logs.

Whether a group has consumed the message is computed from the group's offsets. Source: RocketMQ 4.9.8,
DefaultMQAdminExtImpl.messageTrackDetail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pyromq.client.admin.cluster_offsets import ClusterOffsets, QueueProgress
from pyromq.client.admin.messages.dead_letters import ORIGIN_TOPIC, is_redriven
from pyromq.client.admin.messages.message_search import (
    PARKED_IN,
    find_by_key,
    find_copies,
    find_message,
    one_id,
)
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.tracing.trace_records import Consumed, Decided, Delivered, Sent, TraceRecord, read_records
from pyromq.errors import BrokerError, MQError, QueryNotFound, TopicNotFound
from pyromq.message import Property, StoredMessage
from pyromq.names import (
    DEAD_LETTER_PREFIX,
    HALF_TOPIC,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    dead_letter_topic,
    pop_retry_topic,
    retry_topic,
)
from pyromq.plural import counted
from pyromq.remoting.bodies import decode_body
from pyromq.remoting.headers import TopicConsumers

MAX_TRACES = 64  # limit of trace messages read for one message: a broker returns at most 64 for a key
# Events of the same millisecond are in this order: brokers and clients write their times independently.
_RANKS = (
    *(("sent", "not sent"), ("waits",), ("committed", "rolled back", "left open"), ("stored", "redriven")),
    *(("sent back",), ("delivered",), ("failed", "consumed"), ("dead letter",), ("passed", "not yet", "not known")),
)
_RANK = {what: rank for rank, names in enumerate(_RANKS) for what in names}
_DECISIONS = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back", "UNKNOW": "left open"}


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """An event in the life of a message at `time_ms` (ms since 1970; None: unknown). `who` is a group or a broker.

    `what` is sent, not sent, committed, rolled back, left open, stored, waits, delivered, consumed, failed, sent back,
    dead letter, or redriven. For groups judged by their offsets, `what` is passed, not yet, or not known. `record` is
    the message as the broker stored it at this event; None for an event without a stored record.
    """

    time_ms: int | None
    what: str
    who: str
    detail: str = ""
    record: StoredMessage | None = field(default=None, compare=False, repr=False)


async def life_of(
    cluster: ClusterClient,
    offsets: ClusterOffsets,
    message_id: str,
    *,
    topic: str | None,
    trace_topic: str,
    timeout: float,
) -> list[LifeEvent]:
    """Return the events of the message with any of its ids, in order of time; events without a time are last.

    `topic` may also be an internal topic that has a copy of the message. If `topic` is None, the topic is taken from a
    trace, else from the message found. Raises `QueryNotFound` if there is no event.
    """
    records = await _traces(cluster, trace_topic, one_id(message_id), timeout)
    topic = topic or next((each.topic for each in records if isinstance(each, Sent | Decided)), None)
    is_internal = topic is not None and (topic in PARKED_IN or topic.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)))
    found, group = None, None
    if is_internal or not records:
        found = await _found(cluster, message_id, None if topic in PARKED_IN else topic, timeout)
    message_id = one_id(message_id) if found is None else found.message_id
    if found is not None:
        records = records or await _traces(cluster, trace_topic, message_id, timeout)
        topic, group = sent_to(found)
    events = list(_told(records))
    if topic is not None:
        copies = await _copies_in(cluster, topic, message_id, timeout)
        events += [_stored(each) for each in copies]
        parked = {} if found is None or found.topic not in PARKED_IN else {found.offset_message_id: found}
        at_brokers_of = topic if copies or found is None or found.topic in PARKED_IN else found.topic
        for internal in PARKED_IN:
            for each in await _copies_in(cluster, internal, message_id, timeout, at_brokers_of=at_brokers_of):
                parked[each.offset_message_id] = each
        events += [_waiting(each) for each in parked.values()]
        groups = {each.group for each in records if isinstance(each, Delivered | Consumed) and each.group}
        groups |= {*await _groups(cluster, topic), *([group] if group else [])}
        done = [
            _of_group(cluster, offsets, name, topic, (*copies, *parked.values()), message_id, timeout)
            for name in sorted(groups)
        ]
        for of_group in await asyncio.gather(*done):
            events += of_group
    if not events:
        raise QueryNotFound(f"message {message_id!r} is neither in topic {topic} nor in trace topic {trace_topic}")
    return sorted(events, key=_order)


def sent_to(message: StoredMessage) -> tuple[str, str | None]:
    """Return the topic to which the application sent a message, and the group of its retry or dead-letter topic.

    A dead letter that does not name its original topic counts as sent to its dead-letter topic.
    """
    topic = message.topic
    if topic in PARKED_IN:
        topic = message.properties.get(Property.REAL_TOPIC, topic)
    for prefix in (RETRY_PREFIX, DEAD_LETTER_PREFIX):
        if topic.startswith(prefix):
            properties, group = message.properties, topic.removeprefix(prefix)
            origin = properties.get(Property.RETRY_TOPIC) or properties.get(ORIGIN_TOPIC) or topic
            if prefix == RETRY_PREFIX and Property.FIRST_POP_TIME in properties:
                group = group.removesuffix(pop_retry_topic("", origin).removeprefix(RETRY_PREFIX))
            return origin, group
    return topic, None


def _order(event: LifeEvent) -> tuple[bool, int, int]:
    """Return the sort key of an event: by time, events without a time last."""
    is_retry = event.what == "waits" and event.record is not None and sent_to(event.record)[1] is not None
    return event.time_ms is None, event.time_ms or 0, _RANK.get("dead letter" if is_retry else event.what, 0)


async def _found(cluster: ClusterClient, message_id: str, topic: str | None, timeout: float) -> StoredMessage | None:
    """Return the message with this id; None if a given topic does not have it, as with a half message."""
    try:
        return await find_message(cluster, message_id, topic, timeout=timeout)
    except QueryNotFound:
        if topic is None:
            raise
        return None


async def _traces(cluster: ClusterClient, trace_topic: str, message_id: str, timeout: float) -> list[TraceRecord]:
    try:
        found = await find_by_key(
            cluster, trace_topic, message_id, max_count=MAX_TRACES, between=(0, None), timeout=timeout
        )
    except TopicNotFound:
        return []
    records = [record for message in found for record in read_records(message.body)]
    return [record for record in dict.fromkeys(records) if message_id in record.message_id.split(",")]


def _told(records: list[TraceRecord]) -> Iterator[LifeEvent]:
    """Yield the events in trace records. Data missing in a listener call's end record comes from its begin record."""
    begun = {each.request_id: each for each in records if isinstance(each, Delivered)}
    for record in records:
        match record:
            case Sent():
                took = f"in {record.cost_ms} ms"
                kind = "" if not record.message_type else f", {record.message_type.name.lower()} message"
                where = f" to {record.store_host}" if record.store_host else ""
                what = "sent" if record.success else "not sent"
                yield LifeEvent(record.started_ms, what, record.group, f"{took}{where}{kind}")
            case Delivered():
                yield LifeEvent(record.started_ms, "delivered", record.group, _attempt(record.retries))
            case Consumed():
                begin = begun.get(record.request_id)
                ended_ms = record.ended_ms or (begin.started_ms + record.cost_ms if begin is not None else None)
                group = record.group or (begin.group if begin is not None else "")
                what, why = "consumed", ""
                if not record.success:
                    what, why = "failed", f", {record.code.name.lower().replace('_', ' ')}"
                yield LifeEvent(ended_ms, what, group, f"in {record.cost_ms} ms{why}")
            case Decided():
                asked = ", as the broker asked" if record.from_check else ""
                what = _DECISIONS.get(record.state, record.state)
                yield LifeEvent(record.decided_ms, what, record.group, f"at {record.store_host}{asked}")


def _stored(message: StoredMessage) -> LifeEvent:
    place = f"queue {message.queue_id}, offset {message.queue_offset}"
    what = "redriven" if is_redriven(message) else "stored"
    return LifeEvent(message.store_ms, what, message.broker_name, f"{place}, {message.size} bytes", message)


def _waiting(message: StoredMessage) -> LifeEvent:
    """Return the event of a message stored in an internal topic; the message may have been delivered since."""
    properties = message.properties
    if message.topic == HALF_TOPIC:
        producers = properties.get(Property.PRODUCER_GROUP, "")
        return LifeEvent(message.store_ms, "waits", producers, "for its decision", message)
    real_topic = properties.get(Property.REAL_TOPIC, "")
    who = real_topic.removeprefix(RETRY_PREFIX) if real_topic.startswith(RETRY_PREFIX) else message.broker_name
    level = properties.get(Property.DELAY)
    detail = f"in delay level {level}" if message.topic == SCHEDULE_TOPIC else "for its time"
    return LifeEvent(message.store_ms, "waits", who, detail + _reason(message), message)


async def _groups(cluster: ClusterClient, topic: str) -> list[str]:
    """Return the groups that consume a topic now, or have offsets in the topic; none for a deleted topic."""
    try:
        route = await cluster.route(topic)
    except TopicNotFound:
        return []
    masters = [address for name in route.addresses if (address := route.master(name)) is not None]
    question = TopicConsumers(topic=topic)
    answers = (await cluster.ask_reachable(masters, lambda address: cluster.ask(address, question))).values()
    return sorted({name for each in answers for name in decode_body(question.reply_body, each.check().body).groups})


async def _of_group(
    cluster: ClusterClient,
    offsets: ClusterOffsets,
    group: str,
    topic: str,
    stored: Sequence[StoredMessage],
    message_id: str,
    timeout: float,
) -> list[LifeEvent]:
    """Return a message's events in a group: sent back, redriven, dead letter, and whether its offset is committed.

    `stored` are the copies of the message in its topic and in internal topics. The offset is not compared if the latest
    copy is a dead letter or waits for its next attempt.
    """
    retried = await _copies_in(cluster, retry_topic(group), message_id, timeout)
    retried += await _copies_in(cluster, pop_retry_topic(group, topic), message_id, timeout)
    dead = await _copies_in(cluster, dead_letter_topic(group), message_id, timeout)
    events = [_of_retry(group, each) for each in retried]
    events += [
        LifeEvent(
            each.store_ms,
            "dead letter",
            group,
            f"after {counted(each.reconsume_times, 'attempt')}{_reason(each)}",
            each,
        )
        for each in dead
    ]
    own = [each for each in stored if each.topic not in PARKED_IN or sent_to(each)[1] == group]
    last = max((*own, *retried, *dead), key=lambda each: (each.store_ms, each.log_offset), default=None)
    if last is None or last in dead or last.topic in PARKED_IN:
        return events
    try:
        progress = {each.queue: each for each in await offsets.group_progress(group, partial=True)}
    except MQError as error:
        return [*events, LifeEvent(None, "not known", group, str(error))]
    at = progress.get(last.queue)
    return events if at is None else [*events, _by_offset(group, last, at)]


def _of_retry(group: str, message: StoredMessage) -> LifeEvent:
    if is_redriven(message):
        return LifeEvent(message.store_ms, "redriven", group, "a copy of its dead letter", message)
    detail = f"{_attempt(message.reconsume_times)} to come{_reason(message)}"
    return LifeEvent(message.store_ms, "sent back", group, detail, message)


def _by_offset(group: str, copy: StoredMessage, at: QueueProgress) -> LifeEvent:
    if at.consumer_offset > copy.queue_offset:
        return LifeEvent(None, "passed", group, f"its offset {at.consumer_offset} is behind the message")
    in_flight = f"; in its queue {counted(at.in_flight, 'is', 'are')} in flight" if at.in_flight else ""
    before = counted(copy.queue_offset - at.consumer_offset, "message is", "messages are")
    return LifeEvent(None, "not yet", group, f"{before} before it{in_flight}")


async def _copies_in(
    cluster: ClusterClient, topic: str, message_id: str, timeout: float, *, at_brokers_of: str | None = None
) -> list[StoredMessage]:
    try:
        return await find_copies(cluster, topic, message_id, timeout=timeout, at_brokers_of=at_brokers_of)
    except BrokerError:  # the topic is deleted, or was never made
        return []


def _attempt(retries: int) -> str:
    return f"attempt {retries + 1}"


def _reason(message: StoredMessage) -> str:
    reason = message.properties.get(Property.RETRY_REASON)
    return f": {reason}" if reason else ""
