"""The connected clients: consumer groups with their members and subscriptions, and producers by group.

Heartbeats register clients. Clients that unregister, send no heartbeat or lose their connection are removed. Members of
a consumer group are notified when the group changes. The tables are in memory only.
Source: RocketMQ 4.9.8, ConsumerManager, ConsumerGroupInfo, ProducerManager.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pyromq.broker.config import BrokerConfig
from pyromq.clock import Clock
from pyromq.message import MessageQueue
from pyromq.names import pop_retry_topic
from pyromq.net.tasks import Alarm
from pyromq.quota import Quota
from pyromq.remoting.bodies import ConsumerEntry, QueueOffset, ResetOffsets, Subscription, encode_body
from pyromq.remoting.codes import STATUS_VERSION, Language
from pyromq.remoting.dispatch import Peer
from pyromq.remoting.headers import ConsumerIdsChanged, ResetClientOffset

SILENCE_SECONDS = 120.0  # time without heartbeat after which a client is removed; clients send one every 30 s
MANY_MEMBERS = 100  # limit of a group's members that are notified immediately; larger groups in slices, by `step`
LEAVING_SLICE = 50  # limit of groups that a closed connection leaves in one step
NOTIFY_SLICE = 50  # limit of members notified in one step, which takes about 200 us
LARGE_GROUP_SECONDS = 0.2  # shortest time between notifications of a large group: many changes cause one
_UNIT = 64  # characters of a subscription that count as one more subscription against the limit


@dataclass(slots=True)
class GroupMember:
    """One client in one group, over one connection."""

    client_id: str
    session: Peer
    language: str
    version: int
    last_heartbeat: float  # time of the last heartbeat (monotonic seconds)
    last_heartbeat_ms: int  # time of the last heartbeat (ms since 1970)
    account: str | None = None  # access key of the client's account; None if permissions are off
    since_ms: int = 0  # time of the first heartbeat of this client over this connection (ms since 1970)


@dataclass(slots=True)
class ConsumerGroup:
    """A consumer group as its latest heartbeats describe it. A client with two connections is two members.

    A proxy's connection has several clients.
    """

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = "CONSUME_FROM_LAST_OFFSET"
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    by_session: dict[Peer, dict[str, GroupMember]] = field(default_factory=dict)  # by connection and client id
    # By connection and client id: topic -> expression.
    wanted_by: dict[tuple[Peer, str], dict[str, str]] = field(default_factory=dict)
    differing: dict[str, list[str]] = field(default_factory=dict)  # topic -> differing expressions, as last logged
    refused: set[str] = field(default_factory=set)  # client ids of refused clients whose refusal was logged

    @property
    def members(self) -> list[GroupMember]:
        return [member for members in self.by_session.values() for member in members.values()]

    def subscribes_alike(self) -> bool:
        """Return whether all members with subscriptions have equal subscriptions; fast if they do."""
        others = (wanted for wanted in self.wanted_by.values() if wanted)
        first = next(others, None)
        return all(wanted == first for wanted in others)

    @property
    def wanted(self) -> dict[str, dict[str, str]]:
        """The expressions that each member subscribes to: client id -> topic -> expression."""
        return {client_id: wanted for (_, client_id), wanted in self.wanted_by.items()}

    def subscribe(self, subscriptions: Iterable[Subscription]) -> bool:
        """Replace the group's subscriptions by those of a heartbeat; return whether the set of topics changed."""
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
    """The connected clients, by group. If `config.notify_members` is False, members are not notified of changes.

    `alarm` fires when `step` has work to do.
    """

    def __init__(self, config: BrokerConfig, clock: Clock) -> None:
        self.alarm = Alarm(clock)
        self._config = config
        self._clock = clock
        # Connection -> (kind, group, client id of a consumer) -> weight against the limit.
        self._weights: dict[Peer, dict[tuple[str, ...], int]] = {}
        self._quota: Quota[Peer] = Quota("maxMembers", config.limits.members)  # counts the weights in `_weights`
        self._by_client: dict[str, dict[Peer, dict[str, GroupMember]]] = {}  # producers: client id -> session -> group
        self._client_at: dict[str, str] = {}  # address -> client id
        # Closed sessions, with the groups that still contain them.
        self._leaving: deque[tuple[Peer, set[str]]] = deque()
        self._to_notify: dict[str, deque[Peer] | None] = {}  # large group -> members left to notify; None: all
        self._notified_at: dict[str, float] = {}  # large group -> time of its last notification (monotonic seconds)
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, GroupMember]] = {}
        # Groups of each session, so that the end of a connection visits only these groups.
        self._groups_of: dict[Peer, set[str]] = {}

    def consumers(self, group: str) -> ConsumerGroup | None:
        """Return a consumer group; None if it has no members.

        Called for each pull whose request has no subscription.
        """
        return self._consumers.get(group)

    def facts(self, group: str, topic: str) -> list[tuple[dict[str, Any], str, object]]:
        """Return the table entries that decide a group's subscription to a topic, each as table, key and value."""
        consumers = self._consumers[group]
        return [
            (self._consumers, group, consumers),
            (consumers.subscriptions, topic, consumers.subscriptions[topic]),
        ]

    def members(self) -> Iterator[GroupMember]:
        """Yield each member of each group, consumers and producers."""
        for group in self._consumers.values():
            yield from group.members
        for producers in self._producers.values():
            yield from producers.values()

    def consumer_groups(self) -> Iterator[ConsumerGroup]:
        return iter(self._consumers.values())

    def groups_of_topic(self, topic: str) -> set[str]:
        """Return the names of the groups whose members subscribe to the topic."""
        return {group.name for group in self._consumers.values() if topic in group.subscriptions}

    def subscribes(self, group: str, topic: str) -> bool:
        """Return whether a group's offsets in a topic count: not if no member subscribes to the topic.

        Members that pop a topic do not name its retry topic.
        """
        consumers = self._consumers.get(group)
        if consumers is None or not consumers.subscriptions or topic in consumers.subscriptions:
            return True
        return any(topic == pop_retry_topic(group, each) for each in consumers.subscriptions)

    def producers(self, group: str) -> list[GroupMember]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> list[str]:
        return list(self._producers)

    def producer_at(self, client_id: str) -> GroupMember | None:
        """Return a producer with this client id, in any group; None if there is none."""
        for groups in self._by_client.get(client_id, {}).values():
            return next(iter(groups.values()))
        return None

    def client_at(self, address: str) -> str | None:
        """Return the client id registered over the connection from this address; None if no client is registered."""
        return self._client_at.get(address)

    def register_consumer(self, entry: ConsumerEntry, member: GroupMember, *, notify: bool) -> None:
        """Register a consumer's heartbeat. Notify the group if the member is new or the group's set of topics changed.

        `notify` is the setting of the group that allows notifications. Raises `LimitReached` if the connection exceeds
        its share of `maxMembers`.
        """
        self._set_weight(member.session, ("consumer", entry.group, member.client_id), _weight(entry))
        group = self._consumers.get(entry.group)
        if group is None:
            group = self._consumers[entry.group] = ConsumerGroup(entry.group)
        clients = group.by_session.setdefault(member.session, {})
        known = clients.get(member.client_id)
        member.since_ms = member.last_heartbeat_ms if known is None else known.since_ms
        clients[member.client_id] = member
        group.consume_type = entry.consume_type
        group.message_model = entry.message_model
        group.consume_from = entry.consume_from
        group.wanted_by[member.session, member.client_id] = wanted(entry)
        changed = group.subscribe(entry.subscriptions)
        self._watch(member.session, entry.group, member.client_id)
        if (known is None or changed) and notify:
            self._notify_members(group)

    def register_producer(self, group: str, member: GroupMember) -> None:
        """Register a producer's heartbeat.

        Raises `LimitReached` if the connection exceeds its share of `maxMembers`.
        """
        self._set_weight(member.session, ("producer", group), 1)
        known = self._producers.get(group, {}).get(member.session)
        if known is not None and known.client_id != member.client_id:
            self._forget_client(group, known)
        self._by_client.setdefault(member.client_id, {}).setdefault(member.session, {})[group] = member
        self._producers.setdefault(group, {})[member.session] = member
        self._watch(member.session, group, member.client_id)

    def unregister_consumer(self, group: str, session: Peer, client_id: str | None = None, *, notify: bool) -> None:
        """Remove a client of a connection, or all, from the group. Notify the other members, if `notify` is set."""
        consumers = self._consumers.get(group)
        clients = consumers.by_session.get(session, {}) if consumers is not None else {}
        leaving = list(clients) if client_id is None else [client_id] * (client_id in clients)
        if consumers is None or not leaving:
            return
        for each in leaving:
            del clients[each], consumers.wanted_by[session, each]
            self._set_weight(session, ("consumer", group, each), 0)
        if not clients:
            del consumers.by_session[session]
            self._unwatch(session, group)
        if not consumers.by_session:
            del self._consumers[group]
        elif notify:
            self._notify_members(consumers)

    def unregister_producer(self, group: str, session: Peer) -> None:
        """Remove a producer from the group."""
        members = self._producers.get(group, {})
        if (member := members.pop(session, None)) is not None:
            self._set_weight(session, ("producer", group), 0)
            self._forget_client(group, member)
            self._unwatch(session, group)
        if not members:
            self._producers.pop(group, None)

    def _set_weight(self, session: Peer, entry: tuple[str, ...], weight: int) -> None:
        """Set the weight of a connection's entry; a weight of 0 removes the entry.

        Raises `LimitReached` beyond the connection's share of `maxMembers`.
        """
        weights = self._weights.get(session, {})
        if (more := weight - weights.get(entry, 0)) > 0:
            own = self._quota.of(session)
            text = f"this connection has {own} groups and subscriptions, the limit of one connection; use fewer"
            self._quota.acquire(session, more, text=text)
        else:
            self._quota.release(session, -more)
        if weight:
            weights[entry] = weight
            self._weights[session] = weights  # only now: a refused connection must not be kept
        else:
            weights.pop(entry, None)

    def notify_consumers(self, topic: str) -> None:
        """Notify the members of all groups that subscribe to the topic, so that they rebalance the topic's queues."""
        for group in self.groups_of_topic(topic):
            self._notify_members(self._consumers[group])

    def reset_offsets(self, topic: str, queues: list[MessageQueue]) -> None:
        """Let all members of any group that subscribe to the topic reset their offsets in these queues to 0."""
        groups = self.groups_of_topic(topic)
        if not groups:
            return
        begin = encode_body(ResetOffsets(offsets=dict.fromkeys(queues, 0)))
        listed = encode_body(ResetOffsets(offsets=[QueueOffset(q.topic, q.broker_name, q.queue_id, 0) for q in queues]))
        for group in groups:
            order = ResetClientOffset(topic=topic, group=group, timestamp=0, force=True)
            for member in self._consumers[group].members:
                if member.version >= STATUS_VERSION:
                    body = listed if member.language == Language.CPP.name else begin
                    member.session.notify(order, body)

    def expire(self) -> None:
        """Remove the clients that have sent no heartbeat for 120 s."""
        oldest = self._clock.monotonic() - SILENCE_SECONDS
        for name, group in list(self._consumers.items()):
            for member in [each for each in group.members if each.last_heartbeat < oldest]:
                self.unregister_consumer(name, member.session, member.client_id, notify=True)
        for name, members in list(self._producers.items()):
            for member in [each for each in members.values() if each.last_heartbeat < oldest]:
                self.unregister_producer(name, member.session)

    def _watch(self, session: Peer, group: str, client_id: str) -> None:
        groups = self._groups_of.get(session)
        if groups is None:
            groups = self._groups_of[session] = set()
            self._client_at[session.address] = client_id
            session.on_close += (self._forget,)
        groups.add(group)

    def _unwatch(self, session: Peer, group: str) -> None:
        """Forget that a connection belongs to a group, unless it is still a consumer or a producer of the group."""
        consumers = self._consumers.get(group)
        if (consumers is None or session not in consumers.by_session) and session not in self._producers.get(group, ()):
            self._groups_of.get(session, set()).discard(group)

    def _forget_client(self, group: str, member: GroupMember) -> None:
        sessions = self._by_client.get(member.client_id, {})
        groups = sessions.get(member.session, {})
        groups.pop(group, None)
        if not groups:
            sessions.pop(member.session, None)
        if not sessions:
            self._by_client.pop(member.client_id, None)

    def _forget(self, session: Peer) -> None:
        """Remove a closed connection from some of its groups; `step` removes it from the others."""
        groups = self._groups_of.pop(session, set())
        self._client_at.pop(session.address, None)
        for _ in range(min(LEAVING_SLICE, len(groups))):
            self._leave(groups.pop(), session)
        if groups:
            self._leaving.append((session, groups))
            self.alarm.schedule_within(0)
        else:
            self._weights.pop(session, None)
            self._quota.end(session)

    def _leave(self, group: str, session: Peer) -> None:
        self.unregister_consumer(group, session, notify=True)
        self.unregister_producer(group, session)

    def step(self) -> float | None:
        """Continue removals and notifications. Return the seconds until the next call; None if no work is left."""
        if not self._leaving:
            return self._notify_large_groups()
        session, self._groups_of[session] = self._leaving.popleft()
        self._forget(session)
        return 0

    def _notify_members(self, group: ConsumerGroup) -> None:
        if not self._config.notify_members:
            return
        if len(group.by_session) > MANY_MEMBERS:
            self._to_notify[group.name] = None
            notified_at = self._notified_at.get(group.name, float("-inf"))
            self.alarm.schedule_within(max(0.0, notified_at + LARGE_GROUP_SECONDS - self._clock.monotonic()))
            return
        for session in list(group.by_session):
            session.notify(ConsumerIdsChanged(consumer_group=group.name))

    def _notify_large_groups(self) -> float | None:
        """Notify some members of a large group. Return the seconds until the next call; None if no work is left."""
        now = self._clock.monotonic()
        waits = []
        for name in list(self._to_notify):
            left = self._to_notify[name]
            if left is None:
                wait = self._notified_at.get(name, float("-inf")) + LARGE_GROUP_SECONDS - now
                if wait > 0:
                    waits.append(wait)
                    continue
                group = self._consumers.get(name)
                left = self._to_notify[name] = deque(group.by_session if group is not None else ())
                self._notified_at[name] = now
            for _ in range(min(NOTIFY_SLICE, len(left))):
                left.popleft().notify(ConsumerIdsChanged(consumer_group=name))
            if not left:
                del self._to_notify[name]
            return 0
        if not self._to_notify:
            self._notified_at = {name: at for name, at in self._notified_at.items() if now - at < LARGE_GROUP_SECONDS}
        return min(waits, default=None)


def _weight(entry: ConsumerEntry) -> int:
    """Return the weight of a consumer's heartbeat against the limit: it grows with the memory of the subscriptions."""
    weight = 1
    for each in entry.subscriptions:
        kept = len(each.topic) + len(each.expression) + 16 * (len(each.tags) + len(each.codes))
        weight += 1 + kept // _UNIT
    return weight


def wanted(entry: ConsumerEntry) -> dict[str, str]:
    """Return the expressions of a heartbeat, with sorted tags: topic -> expression.

    All members of a group must have equal expressions. The result is empty for consumers that choose their queues
    themselves. Their subscriptions have no version. Source: RocketMQ 4.9.8, DefaultMQPullConsumerImpl.subscriptions.
    """
    if not any(subscription.version for subscription in entry.subscriptions):
        return {}
    return {each.topic: " || ".join(sorted(each.tags)) or each.expression for each in entry.subscriptions}
