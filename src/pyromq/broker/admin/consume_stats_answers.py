"""Answers how far groups are in topics: for tools that show lag."""

from __future__ import annotations

from collections.abc import Iterator

from pyromq.broker.admin.consume_stats import Progress, subscribes
from pyromq.broker.config import BrokerConfig
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.members.connections import Connections
from pyromq.broker.members.consumer_groups import ConsumerGroups
from pyromq.broker.topics import Topics
from pyromq.errors import TopicNotFound
from pyromq.remoting.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    GroupList,
    TopicConfig,
    encode_body,
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


class Tracking:
    """Puts `Progress` into answers, for one topic, one group or all."""

    def __init__(
        self,
        progress: Progress,
        topics: Topics,
        *,
        groups: ConsumerGroups,
        offsets: ConsumerOffsets,
        connections: Connections,
        config: BrokerConfig,
    ) -> None:
        self._progress = progress
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._connections = connections
        self._config = config

    @answers(TopicStatistics)
    def topic(self, header: TopicStatistics, call: Call) -> Reply:
        return Reply(body=encode_body(self._progress.of_topic(self._known(header.topic))))

    @answers(ConsumeStatistics)
    def group(self, header: ConsumeStatistics, call: Call) -> Reply:
        """The group's queues in one topic or in all it has offsets of; an unknown group has none."""
        names = {header.topic} if header.topic else self._offsets.topics_of(header.consumer_group)
        tps, queues = 0.0, {}
        for topic in self._consumed(header.consumer_group, names):
            stats = self._progress.of_group(header.consumer_group, topic)
            tps += stats.consume_tps
            queues.update(stats.queues)
        return Reply(body=encode_body(ConsumeStats(consume_tps=tps, queues=queues)))

    @answers(BrokerConsumeStatistics)
    def all_groups(self, header: BrokerConsumeStatistics, call: Call) -> Reply:
        """Every group's progress, topic by topic; of ordered topics only where that is asked."""
        listed, lag = [], 0
        for group in self._groups:
            stats = [
                self._progress.of_group(group.name, topic)
                for topic in self._consumed(group.name, self._offsets.topics_of(group.name))
                if topic.order or not header.order
            ]
            listed.append({group.name: stats})
            lag += sum(q.broker_offset - q.consumer_offset for stat in stats for q in stat.queues.values())
        body = ConsumeStatsList(broker_address=self._config.advertised_address, groups=listed, total_lag=lag)
        return Reply(body=encode_body(body))

    @answers(ConsumeTimeSpan)
    def times(self, header: ConsumeTimeSpan, call: Call) -> Reply:
        spans = self._progress.times(header.group, self._known(header.topic))
        return Reply(body=encode_body(ConsumeTimeSpans(spans=spans)))

    @answers(TopicConsumers)
    def consumers(self, header: TopicConsumers, call: Call) -> Reply:
        """The groups that are connected to the topic or have offsets of it."""
        groups = self._connections.groups_of_topic(header.topic) | self._offsets.groups_of(header.topic)
        return Reply(body=encode_body(GroupList(groups=sorted(groups))))

    def _known(self, name: str) -> TopicConfig:
        topic = self._topics.find(name)
        if topic is None:
            raise TopicNotFound(f"topic[{name}] not exist")
        return topic

    def _consumed(self, group: str, names: set[str]) -> Iterator[TopicConfig]:
        for name in sorted(names):
            topic = self._topics.find(name)
            if topic is not None and subscribes(self._connections, group, name):
                yield topic
