"""Overviews of all topics or groups: messages, rates, lag.

Each topic, group, or pair of topic and group takes a request; a limited number run in parallel. A thousand topics take
a second or two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pyromq.client.admin.admin_client import ClusterBrokers, each_of
from pyromq.client.admin.servers import Servers
from pyromq.client.arguments import checked
from pyromq.errors import CodeNotSupported, TopicNotFound
from pyromq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX
from pyromq.remoting.bodies import (
    BrokerStats,
    ConsumedTopicFigures,
    ConsumeStats,
    ConsumeTimeSpans,
    FiguresTable,
    GroupConfigTable,
    GroupFigures,
    GroupList,
    TopicConfigTable,
    TopicFigures,
    TopicStats,
)
from pyromq.remoting.headers import (
    AllGroups,
    AllTopics,
    BrokerFigures,
    ConsumeTimeSpan,
    TopicConsumers,
    TopicStatistics,
)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class TopicOverview:
    """A topic in the whole cluster. `last_store_ms` is the store time of its latest message (0: no message)."""

    topic: str
    brokers: list[str]
    queues: int
    messages: int
    last_store_ms: int


@dataclass(frozen=True, slots=True)
class GroupOverview:
    """A group in the whole cluster. `lag` is the number of messages not consumed.

    `delay_seconds` is the age of the oldest message not consumed, 0 if there is none.
    """

    group: str
    members: int
    lag: int
    delay_seconds: float


@dataclass(frozen=True, slots=True)
class TopicRates:
    """Messages stored in a topic and consumed by one of its groups; `group` is None for a topic without groups.

    `..._per_second` are rates of the last minute, `..._day` are numbers of messages in the last 24 hours.
    """

    topic: str
    group: str | None
    lag: int
    in_per_second: float
    out_per_second: float
    in_day: int
    out_day: int


@checked
class Overviews:
    """The object `admin.overviews`. Its methods call `shown` with the number of finished items."""

    def __init__(self, brokers: ClusterBrokers, servers: Servers) -> None:
        self._brokers = brokers
        self._servers = servers

    async def topics(self, *, shown: Callable[[int], None] | None = None) -> list[TopicOverview]:
        """Return an overview of each topic, by name, reserved ones included; brokers out of reach are left out."""
        at: dict[str, dict[str, str]] = {}
        masters = await self._brokers.masters()
        tables = await self._brokers.read_each(masters.values(), AllTopics(), TopicConfigTable, partial=True)
        for broker, address in masters.items():
            if address in tables:
                for topic in tables[address].topics:
                    at.setdefault(topic, {})[broker] = address

        async def look(topic: str) -> TopicOverview:
            stats = [await self._stats(address, topic) for address in at[topic].values()]
            queues = [queue for each in stats for queue in each.queues.values()]
            return TopicOverview(
                topic,
                brokers=sorted(at[topic]),
                queues=len(queues),
                messages=sum(queue.max_offset - queue.min_offset for queue in queues),
                last_store_ms=max((queue.last_update_ms for queue in queues), default=0),
            )

        return await each_of(look, sorted(at), shown)

    async def groups(self, *, shown: Callable[[int], None] | None = None) -> list[GroupOverview]:
        """Return an overview of each group, by name, built-in ones included; brokers out of reach are left out."""
        addresses = (await self._brokers.masters()).values()
        tables = await self._brokers.read_each(addresses, AllGroups(), GroupConfigTable, partial=True)
        masters = list(tables)
        progress: dict[str, dict[str, list[ConsumeStats]]] = {}
        for address, table in tables.items():
            for group in table.groups:
                progress.setdefault(group, {})
            for listed in (await self._servers.progress(address)).groups:
                for group, stats in listed.items():
                    progress.setdefault(group, {})[address] = stats

        async def look(group: str) -> GroupOverview:
            members = {each.client_id for address in masters for each in await self._brokers.members(address, group)}
            lag, delay_ms = 0, 0
            for address, stats in progress[group].items():
                for each in stats:
                    lag += _lag(each)
                    if _lag(each):
                        topic = next(iter(each.queues)).topic
                        delay_ms = max(delay_ms, await self._delay_ms(address, group, topic))
            return GroupOverview(group, len(members), lag, delay_ms / 1000)

        return await each_of(look, sorted(progress), shown)

    async def figures(self, address: str) -> FiguresTable:
        """Return the figures of all topics and groups of the broker at `host:port`.

        A broker of pyromq needs one request. A Java broker needs one per topic, and connected members and delays are 0.
        """
        try:
            return await self._brokers.read(address, BrokerFigures(), FiguresTable)
        except CodeNotSupported:
            return await self._figures_one_by_one(address)

    async def _figures_one_by_one(self, address: str) -> FiguresTable:
        configs = (await self._brokers.read(address, AllTopics(), TopicConfigTable)).topics

        async def look(name: str) -> TopicFigures:
            config, queues = configs[name], (await self._stats(address, name)).queues.values()
            return TopicFigures(
                name,
                config.read_queues,
                config.write_queues,
                config.permission,
                config.order,
                messages=sum(each.max_offset - each.min_offset for each in queues),
                sent=sum(each.max_offset for each in queues),
                last_store_ms=max((each.last_update_ms for each in queues), default=0),
            )

        table = (await self._brokers.read(address, AllGroups(), GroupConfigTable)).groups
        groups = {name: GroupFigures(name, enabled=each.consume_enabled) for name, each in table.items()}
        for listed in (await self._servers.progress(address)).groups:
            for group, stats in listed.items():
                known = groups.setdefault(group, GroupFigures(group))
                groups[group] = msgspec.structs.replace(
                    known, topics=[_consumed(each) for each in stats if each.queues]
                )
        return FiguresTable(await each_of(look, sorted(configs)), [groups[name] for name in sorted(groups)])

    async def rates(
        self, topic: str | None = None, *, active_only: bool = False, shown: Callable[[int], None] | None = None
    ) -> list[TopicRates]:
        """Return the rates of a topic, or of all topics, with one row for each of its groups.

        Brokers out of reach are left out. With `active_only`, only rows with traffic in the last 24 hours are returned.
        Source: RocketMQ 4.9.8, StatsAllSubCommand.
        """
        addresses = (await self._brokers.masters()).values()
        tables = await self._brokers.read_each(addresses, AllTopics(), TopicConfigTable, partial=True)
        masters = list(tables)
        names: set[str] = set()
        behind: dict[tuple[str, str], int] = {}
        for address, table in tables.items():
            names |= table.topics.keys()
            for listed in (await self._servers.progress(address)).groups:
                for group, stats in listed.items():
                    for queue, each in ((queue, at) for all_of in stats for queue, at in all_of.queues.items()):
                        key = queue.topic, group
                        behind[key] = behind.get(key, 0) + each.broker_offset - each.consumer_offset
        if topic is not None and topic not in names:
            raise TopicNotFound(f"topic {topic} does not exist")
        wanted = [topic] if topic is not None else sorted(n for n in names if not n.startswith(_OF_GROUPS))

        async def look(name: str) -> list[TopicRates]:
            into = await self._totals(masters, "TOPIC_PUT_NUMS", name)
            groups: set[str] = set()
            for address in masters:
                groups |= set((await self._brokers.read(address, TopicConsumers(topic=name), GroupList)).groups)
            rows = []
            for group in sorted(groups):
                out = await self._totals(masters, "GROUP_GET_NUMS", f"{name}@{group}")
                rows.append(
                    TopicRates(name, group, max(behind.get((name, group), 0), 0), into[0], out[0], into[1], out[1])
                )
            return rows or [TopicRates(name, None, 0, into[0], 0.0, into[1], 0)]

        found = [row for rows in await each_of(look, wanted, shown) for row in rows]
        return [row for row in found if not active_only or row.in_day or row.out_day]

    async def _totals(self, masters: Iterable[str], name: str, key: str) -> tuple[float, int]:
        """Return a counter's rate in the last minute and its sum in the last day, each added up over all masters."""
        stats = [found for each in masters if (found := await self._servers.statistic(each, name, key)) is not None]
        return sum(each.minute.tps for each in stats), sum(day_sum(each) for each in stats)

    async def _stats(self, address: str, topic: str) -> TopicStats:
        try:
            return await self._brokers.read(address, TopicStatistics(topic=topic), TopicStats)
        except TopicNotFound:  # the topic was deleted meanwhile
            return TopicStats()

    async def _delay_ms(self, address: str, group: str, topic: str) -> int:
        try:
            found = await self._brokers.read(address, ConsumeTimeSpan(topic=topic, group=group), ConsumeTimeSpans)
        except TopicNotFound:
            return 0
        return max((each.delay_ms for each in found.spans), default=0)


_OF_GROUPS = (RETRY_PREFIX, DEAD_LETTER_PREFIX)


def day_sum(stats: BrokerStats) -> int:
    """Return a counter's sum of the last 24 hours.

    This is the largest of its sums per day, hour and minute, as a Java broker's sample of the day may be an hour old.
    """
    return max(stats.day.sum, stats.hour.sum, stats.minute.sum)


def _consumed(stats: ConsumeStats) -> ConsumedTopicFigures:
    topic = next(iter(stats.queues)).topic
    queues = stats.queues.values()
    consumed, in_flight = (sum(each.consumer_offset for each in queues), sum(each.in_flight or 0 for each in queues))
    return ConsumedTopicFigures(topic, consumed, _lag(stats), in_flight=in_flight)


def _lag(stats: ConsumeStats) -> int:
    return sum(max(each.broker_offset - each.consumer_offset, 0) for each in stats.queues.values())
