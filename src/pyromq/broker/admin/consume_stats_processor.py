"""Answers how far groups are in topics: for tools that show lag."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

from pyromq.broker.admin.consume_stats import Progress, subscribes
from pyromq.broker.cold_reads import ColdReads
from pyromq.broker.config import BrokerConfig
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.members.connections import Connections
from pyromq.broker.members.consumer_groups import ConsumerGroups
from pyromq.broker.topics import Topics
from pyromq.errors import TopicNotFound
from pyromq.net.slow_replies import SlowReplies, SlowReply, in_pieces
from pyromq.remoting.bodies import (
    ConsumeStats,
    ConsumeStatsList,
    ConsumeTimeSpans,
    GroupList,
    TopicConfig,
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


class ConsumeStatsProcessor:
    """Puts `Progress` into answers, for one topic, one group or all."""

    def __init__(
        self,
        progress: Progress,
        topics: Topics,
        *,
        groups: ConsumerGroups,
        offsets: ConsumerOffsets,
        connections: Connections,
        cold_reads: ColdReads,
        config: BrokerConfig,
        slow_replies: SlowReplies,
    ) -> None:
        self._progress = progress
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._connections = connections
        self._cold_reads = cold_reads
        self._config = config
        self._long_answers = slow_replies

    @answers(TopicStatistics)
    def topic(self, header: TopicStatistics, call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(self._of_topic(self._known(header.topic)), call)

    def _of_topic(self, topic: TopicConfig) -> SlowReply:
        stats = yield from self._cold_reads.loaded(self._progress.of_topic(topic))
        return (yield from in_pieces(stats))

    @answers(ConsumeStatistics)
    def group(self, header: ConsumeStatistics, call: Call) -> Reply | Future[Reply]:
        """The group's queues in one topic or in all it has offsets of; an unknown group has none."""
        return self._long_answers.give(self._of_group(header), call)

    def _of_group(self, header: ConsumeStatistics) -> SlowReply:
        names = {header.topic} if header.topic else self._offsets.topics_of(header.consumer_group)
        tps, queues = 0.0, {}
        for topic in self._consumed(header.consumer_group, names):
            stats = yield from self._cold_reads.loaded(self._progress.of_group(header.consumer_group, topic))
            tps += stats.consume_tps
            queues.update(stats.queues)
        return (yield from in_pieces(ConsumeStats(consume_tps=tps, queues=queues)))

    @answers(BrokerConsumeStatistics)
    def all_groups(self, header: BrokerConsumeStatistics, call: Call) -> Reply | Future[Reply]:
        """Every group's progress, topic by topic; of ordered topics only where that is asked."""
        return self._long_answers.give(self._of_all_groups(header), call)

    def _of_all_groups(self, header: BrokerConsumeStatistics) -> SlowReply:
        listed, lag = [], 0
        topics_by_group = self._offsets.topics_by_group()
        for group in list(self._groups):
            progress = []
            for topic in self._consumed(group.name, topics_by_group.get(group.name, set())):
                if topic.order or not header.order:
                    stats = yield from self._cold_reads.loaded(self._progress.of_group(group.name, topic))
                    lag += sum(queue.broker_offset - queue.consumer_offset for queue in stats.queues.values())
                    progress.append(stats)
            listed.append({group.name: progress})
            yield None
        address = self._config.advertised_address
        return (yield from in_pieces(ConsumeStatsList(broker_address=address, groups=listed, total_lag=lag)))

    @answers(ConsumeTimeSpan)
    def times(self, header: ConsumeTimeSpan, call: Call) -> Reply | Future[Reply]:
        return self._long_answers.give(self._times(header.group, self._known(header.topic)), call)

    def _times(self, group: str, topic: TopicConfig) -> SlowReply:
        spans = yield from self._cold_reads.loaded(self._progress.times(group, topic))
        return (yield from in_pieces(ConsumeTimeSpans(spans=spans)))

    @answers(TopicConsumers)
    def consumers(self, header: TopicConsumers, call: Call) -> Reply | Future[Reply]:
        """The groups that are connected to the topic or have offsets of it."""
        return self._long_answers.give(self._consumers(header.topic), call)

    def _consumers(self, topic: str) -> SlowReply:
        groups = self._offsets.groups_of(topic)
        for group in list(self._connections.consumer_groups()):
            if topic in group.subscriptions:
                groups.add(group.name)
            yield None
        return (yield from in_pieces(GroupList(groups=sorted(groups))))

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
