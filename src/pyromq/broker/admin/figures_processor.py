"""Answers a request for the totals of all topics and groups in one reply, for consoles that show all of them."""

from __future__ import annotations

from pyromq.broker.consuming.lags import Lag, Lags, StoreTimes
from pyromq.broker.shared_state import SharedState
from pyromq.net.slow_replies import in_pieces
from pyromq.remoting.bodies import (
    ConsumedTopicFigures,
    FiguresTable,
    GroupFigures,
    TopicConfig,
    TopicFigures,
)
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import BrokerFigures
from pyromq.slow_work import yield_slice


class FiguresProcessor:
    """Sums the figures of queues: the reply has one entry per topic and per group, not one per queue."""

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._groups = state.groups
        self._offsets = state.offsets
        self._in_flight = state.pops.in_flight
        self._connections = state.connections
        self._times = StoreTimes(state.store)
        self._lags = Lags(state.store, state.offsets, self._times)
        self._clock = state.clock

    @answers(BrokerFigures)
    async def figures(self, header: BrokerFigures, call: Call) -> Reply:
        """Return the totals of every topic and group, built-in ones included, sorted by name."""
        self._times.begin_round()
        topics = []
        for topic in sorted(self._topics, key=lambda each: each.name):
            topics.append(await self._topic(topic))
            await yield_slice()
        groups = []
        enabled = {group.name: group.consume_enabled for group in self._groups}
        of_groups = self._offsets.topics_by_group()
        for name in sorted(enabled.keys() | of_groups.keys()):  # groups without settings may have offsets
            progress = await self._in_topics(name, of_groups.get(name, set()))
            groups.append(self._group(name, progress, enabled=enabled.get(name, True)))
        return await in_pieces(FiguresTable(topics=topics, groups=groups))

    async def _topic(self, topic: TopicConfig) -> TopicFigures:
        """Return a topic's totals, over all its queues.

        Queues that are no longer read count too: their messages still exist.
        """
        name, messages, sent = topic.name, 0, 0
        last: dict[int, int] = {}
        for queue_id in range(max(topic.read_queues, topic.write_queues)):
            end = self._store.max_offset(name, queue_id)
            if end:
                sent += end
                messages += end - self._store.min_offset(name, queue_id)
                last[queue_id] = end - 1
        stored_ms: dict[int, int] = {}
        await self._times.read(name, last, stored_ms)
        last_ms = max(stored_ms.values(), default=0)
        return TopicFigures(
            name, topic.read_queues, topic.write_queues, topic.permission, topic.order, messages, sent, last_ms
        )

    async def _in_topics(self, group: str, names: set[str]) -> list[ConsumedTopicFigures]:
        found = []
        for name in sorted(names):
            topic = self._topics.find(name)
            if topic is not None and self._connections.subscribes(group, name):
                found.append(await self._progress(group, topic))
            await yield_slice()
        return found

    def _group(self, name: str, progress: list[ConsumedTopicFigures], *, enabled: bool) -> GroupFigures:
        consumers = self._connections.consumers(name)
        return GroupFigures(
            name,
            members=[each.client_id for each in consumers.members] if consumers is not None else [],
            differs=consumers is not None and not consumers.subscribes_alike(),
            enabled=enabled,
            topics=progress,
        )

    async def _progress(self, group: str, topic: TopicConfig) -> ConsumedTopicFigures:
        lag, stored = Lag(group, topic.name), self._offsets.of_topic(group, topic.name)
        await self._lags.fill(lag, topic.read_queues)
        consumed = sum(stored.get(queue_id, 0) for queue_id in range(topic.read_queues))
        in_flight = self._in_flight.count_of(group, topic.name)
        return ConsumedTopicFigures(topic.name, consumed, lag.count, lag.age_ms(self._clock.now_ms()), in_flight)
