"""Who is connected: the members of consumer groups with what they subscribe to, and the producers by group.

Registers what heartbeats say, forgets clients that leave, fall silent or lose their connection, and tells the members
of a group when it changes. In memory only. Source: RocketMQ 4.9.8, ConsumerManager, ConsumerGroupInfo, ProducerManager.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pyromq.broker.config import BrokerConfig
from pyromq.clock import Clock
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import ConsumerEntry, QueueOffset, ResetOffsets, Subscription, encode_body
from pyromq.remoting.codes import STATUS_VERSION, Language
from pyromq.remoting.exchange import Exchange
from pyromq.remoting.headers import ConsumerIdsChanged, ResetClientOffset

SILENCE_SECONDS = 120.0  # clients send a heartbeat every 30 s


@dataclass(slots=True)
class Member:
    """One client of a group, over one connection."""

    client_id: str
    exchange: Exchange
    language: str
    version: int
    heard: float  # monotonic seconds
    heard_ms: int


@dataclass(slots=True)
class ConsumerGroup:
    """What the latest heartbeats say about a consumer group. A client with two connections is there twice."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    by_exchange: dict[Exchange, Member] = field(default_factory=dict)
    wanted_by: dict[Exchange, dict[str, str]] = field(default_factory=dict)  # expressions by topic
    differing: dict[str, list[str]] = field(default_factory=dict)  # topics with their expressions, as told last
    refused: set[str] = field(default_factory=set)  # client ids that were told

    @property
    def members(self) -> list[Member]:
        return list(self.by_exchange.values())

    @property
    def wanted(self) -> dict[str, dict[str, str]]:
        """What each member, by client id, wants: expressions by topic."""
        return {member.client_id: self.wanted_by[exchange] for exchange, member in self.by_exchange.items()}

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Take over a heartbeat's subscriptions; true if a topic came or went. A newer version alone is no news."""
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        changed = wanted.keys() != self.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None or subscription.version > known.version:
                self.subscriptions[topic] = subscription
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
        return changed


class Connections:
    """The connected clients, by group. `config.notify_members` false keeps members in the dark."""

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Exchange, Member]] = {}
        # The groups of each connection, so that its end costs only what it was part of.
        self._groups_of: dict[Exchange, set[str]] = {}

    def consumers(self, group: str) -> ConsumerGroup | None:
        """Return the group if it has members. Called for every pull without a subscription of its own."""
        return self._consumers.get(group)

    def consumer_groups(self) -> Iterator[ConsumerGroup]:
        return iter(self._consumers.values())

    def groups_of_topic(self, topic: str) -> set[str]:
        """Return the groups whose members subscribe to the topic."""
        return {group.name for group in self._consumers.values() if topic in group.subscriptions}

    def producers(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Member]]:
        return {group: list(members.values()) for group, members in self._producers.items()}

    def producer_at(self, client_id: str) -> Member | None:
        """Return a producer by its client id, whatever its group."""
        for members in self._producers.values():
            for member in members.values():
                if member.client_id == client_id:
                    return member
        return None

    def register_consumer(self, entry: ConsumerEntry, member: Member, *, notify: bool) -> None:
        """Note a consumer's heartbeat; tells the group if this member or one of its topics is new, or a topic left.

        `notify` is the group's own setting, here and below.
        """
        group = self._consumers.get(entry.group)
        if group is None:
            group = self._consumers[entry.group] = ConsumerGroup(entry.group)
        is_new = member.exchange not in group.by_exchange
        group.by_exchange[member.exchange] = member
        group.consume_type = entry.consume_type
        group.message_model = entry.message_model
        group.consume_from = entry.consume_from
        group.wanted_by[member.exchange] = wanted(entry)
        changed = group.subscribe(entry.subscriptions)
        self._watch(member.exchange, entry.group)
        if (is_new or changed) and notify:
            self._tell_members(group)

    def register_producer(self, group: str, member: Member) -> None:
        """Note a producer's heartbeat."""
        self._producers.setdefault(group, {})[member.exchange] = member
        self._watch(member.exchange, group)

    def unregister_consumer(self, group: str, exchange: Exchange, *, notify: bool) -> None:
        """The client leaves the group; the others are told."""
        consumers = self._consumers.get(group)
        if consumers is None or consumers.by_exchange.pop(exchange, None) is None:
            return
        consumers.wanted_by.pop(exchange, None)
        if not consumers.by_exchange:
            del self._consumers[group]
        elif notify:
            self._tell_members(consumers)

    def unregister_producer(self, group: str, exchange: Exchange) -> None:
        """The client leaves the group."""
        members = self._producers.get(group, {})
        members.pop(exchange, None)
        if not members:
            self._producers.pop(group, None)

    def tell_consumers(self, topic: str) -> None:
        """Have all who consume the topic share its queues out again."""
        for group in self.groups_of_topic(topic):
            self._tell_members(self._consumers[group])

    def begin_again(self, topic: str, queues: list[MessageQueue]) -> None:
        """Have all who consume the topic, of whatever group, go on at the beginning of these queues."""
        begin = ResetOffsets(offsets=dict.fromkeys(queues, 0))
        listed = ResetOffsets(offsets=[QueueOffset(q.topic, q.broker_name, q.queue_id, 0) for q in queues])
        for group in self.groups_of_topic(topic):
            order = ResetClientOffset(topic=topic, group=group, timestamp=0, force=True)
            for member in self._consumers[group].members:
                if member.version >= STATUS_VERSION:
                    told = listed if member.language == Language.CPP.name else begin
                    member.exchange.notify(order, encode_body(told))

    def expire(self) -> None:
        """Forget the clients that have not sent a heartbeat for 120 s."""
        oldest = self._clock.monotonic() - SILENCE_SECONDS
        for group in list(self._consumers.values()):
            for member in group.members:
                if member.heard < oldest:
                    self.unregister_consumer(group.name, member.exchange, notify=True)
        for name, members in list(self._producers.items()):
            for member in list(members.values()):
                if member.heard < oldest:
                    self.unregister_producer(name, member.exchange)

    def _watch(self, exchange: Exchange, group: str) -> None:
        groups = self._groups_of.get(exchange)
        if groups is None:
            groups = self._groups_of[exchange] = set()
            exchange.on_close.append(self._forget)
        groups.add(group)

    def _forget(self, exchange: Exchange) -> None:
        """The connection is gone: its clients are gone."""
        for group in self._groups_of.pop(exchange, ()):
            self.unregister_consumer(group, exchange, notify=True)
            self.unregister_producer(group, exchange)

    def _tell_members(self, group: ConsumerGroup) -> None:
        if self._config.notify_members:
            for exchange in list(group.by_exchange):
                exchange.notify(ConsumerIdsChanged(consumer_group=group.name))


def wanted(entry: ConsumerEntry) -> dict[str, str]:
    """Return by topic what a member shares with its group: its expression, with tags in order.

    Nothing for consumers that choose their queues themselves: their subscriptions have no version, in Java too.
    Source: RocketMQ 4.9.8, DefaultMQPullConsumerImpl.subscriptions.
    """
    if not any(subscription.version for subscription in entry.subscriptions):
        return {}
    return {each.topic: " || ".join(sorted(each.tags)) or each.expression for each in entry.subscriptions}
