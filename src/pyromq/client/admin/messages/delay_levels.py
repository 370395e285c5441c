"""`admin.delay_levels`: messages waiting in each delay level.

A level is a queue of the schedule topic: arrival order is delivery order. Every broker of RocketMQ 4.9 supports these
requests. The protocol has no request to cancel a message in a level.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from pyromq.client.admin.brokers import ClusterBrokers
from pyromq.client.admin.messages.delayed_messages import DelayedMessage
from pyromq.client.admin.side_by_side import each_of
from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.pulling import PullRequest, PullStatus, pull
from pyromq.message import MessageQueue, Property, StoredMessage
from pyromq.names import SCHEDULE_TOPIC, TOOLS_GROUP
from pyromq.remoting.bodies import DelayOffsetTable, TopicStats, decode_body
from pyromq.remoting.headers import AllDelayOffsets, BrokerSettings, TopicStatistics
from pyromq.remoting.properties import parse_properties

_UNIT_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True, slots=True)
class DelayLevel:
    """One level of one broker: `waiting` messages, the next one due at `next_due_ms` (ms; None: none waits).

    `delay_ms` comes from the broker's present setting `messageDelayLevel`. Due times are computed with it: messages
    sent before a change of the setting may be delivered at another time.
    """

    broker_name: str
    level: int
    delay_ms: int
    waiting: int
    next_due_ms: int | None


@dataclass(frozen=True, slots=True)
class _Queue:
    """A level's queue: `begin` is the queue offset of the next message to deliver, `end` that of the next to arrive."""

    queue: MessageQueue
    delay_ms: int
    begin: int
    end: int


@checked
class DelayLevels:
    """`admin.delay_levels`: delay levels of all masters."""

    def __init__(self, cluster: ClusterClient, brokers: ClusterBrokers, *, timeout: float) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._timeout = timeout

    async def all(self) -> list[DelayLevel]:
        """Return every level of every broker, in order of level and broker; at most 18 of a broker."""
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
        """Return at most `most` messages of a level, in order of delivery; they have no recall handles."""
        queues = [each for of_broker in await self._queues() for each in of_broker if each.queue.queue_id == level - 1]
        found = await asyncio.gather(*(self._next(each, most) for each in queues))
        return sorted((each for of_broker in found for each in of_broker), key=lambda each: each.due_ms)[:most]

    async def _queues(self) -> list[list[_Queue]]:
        masters = await self._brokers.masters()
        settings = await self._brokers.answers(masters.values(), BrokerSettings())  # without brokers out of reach
        return await each_of(self._queues_at, [each for each in masters.items() if each[1] in settings])

    async def _queues_at(self, master: tuple[str, str]) -> list[_Queue]:
        name, address = master
        settings = parse_properties((await self._brokers.ask(address, BrokerSettings())).body.decode(errors="replace"))
        delays = [_delay_ms(text) for text in settings.get("messageDelayLevel", "").split()]
        delivered = decode_body(DelayOffsetTable, (await self._brokers.ask(address, AllDelayOffsets())).body).offsets
        stats = decode_body(TopicStats, (await self._brokers.ask(address, TopicStatistics(topic=SCHEDULE_TOPIC))).body)
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
                found.append(_delayed(message, queue))
                if len(found) == most:
                    break
        return found

    async def _from(self, queue: _Queue, most: int) -> AsyncGenerator[StoredMessage, None]:
        """Yield the waiting messages of a level's queue; pulls are sized for `most` of them."""
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
    """Return the milliseconds of one delay in `messageDelayLevel`, for example 30s; None if malformed."""
    found = re.fullmatch(r"(\d+)([smhd])", text, re.IGNORECASE)
    return int(found[1]) * _UNIT_MS[found[2].lower()] if found else None


def _delayed(message: StoredMessage, queue: _Queue) -> DelayedMessage:
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
