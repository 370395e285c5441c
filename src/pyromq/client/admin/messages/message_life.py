"""The life of one message: its events in clients' traces and in the brokers' logs.

Whether a group has consumed the message is computed from the group's offsets. Source: RocketMQ 4.9.8,
DefaultMQAdminExtImpl.messageTrackDetail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

from pyromq.client.admin.cluster_offsets import ClusterOffsets, QueueProgress
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
from pyromq.names import HALF_TOPIC, RETRY_PREFIX, SCHEDULE_TOPIC, dead_letter_topic, retry_topic
from pyromq.plural import counted
from pyromq.remoting.bodies import decode_body
from pyromq.remoting.headers import TopicConsumers

MOST_TRACES = 64  # limit of trace messages read for one message: a broker returns at most 64 for a key
_DECISIONS = {"COMMIT_MESSAGE": "committed", "ROLLBACK_MESSAGE": "rolled back", "UNKNOW": "left open"}


@dataclass(frozen=True, slots=True)
class LifeEvent:
    """An event in the life of a message at `time_ms` (ms since 1970; None: unknown). `who` is a group or a broker.

    `what` is sent, not sent, committed, rolled back, left open, stored, waits, delivered, consumed, failed, sent back,
    or dead letter. For groups judged by their offsets, `what` is passed, not yet, or not known.
    """

    time_ms: int | None
    what: str
    who: str
    detail: str = ""


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

    If `topic` is None, the topic is taken from a trace, else from the message found. Raises `QueryNotFound` if there is
    no event.
    """
    records = await _traces(cluster, trace_topic, one_id(message_id), timeout)
    topic = topic or next((each.topic for each in records if isinstance(each, Sent | Decided)), None)
    found = None if records else await _found(cluster, message_id, topic, timeout)
    message_id = one_id(message_id) if found is None else found.message_id
    if found is not None:
        records = await _traces(cluster, trace_topic, message_id, timeout)
        topic = topic or found.properties.get(Property.REAL_TOPIC, found.original_topic)
    events = list(_told(records))
    if topic is not None:
        copies = await find_copies(cluster, topic, message_id, timeout=timeout)
        events += [_stored(each) for each in copies]
        parked = {} if found is None or found.topic not in PARKED_IN else {found.offset_message_id: found}
        for internal in PARKED_IN:
            for each in await find_copies(cluster, internal, message_id, timeout=timeout, at_brokers_of=topic):
                parked[each.offset_message_id] = each
        events += [_waiting(each) for each in parked.values()]
        done = [
            _of_group(cluster, offsets, name, copies, message_id, timeout) for name in await _groups(cluster, topic)
        ]
        for of_group in await asyncio.gather(*done):
            events += of_group
    if not events:
        raise QueryNotFound(f"message {message_id!r} is neither in topic {topic} nor in trace topic {trace_topic}")
    return sorted(events, key=lambda event: (event.time_ms is None, event.time_ms or 0))


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
            cluster, trace_topic, message_id, max_count=MOST_TRACES, between=(0, None), timeout=timeout
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
    return LifeEvent(message.store_ms, "stored", message.broker_name, f"{place}, {message.size} bytes")


def _waiting(message: StoredMessage) -> LifeEvent:
    """Return the event of a message stored in an internal topic; the message may have been delivered since."""
    properties = message.properties
    if message.topic == HALF_TOPIC:
        return LifeEvent(message.store_ms, "waits", properties.get(Property.PRODUCER_GROUP, ""), "for its decision")
    real_topic = properties.get(Property.REAL_TOPIC, "")
    who = real_topic.removeprefix(RETRY_PREFIX) if real_topic.startswith(RETRY_PREFIX) else message.broker_name
    level = properties.get(Property.DELAY)
    detail = f"in delay level {level}" if message.topic == SCHEDULE_TOPIC else "for its time"
    return LifeEvent(message.store_ms, "waits", who, detail + _reason(message))


async def _groups(cluster: ClusterClient, topic: str) -> list[str]:
    """Return the groups that consume a topic now, or have offsets in the topic, sorted."""
    route = await cluster.route(topic)
    masters = [address for name in route.addresses if (address := route.master(name)) is not None]
    question = TopicConsumers(topic=topic)
    answers = (await cluster.ask_reachable(masters, lambda address: cluster.ask(address, question))).values()
    return sorted({name for each in answers for name in decode_body(question.reply_body, each.check().body).groups})


async def _of_group(
    cluster: ClusterClient,
    offsets: ClusterOffsets,
    group: str,
    copies: list[StoredMessage],
    message_id: str,
    timeout: float,
) -> list[LifeEvent]:
    """Return a message's events in a group: sent back, dead letter, and whether its offset has passed the message."""
    retried = await _copies_in(cluster, retry_topic(group), message_id, timeout)
    dead = await _copies_in(cluster, dead_letter_topic(group), message_id, timeout)
    events = [
        LifeEvent(each.store_ms, "sent back", group, f"{_attempt(each.reconsume_times)} to come{_reason(each)}")
        for each in retried
    ]
    events += [
        LifeEvent(
            each.store_ms, "dead letter", group, f"after {counted(each.reconsume_times, 'attempt')}{_reason(each)}"
        )
        for each in dead
    ]
    if dead or not copies:
        return events
    try:
        progress = {each.queue: each for each in await offsets.group_progress(group, partial=True)}
    except MQError as error:
        return [*events, LifeEvent(None, "not known", group, str(error))]
    last = max((*copies, *retried), key=lambda each: each.store_ms)
    at = progress.get(last.queue)
    return events if at is None else [*events, _by_offset(group, last, at)]


def _by_offset(group: str, copy: StoredMessage, at: QueueProgress) -> LifeEvent:
    if at.consumer_offset > copy.queue_offset:
        return LifeEvent(None, "passed", group, f"its offset {at.consumer_offset} is behind the message")
    return LifeEvent(None, "not yet", group, f"{copy.queue_offset - at.consumer_offset} messages are before it")


async def _copies_in(cluster: ClusterClient, topic: str, message_id: str, timeout: float) -> list[StoredMessage]:
    try:
        return await find_copies(cluster, topic, message_id, timeout=timeout)
    except (TopicNotFound, BrokerError):
        return []


def _attempt(retries: int) -> str:
    return f"attempt {retries + 1}"


def _reason(message: StoredMessage) -> str:
    reason = message.properties.get(Property.RETRY_REASON)
    return f": {reason}" if reason else ""
