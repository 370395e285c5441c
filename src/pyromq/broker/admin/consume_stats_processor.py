"""Answers requests for bounds of queues and for the progress of groups in topics, from tools that show lag.

A topic may have thousands of queues, so reading runs in slices between other requests. A thread loads records that are
not in memory.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from pyromq.broker.consuming.lags import read_store_times
from pyromq.broker.shared_state import SharedState
from pyromq.errors import TopicNotFound
from pyromq.message import MessageQueue
from pyromq.net.slow_replies import in_pieces
from pyromq.remoting.bodies import (
    ConsumedQueue,
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    GroupList,
    QueueTimeSpan,
    TopicConfig,
    TopicOffset,
    TopicStats,
    WireQueue,
)
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    BrokerConsumeStatistics,
    ConsumeStatistics,
    ConsumeTimeSpan,
    TopicConsumers,
    TopicStatistics,
)
from pyromq.slow_work import yield_slice
from pyromq.store.queue.reading import Place

Asked = tuple[int, int]  # queue id and queue offset of one message of a topic


class ConsumeStatsProcessor:
    """Answers with figures of one topic, one group or all groups. Times are ms since 1970; an unknown time is 0."""

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._in_flight = state.pops.in_flight
        self._connections = state.connections
        self._statistics = state.statistics
        self._config = state.config
        self._clock = state.clock

    @answers(TopicStatistics)
    async def topic(self, header: TopicStatistics, call: Call) -> Reply:
        return await in_pieces(await self._of_topic(self._known(header.topic)))

    @answers(ConsumeStatistics)
    async def group(self, header: ConsumeStatistics, call: Call) -> Reply:
        """Return the group's progress in one topic, or in all topics with offsets of the group.

        An unknown group has no progress.
        """
        names = {header.topic} if header.topic else self._offsets.topics_of(header.consumer_group)
        tps, queues = 0.0, {}
        for topic in self._consumed(header.consumer_group, names):
            stats = await self._of_group(header.consumer_group, topic)
            tps += stats.consume_tps
            queues.update(stats.queues)
        return await in_pieces(ConsumeStats(consume_tps=tps, queues=queues))

    @answers(BrokerConsumeStatistics)
    async def all_groups(self, header: BrokerConsumeStatistics, call: Call) -> Reply:
        """Return each group's progress by topic. If the request's `order` is set, only ordered topics are included."""
        listed, lag = [], 0
        topics_by_group = self._offsets.topics_by_group()
        for group in list(self._groups):
            progress = []
            for topic in self._consumed(group.name, topics_by_group.get(group.name, set())):
                if topic.order or not header.order:
                    stats = await self._of_group(group.name, topic)
                    lag += sum(queue.broker_offset - queue.consumer_offset for queue in stats.queues.values())
                    progress.append(stats)
            listed.append({group.name: progress})
            await yield_slice()
        address = self._config.advertised_address
        return await in_pieces(ConsumeStatsList(broker_address=address, groups=listed, total_lag=lag))

    @answers(ConsumeTimeSpan)
    async def times(self, header: ConsumeTimeSpan, call: Call) -> Reply:
        """Return store times and the group's delay (ms) for each write queue.

        These are the store times of the queue's first, last consumed and last message.
        """
        topic = self._known(header.topic)
        spans = [await self._span(header.group, topic, queue_id) for queue_id in range(topic.write_queues)]
        return await in_pieces(ConsumeTimeSpans(spans=spans))

    @answers(TopicConsumers)
    async def consumers(self, header: TopicConsumers, call: Call) -> Reply:
        """Return the groups whose members subscribe to the topic, and the groups with offsets in the topic."""
        groups = self._offsets.groups_of(header.topic)
        for group in list(self._connections.consumer_groups()):
            if header.topic in group.subscriptions:
                groups.add(group.name)
            await yield_slice()
        return await in_pieces(GroupList(groups=sorted(groups)))

    def _known(self, name: str) -> TopicConfig:
        topic = self._topics.find(name)
        if topic is None:
            raise TopicNotFound(f"topic[{name}] not exist")
        return topic

    def _consumed(self, group: str, names: set[str]) -> Iterator[TopicConfig]:
        for name in sorted(names):
            topic = self._topics.find(name)
            if topic is not None and self._connections.subscribes(group, name):
                yield topic

    async def _of_topic(self, topic: TopicConfig) -> TopicStats:
        """Return for each write queue of the topic its bounds and the store time of its last message."""
        ends = {}
        for queue_id in range(topic.write_queues):
            ends[queue_id] = self._store.max_offset(topic.name, queue_id)
            await yield_slice()
        stored_ms = await self._stored_ms(topic, [(queue_id, end - 1) for queue_id, end in ends.items()])
        queues = {}
        for queue_id, end in ends.items():
            queues[self._queue(topic, queue_id)] = TopicOffset(
                min_offset=self._store.min_offset(topic.name, queue_id),
                max_offset=end,
                last_update_ms=stored_ms.get((queue_id, end - 1), 0),
            )
            await yield_slice()
        return TopicStats(queues=queues)

    async def _of_group(self, group: str, topic: TopicConfig) -> ConsumeStats:
        """Return for each read queue of the topic the group's offset and the end of the queue."""
        offsets = {}
        for queue_id in range(topic.read_queues):
            offsets[queue_id] = self._offsets.find(group, topic.name, queue_id) or 0
            await yield_slice()
        stored_ms = await self._stored_ms(topic, [(queue_id, offset - 1) for queue_id, offset in offsets.items()])
        queues = {}
        for queue_id, offset in offsets.items():
            popped = self._in_flight.find(group, topic.name, queue_id)
            queues[self._queue(topic, queue_id)] = ConsumedQueue(
                broker_offset=self._store.max_offset(topic.name, queue_id),
                consumer_offset=offset,
                last_ms=stored_ms.get((queue_id, offset - 1), 0),
                next_offset=None if popped is None else popped.next_offset,
                in_flight=None if popped is None else popped.in_flight,
            )
            await yield_slice()
        return ConsumeStats(consume_tps=self._statistics.group_rate(topic.name, group), queues=queues)

    async def _span(self, group: str, topic: TopicConfig, queue_id: int) -> QueueTimeSpan:
        begin, end = self._store.min_offset(topic.name, queue_id), self._store.max_offset(topic.name, queue_id)
        offset = self._offsets.find(group, topic.name, queue_id) or 0
        asked = [(queue_id, each) for each in (begin, end - 1, offset - 1, offset)]
        stored_ms = await self._stored_ms(topic, asked)
        first_ms, last_ms = stored_ms.get((queue_id, begin), -1), stored_ms.get((queue_id, end - 1), 0)
        consumed_ms = stored_ms.get((queue_id, offset - 1), 0) if offset > 0 else first_ms
        next_ms = stored_ms.get((queue_id, offset), 0) if offset < end else 0
        return QueueTimeSpan(
            queue=WireQueue.of(self._queue(topic, queue_id)),
            min_ms=first_ms,
            max_ms=last_ms,
            consumed_ms=consumed_ms,
            min_text=_text(first_ms),
            max_text=_text(last_ms),
            consumed_text=_text(consumed_ms),
            delay_ms=max(0, self._clock.now_ms() - next_ms) if next_ms else 0,
        )

    async def _stored_ms(self, topic: TopicConfig, asked: Iterable[Asked]) -> dict[Asked, int]:
        """Return the store times (ms since 1970) of these messages; messages that do not exist are omitted."""
        known: dict[Asked, Place] = {}
        for queue_id, offset in asked:
            await yield_slice()
            if (place := self._store.reading.place(topic.name, queue_id, offset)) is not None:
                known[queue_id, offset] = place
        found: dict[Asked, int] = {}
        await read_store_times(self._store, known, found)
        return found

    def _queue(self, topic: TopicConfig, queue_id: int) -> MessageQueue:
        return MessageQueue(topic.name, self._config.name, queue_id)


def _text(milliseconds: int) -> str:
    """Return a time (ms since 1970) as local time in upstream's form: `yyyy-MM-dd#HH:mm:ss:SSS`."""
    local = time.localtime(milliseconds / 1000)
    return time.strftime("%Y-%m-%d#%H:%M:%S", local) + f":{milliseconds % 1000:03d}"
