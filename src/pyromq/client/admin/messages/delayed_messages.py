"""Counts, lists and cancels scheduled messages.

`ClusterDelayLevels` shows the messages in delay levels. A delay level is one queue of the schedule topic, so its
messages are in order of delivery. Every broker of RocketMQ 4.9 supports these requests. No request cancels a message in
a delay level.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass

from pyromq.client.admin.admin_client import AdminClient, ClusterBrokers, each_of
from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.pulling import PullRequest, PullStatus, pull
from pyromq.client.producer.async_producer import recall
from pyromq.errors import CodeNotSupported, RecallRefused
from pyromq.message import MessageQueue, Property, StoredMessage
from pyromq.names import SCHEDULE_TOPIC, TOOLS_GROUP
from pyromq.remoting.bodies import DelayOffsetTable, ListedTimer, TimerCounts, TimerList, TopicStats, decode_body
from pyromq.remoting.command import Response
from pyromq.remoting.headers import AllDelayOffsets, CountTimers, ListTimers, TopicStatistics
from pyromq.remoting.recall_handle import is_recall_handle

PAGE = 500  # scheduled messages listed per request
MAX_COMPARED = 100_000  # limit of scheduled messages searched for an id: 200 requests, some seconds


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A scheduled message with its delivery time `due_ms`; times are ms since 1970.

    `sent_ms` is the time of its arrival at the broker, `size` the bytes of its body. `message_id` is the producer's
    unique id, `recall_handle` cancels the message; both are None for messages without an id. `offset_message_id` is
    None if the broker does not send it.
    """

    topic: str
    broker_name: str
    queue_id: int
    due_ms: int
    sent_ms: int
    size: int
    message_id: str | None
    recall_handle: str | None
    tags: str | None
    keys: list[str]
    offset_message_id: str | None = None


@checked
class AsyncDelayedMessages(AdminClient):
    """Counts, lists and cancels scheduled messages, for programs with an event loop.

        async with AsyncDelayedMessages() as delayed_messages:
            async for message in delayed_messages.waiting("reminders"):
                print(message.due_ms, message.message_id)

    `namesrv`, `connections` and `instance` are as for `AsyncAdmin`; `timeout` is seconds per request. Entering raises
    `NoNameServer` immediately if no name server can be reached. Methods raise `CodeNotSupported` with brokers of
    RocketMQ 4, which have no such messages. Brokers of RocketMQ 5 support only `counts`.
    """

    async def counts(self) -> dict[str, int]:
        """Return the number of scheduled messages by topic, sorted; topics without scheduled messages are left out."""
        return await count_waiting(self._cluster, timeout=self._timeout)

    def waiting(self, topic: str, *, begin_ms: int = 0) -> AsyncGenerator[DelayedMessage, None]:
        """Yield a topic's messages that are due at `begin_ms` (ms since 1970) or later, in order of delivery.

        Messages sent, delivered or cancelled during the iteration may be missing or included.
        """
        return list_waiting(self._cluster, topic, begin_ms=begin_ms, timeout=self._timeout)

    async def cancel(self, recall_handle: str) -> str:
        """Cancel a message and return its unique id, as `AsyncProducer.cancel` does.

        The unique id or offset id is accepted, too: up to 100,000 scheduled messages are searched for this id.
        """
        if is_recall_handle(recall_handle):
            return await recall(self._cluster, recall_handle, timeout=self._timeout)
        found = await find_waiting(self._cluster, recall_handle.strip(), timeout=self._timeout)
        if found is None or found.recall_handle is None:
            raise RecallRefused(
                f"no message with id {recall_handle!r:.80} waits for its time: it was delivered or cancelled,"
                " waits in a delay level, or is unknown"
            )
        return await recall(self._cluster, found.recall_handle, timeout=self._timeout)


async def count_waiting(cluster: ClusterClient, *, timeout: float) -> dict[str, int]:
    """Return the number of scheduled messages by topic, sorted; brokers out of reach are left out.

    Raises `Unavailable` if no broker can be reached.
    """
    total: Counter[str] = Counter()
    names = {address: name for name, address in (await cluster.masters()).items()}
    answers = await cluster.ask_reachable(
        names, lambda address: _ask(cluster, names[address], address, CountTimers(), timeout)
    )
    for response in answers.values():
        for topic, each in decode_body(TimerCounts, response.body).counts.items():
            total[topic] += each.count
    return {topic: total[topic] for topic in sorted(total) if total[topic]}


async def list_waiting(
    cluster: ClusterClient, topic: str, *, begin_ms: int = 0, timeout: float
) -> AsyncGenerator[DelayedMessage, None]:
    """Yield a topic's scheduled messages that are due at `begin_ms` (ms since 1970) or later, in order of delivery.

    Brokers out of reach are left out and logged. Raises `Unavailable` if no broker can be reached.
    """
    async with AsyncExitStack() as stack:
        names = {address: name for name, address in (await cluster.masters()).items()}
        sources = {
            address: await stack.enter_async_context(
                aclosing(_waiting_at(cluster, (name, address), topic, begin_ms, timeout))
            )
            for address, name in names.items()
        }
        firsts = await cluster.ask_reachable(sources, lambda address: anext(sources[address], None))
        heads = [(first, sources[address]) for address, first in firsts.items()]
        while ahead := [(first.due_ms, number) for number, (first, _) in enumerate(heads) if first is not None]:
            first, source = heads[min(ahead)[1]]
            assert first is not None
            yield first
            heads[min(ahead)[1]] = (await anext(source, None), source)


async def find_waiting(
    cluster: ClusterClient, message_id: str, topic: str | None = None, *, due_ms: int = 0, timeout: float
) -> DelayedMessage | None:
    """Return the scheduled message with this unique id or offset id; None if it is not found.

    Up to 100,000 scheduled messages of `topic`, or of all topics, are compared. With `due_ms` (ms since 1970), only
    messages with this delivery time are compared.
    """
    compared = 0
    for each in await count_waiting(cluster, timeout=timeout) if topic is None else [topic]:
        async with aclosing(list_waiting(cluster, each, begin_ms=due_ms, timeout=timeout)) as waiting:
            async for message in waiting:
                if message_id == message.message_id or message_id.upper() == message.offset_message_id:
                    return message
                compared += 1
                if compared == MAX_COMPARED or (due_ms and message.due_ms > due_ms):
                    return None
    return None


async def _waiting_at(
    cluster: ClusterClient, broker: tuple[str, str], topic: str, begin_ms: int, timeout: float
) -> AsyncGenerator[DelayedMessage, None]:
    place: int | None = begin_ms
    after = -1
    while place is not None:
        question = ListTimers(topic=topic, count=PAGE, begin_ms=place, after=after)
        page = decode_body(TimerList, (await _ask(cluster, *broker, question, timeout)).body)
        for entry in page.timers:
            yield _delayed(broker[0], entry)
        place, after = page.next_ms, page.next_after


async def _ask(
    cluster: ClusterClient, name: str, address: str, question: CountTimers | ListTimers, timeout: float
) -> Response:
    response = await cluster.ask(address, question, timeout=timeout)
    try:
        return response.check()
    except CodeNotSupported as error:
        what = "list" if isinstance(question, ListTimers) else "count"
        raise CodeNotSupported(f"broker {name} at {address} does not {what} messages that wait") from error


def _delayed(broker_name: str, entry: ListedTimer) -> DelayedMessage:
    return DelayedMessage(
        entry.topic,
        broker_name,
        entry.queue_id,
        entry.due_ms,
        entry.sent_ms,
        entry.size,
        entry.message_id,
        entry.recall_handle,
        entry.tags,
        (entry.keys or "").split(),
        entry.offset_message_id,
    )


_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """One delay level of one broker: `waiting` messages, the next one due at `next_due_ms` (ms since 1970; None: none).

    `delay_ms` comes from the broker's present setting `messageDelayLevel`. Due times are computed with this delay:
    messages sent before a change of the setting may be delivered at another time.
    """

    broker_name: str
    level: int
    delay_ms: int
    waiting: int
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class _Queue:
    """The queue of one delay level; `begin` and `end` are queue offsets.

    `begin` is that of the next message to deliver, `end` that of the next message to arrive.
    """

    queue: MessageQueue
    delay_ms: int
    begin: int
    end: int


@checked
class ClusterDelayLevels:
    """The object `admin.delay_levels`: shows the delay levels of all masters."""

    def __init__(self, cluster: ClusterClient, brokers: ClusterBrokers, *, timeout: float) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._timeout = timeout

    async def all(self) -> list[DelayLevel]:
        """Return every delay level of every broker, sorted by level and broker."""
        queues = [queue for of_broker in await self._queues() for queue in of_broker]
        firsts = await each_of(self._first, queues)
        levels = [
            DelayLevel(
                each.queue.broker_name,
                each.queue.queue_id + 1,
                each.delay_ms,
                max(each.end - each.begin, 0),
                None if first is None else first.store_ms + each.delay_ms,
            )
            for each, first in zip(queues, firsts, strict=True)
        ]
        return sorted(levels, key=lambda each: (each.level, each.broker_name))

    async def waiting(self, level: int, most: int = 50) -> list[DelayedMessage]:
        """Return at most `most` messages of a level, in order of delivery; recall handles are None."""
        queues = [each for of_broker in await self._queues() for each in of_broker if each.queue.queue_id == level - 1]
        found = await asyncio.gather(*(self._next(each, most) for each in queues))
        return sorted((each for of_broker in found for each in of_broker), key=lambda each: each.due_ms)[:most]

    async def _queues(self) -> list[list[_Queue]]:
        masters = await self._brokers.masters()
        found = await self._cluster.ask_reachable(masters.values(), self._brokers.settings)
        return await each_of(self._queues_at, [(name, at, found[at]) for name, at in masters.items() if at in found])

    async def _queues_at(self, master: tuple[str, str, dict[str, str]]) -> list[_Queue]:
        name, address, settings = master
        delays = [_delay_ms(text) for text in settings.get("messageDelayLevel", "").split()]
        delivered = (await self._brokers.read(address, AllDelayOffsets(), DelayOffsetTable)).offsets
        stats = await self._brokers.read(address, TopicStatistics(topic=SCHEDULE_TOPIC), TopicStats)
        bounds = {queue.queue_id: each for queue, each in stats.queues.items()}
        return [
            _Queue(
                MessageQueue(SCHEDULE_TOPIC, name, number),
                delay_ms,
                max(delivered.get(number + 1, 0), bounds[number].min_offset),
                bounds[number].max_offset,
            )
            for number, delay_ms in enumerate(delays)
            if number in bounds and delay_ms is not None
        ]

    async def _first(self, queue: _Queue) -> StoredMessage | None:
        async with aclosing(self._from(queue, 1)) as messages:
            return await anext(messages, None)

    async def _next(self, queue: _Queue, most: int) -> list[DelayedMessage]:
        found: list[DelayedMessage] = []
        async with aclosing(self._from(queue, most)) as messages:
            async for message in messages:
                found.append(_delayed_in_level(message, queue))
                if len(found) == most:
                    break
        return found

    async def _from(self, queue: _Queue, most: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the undelivered messages of a level's queue; `most` only sets the size of the pulls."""
        offset = queue.begin
        while offset < queue.end:
            request = PullRequest(min(most, 32), timeout=self._timeout, verify=False)
            result = await pull(self._cluster, TOOLS_GROUP, queue.queue, offset, request=request)
            for message in result.messages:
                yield message
            if result.next_offset <= offset or result.status is PullStatus.NO_NEW_MESSAGE:
                return
            offset = result.next_offset


def _delay_ms(text: str) -> int | None:
    """Return the milliseconds of one delay in `messageDelayLevel`, for example `30s`; None for another form."""
    found = re.fullmatch(r"(\d+)([smhd])", text, re.IGNORECASE)
    return int(found[1]) * _UNIT_MS[found[2].lower()] if found else None


def _delayed_in_level(message: StoredMessage, queue: _Queue) -> DelayedMessage:
    properties = message.properties
    queue_id = properties.get(Property.REAL_QUEUE_ID, "")
    return DelayedMessage(
        properties.get(Property.REAL_TOPIC, ""),
        queue.queue.broker_name,
        int(queue_id) if queue_id.isdecimal() else 0,
        message.store_ms + queue.delay_ms,
        message.store_ms,
        len(message.stored_body),
        properties.get(Property.UNIQUE_KEY),
        None,
        message.tags,
        message.keys,
        message.offset_message_id,
    )
