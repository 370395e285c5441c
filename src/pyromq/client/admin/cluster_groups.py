"""Reads and changes groups of a whole cluster: settings at every master, clients, members, locked queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from pyromq.client.admin.admin_client import ClusterBrokers, masters_of
from pyromq.client.admin.cluster_topics import ClusterTopics
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.errors import AlreadyExists, BrokerError, ConsumerNotOnline, GroupNotFound, TopicNotFound
from pyromq.filter.subscription_differences import Differences, differences
from pyromq.message import MessageQueue
from pyromq.names import check_group, dead_letter_topic, retry_topic
from pyromq.remoting.bodies import (
    ClientConnection,
    ConsumerConnection,
    GroupConfig,
    GroupConfigTable,
    LockHolder,
    ProducerConnection,
    encode_body,
)
from pyromq.remoting.headers import AllGroups, ConsumerConnections, DeleteGroup, ProducerConnections, SaveGroup


@dataclass(frozen=True, slots=True)
class OnlineMember:
    """One connected member of a group. `subscriptions` are filter expressions by topic.

    `subscriptions` is {} for a consumer that assigns queues itself, None if the broker does not send subscriptions.
    """

    client_id: str
    address: str
    language: str
    version: int
    subscriptions: dict[str, str] | None


@dataclass(frozen=True, slots=True)
class LockedQueue:
    """A locked queue, the owner of its lock, and the age of the lock in seconds."""

    queue: MessageQueue
    client_id: str
    age_seconds: float


@dataclass(frozen=True, slots=True)
class GroupState:
    """A group as its brokers see it. `consume_type` and `message_model` are None if no member is connected.

    Java's brokers send neither members' subscriptions nor locks; if no broker sends locks, `locks` is None.
    """

    group: str
    consume_type: str | None
    message_model: str | None
    subscriptions: dict[str, str]
    members: list[OnlineMember]
    locks: list[LockedQueue] | None

    @property
    def differences(self) -> Differences:
        """The topics to which members subscribe differently: client ids by topic and filter expression."""
        subscribed = {member.client_id: member.subscriptions or {} for member in self.members}
        return differences(subscribed, self.consume_type)


def put_together(group: str, answers: Iterable[ConsumerConnection]) -> GroupState:
    """Return a group's state, merged from the responses of several brokers."""
    answers = list(answers)
    online = next((answer for answer in answers if answer.connections), None)
    told = [answer.locks for answer in answers if answer.locks is not None]
    members: dict[str, OnlineMember] = {}
    for answer in answers:
        for connection in answer.connections:
            members[connection.client_id] = _member(connection, members.get(connection.client_id))
    return GroupState(
        group,
        consume_type=online.consume_type if online else None,
        message_model=online.message_model if online else None,
        subscriptions={topic: each.expression for answer in answers for topic, each in answer.subscriptions.items()},
        members=[members[client_id] for client_id in sorted(members)],
        locks=sorted(_locks(told), key=lambda lock: lock.queue) if told or not answers else None,
    )


def _member(connection: ClientConnection, known: OnlineMember | None) -> OnlineMember:
    """Return a member with the subscriptions that a broker sends added to the known ones."""
    subscriptions = connection.subscriptions
    if known is not None and known.subscriptions is not None:
        subscriptions = known.subscriptions | (subscriptions or {})
    return OnlineMember(
        connection.client_id, connection.client_address, connection.language, connection.version, subscriptions
    )


def _locks(told: list[list[LockHolder]]) -> Iterable[LockedQueue]:
    for locks in told:
        for lock in locks:
            yield LockedQueue(lock.queue.queue, lock.client_id, lock.age_ms / 1000)


class ClusterGroups:
    """Reads and changes groups at all masters of a cluster, for `AsyncAdmin`."""

    def __init__(self, cluster: ClusterClient, brokers: ClusterBrokers, topics: ClusterTopics) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._topics = topics

    async def create_group(
        self, config: GroupConfig, *, replace: bool = False, cluster: str | None = None, broker: str | None = None
    ) -> None:
        """Create a consumer group at every master, or only in one `cluster` or at one `broker`.

        Raises `AlreadyExists` if a master has the group: `alter_group` changes single settings, `replace=True` sets
        all.
        """
        check_group(config.name)
        if not replace and (found := await self.group_configs(config.name, cluster=cluster, broker=broker)):
            raise AlreadyExists(f"group {config.name} exists already, at {', '.join(found)}; alter or replace it")
        masters = await self._brokers.masters(cluster=cluster, broker=broker)
        await self._brokers.ask_each(masters.values(), SaveGroup(), encode_body(config))

    async def alter_group(
        self,
        name: str,
        *,
        retries: int | None = None,
        retry_queues: int | None = None,
        enabled: bool | None = None,
        broadcast: bool | None = None,
        orderly: bool | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Change the given settings of a group at every master, or only in one `cluster` or at one `broker`.

        Raises `GroupNotFound` if no master has the group.

        A master without the group gets a group with the settings of another master.
        """
        given = {
            "retry_max_times": retries,
            "retry_queues": retry_queues,
            "consume_enabled": enabled,
            "broadcast_enabled": broadcast,
            "orderly": orderly,
        }
        changes = {field: value for field, value in given.items() if value is not None}
        masters = await self._brokers.masters(cluster=cluster, broker=broker)
        # Raises `Unavailable` if a master is out of reach, before any change.
        await self._brokers.ask_each(masters.values(), AllGroups())
        configs = await self.group_configs(name)
        if not configs:
            raise GroupNotFound(f"group {name} does not exist")
        for broker_name, address in masters.items():
            config = configs.get(broker_name) or configs[min(configs)]
            await self._brokers.ask(address, SaveGroup(), encode_body(msgspec.structs.replace(config, **changes)))

    async def delete_group(self, name: str, *, cluster: str | None = None, broker: str | None = None) -> None:
        """Delete a consumer group with its offsets, retry topic and dead-letter topic at every master.

        With `cluster`, only the brokers of that cluster delete them. With `broker`, only that broker deletes the group
        and its offsets, and the group's topics stay.
        """
        check_group(name)
        masters = await self._brokers.masters(cluster=cluster, broker=broker)
        await self._brokers.ask_each(masters.values(), DeleteGroup(group=name, remove_offsets=True))
        for topic in () if broker is not None else (retry_topic(name), dead_letter_topic(name)):
            try:
                await self._topics.delete_topic(topic, cluster=cluster)
            except TopicNotFound:
                pass  # brokers create these topics when a first message fails

    async def groups(self) -> list[GroupConfig]:
        """Return the settings of all consumer groups, sorted by name; if brokers differ, those of one broker."""
        groups: dict[str, GroupConfig] = {}
        for table in (await self._groups_by_broker()).values():
            groups |= table
        return [groups[name] for name in sorted(groups)]

    async def group_configs(
        self, name: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, GroupConfig]:
        """Return a group's settings by broker name; {} if no broker has the group."""
        tables = await self._groups_by_broker(cluster=cluster, broker=broker)
        return {broker_name: table[name] for broker_name, table in sorted(tables.items()) if name in table}

    async def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return a group's connected members and subscriptions. Raises `ConsumerNotOnline` without members."""
        found = await self._consumer_connections(ConsumerConnections(consumer_group=group))
        if not found:
            raise ConsumerNotOnline(f"consumer group {group!r} has no member online")
        first = found[0]
        members = {each.client_id: each for connection in found for each in connection.connections}
        return ConsumerConnection(
            connections=[members[client_id] for client_id in sorted(members)],
            subscriptions={name: each for c in found for name, each in c.subscriptions.items()},
            consume_type=first.consume_type,
            message_model=first.message_model,
            consume_from=first.consume_from,
        )

    async def group_state(self, group: str) -> GroupState:
        """Return a group's connected members with their subscriptions, and the owners of locked queues."""
        return put_together(
            group, await self._consumer_connections(ConsumerConnections(consumer_group=group, details=True))
        )

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """Return a producer group's clients at the brokers of a topic. Raises `BrokerError` without clients."""

        async def producers_at(address: str) -> ProducerConnection | BrokerError:
            try:
                return await self._brokers.read(address, ProducerConnections(producer_group=group), ProducerConnection)
            except BrokerError as error:
                return error

        addresses = masters_of((await self._topics.topic_route(topic)).brokers).values()
        answers = (await self._cluster.ask_reachable(addresses, producers_at)).values()
        found = [each for each in answers if isinstance(each, ProducerConnection)]
        members = {each.client_id: each for of_broker in found for each in of_broker.connections}
        if not members and (refusal := next((each for each in answers if isinstance(each, BrokerError)), None)):
            raise refusal
        return ProducerConnection(connections=[members[client_id] for client_id in sorted(members)])

    async def _groups_by_broker(
        self, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, dict[str, GroupConfig]]:
        """Return the settings of all groups by broker name and group name; brokers out of reach are left out."""
        masters = await self._brokers.masters(cluster=cluster, broker=broker)
        tables = await self._brokers.read_each(masters.values(), AllGroups(), GroupConfigTable, partial=True)
        return {name: tables[address].groups for name, address in masters.items() if address in tables}

    async def _consumer_connections(self, question: ConsumerConnections) -> list[ConsumerConnection]:
        """Return the answers of those brokers that have members. Raises `Unavailable` if none can be reached."""

        async def members_at(address: str) -> ConsumerConnection | None:
            try:
                return await self._brokers.read(address, question, ConsumerConnection)
            except ConsumerNotOnline:
                return None

        masters = (await self._brokers.masters()).values()
        return [each for each in (await self._cluster.ask_reachable(masters, members_at)).values() if each is not None]
