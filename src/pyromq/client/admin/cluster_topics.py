"""Creates, changes and deletes topics of a whole cluster, at brokers and name servers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pyromq.client.admin.admin_client import ClusterBrokers, listed, masters_of
from pyromq.client.admin.servers import ClusterKv
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.allocation import averaging
from pyromq.errors import AlreadyExists, CodeNotSupported, TopicNotFound, Unavailable, UsageError
from pyromq.message import MessageQueue
from pyromq.names import AUTO_CREATE_TOPIC, check_topic
from pyromq.plural import counted
from pyromq.remoting.bodies import (
    MESSAGE_TYPE,
    MESSAGE_TYPES,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRoute,
    TopicStats,
)
from pyromq.remoting.codes import Permission
from pyromq.remoting.headers import (
    AllTopics,
    CreateTopic,
    DeleteTopic,
    DeleteTopicName,
    RouteOfTopic,
    TopicNames,
    TopicSettings,
    TopicStatistics,
)

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"  # key-value namespace at name servers with the fixed queues of order topics

_PERMISSIONS = {"r": Permission.READ, "w": Permission.WRITE, "rw": Permission.READ | Permission.WRITE}


@dataclass(frozen=True, slots=True, order=True)
class QueueStatus:
    """Bounds of one queue: the offsets of its first message and of the next message to arrive.

    `last_store_ms` is the store time of the queue's last message (ms since 1970; 0: no message).
    """

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_store_ms: int


@dataclass(frozen=True, slots=True)
class TopicChange:
    """Changed settings of a topic; None leaves a setting as it is.

    Raises `UsageError` for an unknown permission or message type.
    """

    read_queues: int | None = None
    write_queues: int | None = None
    permission: str | None = None
    order: bool | None = None
    message_type: str | None = None

    def __post_init__(self) -> None:
        if self.permission is not None:
            permission_bits(self.permission)
        type_attribute(self.message_type)

    def applied_to(self, config: TopicConfig) -> TopicConfig:
        """Return a topic's settings with this change; permission bits other than read and write stay."""
        given = {"read_queues": self.read_queues, "write_queues": self.write_queues, "order": self.order}
        changes: dict[str, Any] = {field: value for field, value in given.items() if value is not None}
        if self.permission is not None:
            changes["permission"] = (config.permission & ~_PERMISSIONS["rw"]) | _PERMISSIONS[self.permission]
        if self.message_type is not None:
            changes["attributes"] = {**(config.attributes or {}), MESSAGE_TYPE: self.message_type.upper()}
        return msgspec.structs.replace(config, **changes)


def permission_bits(permission: str) -> int:
    """Return the permission bits for the text `r`, `w` or `rw`. Raises `UsageError` for another text."""
    if permission not in _PERMISSIONS:
        raise UsageError(f"permission {permission!r} is unknown; use one of {', '.join(_PERMISSIONS)}")
    return int(_PERMISSIONS[permission])


def type_attribute(message_type: str | None) -> str | None:
    """Return the change of a topic's attributes that sets its message type; None for no type.

    Raises `UsageError` for an unknown type.
    """
    if message_type is None:
        return None
    if message_type not in MESSAGE_TYPES:
        raise UsageError(f"message type {message_type!r} is unknown; use one of {', '.join(MESSAGE_TYPES)}")
    return f"+{MESSAGE_TYPE}={message_type.upper()}"


def permission_text(bits: int) -> str:
    """Return the text `r`, `w` or `rw` for permission bits; `-` if neither is set."""
    return ("r" if bits & Permission.READ else "") + ("w" if bits & Permission.WRITE else "") or "-"


class ClusterTopics:
    """Reads and changes topics of a whole cluster, for `AsyncAdmin`."""

    def __init__(self, cluster: ClusterClient, brokers: ClusterBrokers, kv: ClusterKv) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._kv = kv

    async def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str = "rw",
        order: bool = False,
        message_type: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
        replace: bool = False,
    ) -> None:
        """Create a topic at every master, or only in one `cluster` or at one `broker`.

        The topic has `queues` queues at each of these brokers. `permission` is `r`, `w` or `rw`. `order` also fixes the
        topic's queue list at the name servers, so that the queues of a dead broker are not replaced by others.
        `message_type` is `normal`, `fifo`, `delay`, `transaction` or `mixed`: the messages that clients of RocketMQ 5
        may send. A topic without a type takes all messages. Raises `UsageError` if a broker, for example of RocketMQ 4,
        does not store the type; the topic exists then. Raises `AlreadyExists` if one of these masters has the topic:
        `alter_topic` changes single settings, `replace=True` sets all of them but the type.
        """
        check_topic(name)
        header = CreateTopic(
            topic=name,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=permission_bits(permission),
            default_topic=AUTO_CREATE_TOPIC,
            order=order,
            attributes=type_attribute(message_type),
        )
        if not replace and (found := await self.topic_configs(name, cluster=cluster, broker=broker)):
            raise AlreadyExists(f"topic {name} exists already: {_described(found)}; alter or replace it")
        masters = await self._brokers.masters(cluster=cluster, broker=broker)
        await self._brokers.ask_each(masters.values(), header)
        if order:
            await self._fix_queues(name, dict.fromkeys(masters, header.write_queues))
        self._cluster.routes.forget(name)
        await self._check_type(name, message_type, masters)

    async def alter_topic(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str | None = None,
        order: bool | None = None,
        message_type: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Change the given settings of a topic at every master that has it.

        Raises `TopicNotFound`, and `UsageError` if a broker does not store the message type. Messages in queues that
        can no longer be read are kept, invisible, until these queues can be read again.
        """
        change = TopicChange(read_queues, write_queues, permission, order, message_type)
        masters = await self._brokers.masters(cluster=cluster, broker=broker)
        configs = await self.topic_configs(name, cluster=cluster, broker=broker)
        if not configs:
            raise TopicNotFound(f"topic {name} does not exist at {listed(masters)}")
        fixed = _fixed_queues(await self._kv.kv(ORDER_NAMESPACE, name))
        for broker_name, old in configs.items():
            configs[broker_name] = change.applied_to(old)
            header = _as_order(configs[broker_name], type_attribute(message_type))
            await self._brokers.ask(masters[broker_name], header)
        if order or (order is None and fixed):
            await self._fix_queues(name, {broker_name: new.write_queues for broker_name, new in configs.items()})
        elif fixed:
            await self._kv.delete_kv(ORDER_NAMESPACE, name)
        self._cluster.routes.forget(name)
        await self._check_type(name, message_type, {broker_name: masters[broker_name] for broker_name in configs})

    async def delete_topic(self, name: str, *, cluster: str | None = None) -> None:
        """Delete a topic with its queues at every broker that has it, and at the name servers.

        With `cluster`, only the brokers of that cluster delete it. A topic is not deleted at one broker of several:
        name servers remove the routes of a whole cluster. Raises `TopicNotFound`.
        """
        masters = masters_of((await self.topic_route(name)).brokers)
        if cluster is not None:
            masters = {each: masters[each] for each in await self._brokers.masters(cluster=cluster) if each in masters}
            if not masters:
                raise TopicNotFound(f"topic {name} does not exist in cluster {cluster}")
        await self._brokers.ask_each(masters.values(), DeleteTopic(topic=name))
        await self._brokers.ask_name_servers(DeleteTopicName(topic=name, cluster=cluster))
        await self._unfix_queues(name, None if cluster is None else masters)
        self._cluster.routes.forget(name)

    async def topics(self) -> list[str]:
        """Return the names of all topics, reserved ones included, sorted."""
        return sorted(set((await self._brokers.name_server(TopicNames(), TopicList)).topics))

    async def topic_route(self, name: str) -> TopicRoute:
        """Return the brokers of a topic and its queues, fetched from a name server now. Raises `TopicNotFound`."""
        return await self._brokers.name_server(RouteOfTopic(topic=name, standard_json_only=True), TopicRoute)

    async def topic_status(self, name: str, *, partial: bool = False) -> list[QueueStatus]:
        """Return the bounds of every queue of a topic, sorted by queue. Raises `TopicNotFound`.

        With `partial`, brokers out of reach are left out and logged.
        """
        masters = masters_of((await self.topic_route(name)).brokers)
        found = []
        question = TopicStatistics(topic=name)
        tables = await self._brokers.read_each(masters.values(), question, TopicStats, partial=partial)
        for stats in tables.values():
            found += [
                QueueStatus(queue, each.min_offset, each.max_offset, each.last_update_ms)
                for queue, each in stats.queues.items()
            ]
        return sorted(found)

    async def topic_config(self, name: str) -> TopicConfig:
        """Return a topic's settings at the first of its brokers by name. Raises `TopicNotFound`."""
        masters = masters_of((await self.topic_route(name)).brokers)
        if not masters:
            raise Unavailable(f"no master of topic {name!r} is registered")
        address = masters[min(masters)]
        config = await self._config_at(address, name)
        if config is None:
            raise TopicNotFound(f"broker {address} has no topic {name!r}")
        return config

    async def topic_configs(
        self, name: str, *, cluster: str | None = None, broker: str | None = None, partial: bool = False
    ) -> dict[str, TopicConfig]:
        """Return a topic's settings by broker name; {} if no broker has the topic.

        With `partial`, brokers out of reach are left out and logged.
        """
        masters = await self._brokers.masters(cluster=cluster, broker=broker)
        if partial:
            at = await self._cluster.ask_reachable(masters.values(), lambda address: self._config_at(address, name))
            found = {each: at.get(masters[each]) for each in sorted(masters)}
        else:
            found = {each: await self._config_at(masters[each], name) for each in sorted(masters)}
        return {each: config for each, config in found.items() if config is not None}

    async def allocation(self, topic: str, client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Return the queues of a topic that each of these members would get by the usual strategy, averaging."""
        self._cluster.check_running()
        self._cluster.routes.forget(topic)
        queues, members = (await self._cluster.route(topic)).readable, sorted(client_ids)
        return {each: averaging("any", each, queues, members) for each in members}

    async def _fix_queues(self, name: str, queues: dict[str, int]) -> None:
        """Store an order topic's queue counts of these brokers at the name servers; those of other brokers stay."""
        known = _fixed_queues(await self._kv.kv(ORDER_NAMESPACE, name))
        await self._kv.put_kv(ORDER_NAMESPACE, name, _fixed_text(known | queues))

    async def _unfix_queues(self, name: str, brokers: Mapping[str, str] | None) -> None:
        """Remove an order topic's queue counts of these brokers, None: of all, from the name servers."""
        known = _fixed_queues(await self._kv.kv(ORDER_NAMESPACE, name))
        left = {each: count for each, count in known.items() if brokers is not None and each not in brokers}
        if left:
            await self._kv.put_kv(ORDER_NAMESPACE, name, _fixed_text(left))
        elif known:
            await self._kv.delete_kv(ORDER_NAMESPACE, name)

    async def _check_type(self, name: str, message_type: str | None, masters: Mapping[str, str]) -> None:
        """Raise `UsageError` if a broker has not stored the type. RocketMQ 4 ignores the type without an error."""
        if message_type is None:
            return
        for broker_name, address in masters.items():
            config = await self._config_at(address, name)
            if config is None or config.message_type != message_type:
                raise UsageError(
                    f"broker {broker_name} did not store the type {message_type} of topic {name}: brokers of RocketMQ 4"
                    " have no topic types; leave out the type"
                )

    async def _config_at(self, address: str, name: str) -> TopicConfig | None:
        try:
            return await self._brokers.read(address, TopicSettings(topic=name), TopicConfig)
        except TopicNotFound:
            return None
        except CodeNotSupported:  # brokers of RocketMQ 4 return only the settings of all topics
            return (await self._brokers.read(address, AllTopics(), TopicConfigTable)).topics.get(name)


def _as_order(config: TopicConfig, attributes: str | None) -> CreateTopic:
    return CreateTopic(
        topic=config.name,
        read_queues=config.read_queues,
        write_queues=config.write_queues,
        permission=config.permission,
        default_topic=AUTO_CREATE_TOPIC,
        order=config.order,
        filter_type=config.filter_type,
        sys_flag=config.sys_flag,
        attributes=attributes,
    )


def _described(configs: Mapping[str, TopicConfig]) -> str:
    return "; ".join(
        f"{broker} has {counted(config.read_queues, 'queue')} to read and {config.write_queues} to write, "
        f"permission {permission_text(config.permission)}"
        for broker, config in configs.items()
    )


def _fixed_text(queues: Mapping[str, int]) -> str:
    return ";".join(f"{broker}:{count}" for broker, count in sorted(queues.items()))


def _fixed_queues(text: str | None) -> dict[str, int]:
    """Return the queue counts by broker name from an order topic's stored text, `broker-a:8;broker-b:8`."""
    pairs = (each.rpartition(":") for each in (text or "").split(";") if each)
    return {broker: int(count) for broker, _, count in pairs if count.isdigit()}
