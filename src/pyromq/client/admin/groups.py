"""Groups of a whole cluster: their settings at every master, and the clients that are in them now."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pyromq.client.admin.brokers import ClusterBrokers, masters_of
from pyromq.client.admin.group_state import GroupState, put_together
from pyromq.client.admin.topics import ClusterTopics
from pyromq.errors import AlreadyExists, BrokerError, ConsumerNotOnline, GroupNotFound, TopicNotFound, Unavailable
from pyromq.names import check_group, dead_letter_topic, retry_topic
from pyromq.remoting.bodies import (
    Connection,
    ConsumerConnection,
    GroupConfig,
    GroupConfigTable,
    ProducerConnection,
    decode_body,
    encode_body,
)
from pyromq.remoting.headers import AllGroups, ConsumerConnections, DeleteGroup, ProducerConnections, SaveGroup


class ClusterGroups:
    """Groups for an administrator. `AsyncAdmin` has its methods' contracts."""

    def __init__(self, brokers: ClusterBrokers, topics: ClusterTopics) -> None:
        self._brokers = brokers
        self._topics = topics

    async def create(self, config: GroupConfig, *, replace: bool = False) -> None:
        """Create a consumer group, or with `replace` set all of its settings, at every master."""
        check_group(config.name)
        if not replace and (found := await self.configs(config.name)):
            raise AlreadyExists(f"group {config.name} exists already, at {', '.join(found)}; alter or replace it")
        await self._brokers.ask_each((await self._brokers.masters()).values(), SaveGroup(), encode_body(config))

    async def alter(self, name: str, changes: Mapping[str, object]) -> None:
        """Change fields of a group's settings at every master. Raises `GroupNotFound` when none has it.

        A master that does not have the group gets it as another one has it.
        """
        masters = await self._brokers.masters()
        await self._brokers.ask_each(masters.values(), AllGroups())  # all or none: each must be in reach
        configs = await self.configs(name)
        if not configs:
            raise GroupNotFound(f"group {name} does not exist")
        for broker_name, address in masters.items():
            config = configs.get(broker_name) or configs[min(configs)]
            await self._brokers.ask(address, SaveGroup(), encode_body(msgspec.structs.replace(config, **changes)))

    async def delete(self, name: str) -> None:
        """Delete a consumer group with its offsets, retry topic and dead-letter topic at every master."""
        check_group(name)
        masters = await self._brokers.masters()
        await self._brokers.ask_each(masters.values(), DeleteGroup(group=name, remove_offsets=True))
        for topic in (retry_topic(name), dead_letter_topic(name)):
            try:
                await self._topics.delete(topic)
            except TopicNotFound:
                pass  # a group that never failed has none

    async def all(self) -> list[GroupConfig]:
        """Return the settings of all consumer groups, by name; of a group at several brokers, one broker's."""
        groups: dict[str, GroupConfig] = {}
        for table in (await self._groups_by_broker()).values():
            groups |= table
        return [groups[name] for name in sorted(groups)]

    async def configs(self, name: str) -> dict[str, GroupConfig]:
        """Return a group's settings by the name of the broker, of all brokers that have it; {} if none has."""
        tables = await self._groups_by_broker()
        return {broker_name: table[name] for broker_name, table in sorted(tables.items()) if name in table}

    async def members(self, group: str) -> ConsumerConnection:
        """Return a group's members and subscriptions. Raises `ConsumerNotOnline` when it has no member."""
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

    async def state(self, group: str) -> GroupState:
        """Return a group's members, what each of them wants, and who has locked which queue."""
        return put_together(
            group, await self._consumer_connections(ConsumerConnections(consumer_group=group, details=True))
        )

    async def producers(self, group: str, topic: str) -> ProducerConnection:
        """Return the clients of a producer group at the brokers of a topic. Raises `BrokerError` when there is none."""
        members: dict[str, Connection] = {}
        refusal: BrokerError | None = None
        for address in masters_of((await self._topics.route(topic)).brokers).values():
            try:
                response = await self._brokers.ask(address, ProducerConnections(producer_group=group))
            except BrokerError as error:
                refusal = error
                continue
            found = decode_body(ProducerConnection, response.body)
            members.update((each.client_id, each) for each in found.connections)
        if not members and refusal is not None:
            raise refusal
        return ProducerConnection(connections=[members[client_id] for client_id in sorted(members)])

    async def _groups_by_broker(self) -> dict[str, dict[str, GroupConfig]]:
        """Return the settings of all groups by the name of the broker; brokers out of reach are left out."""
        masters = await self._brokers.masters()
        answers = await self._brokers.answers(masters.values(), AllGroups())
        return {
            name: decode_body(GroupConfigTable, answers[address].body).groups
            for name, address in masters.items()
            if address in answers
        }

    async def _consumer_connections(self, question: ConsumerConnections) -> list[ConsumerConnection]:
        """Return the answers of the brokers that know members. Raises `Unavailable` if no broker can be reached."""
        found = []
        silent: list[Unavailable] = []
        masters = await self._brokers.masters()
        for address in masters.values():
            try:
                response = await self._brokers.ask(address, question)
            except ConsumerNotOnline:
                continue
            except Unavailable as error:
                self._brokers.leave_out(address, error)
                silent.append(error)
                continue
            found.append(decode_body(ConsumerConnection, response.body))
        if len(silent) == len(masters):
            raise silent[0]
        return found
