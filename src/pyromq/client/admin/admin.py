"""The async admin client: topics, groups, offsets, brokers and single messages of a whole cluster.

What concerns topics and groups is done at every broker that has them; answers of several brokers are joined.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from pyromq.client.admin.group_state import GroupState, put_together
from pyromq.client.admin.message_search import find_by_key, find_by_offset_id, find_by_unique_id
from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.cluster.routes import MASTER
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.client.lifespan import AsyncLifespan
from pyromq.clock import Clock, SystemClock
from pyromq.errors import (
    BrokerError,
    CodeNotSupported,
    ConsumerNotOnline,
    GroupNotFound,
    QueryNotFound,
    TopicNotFound,
    Unavailable,
    UsageError,
)
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import check_group, check_topic, dead_letter_topic, retry_topic
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.remoting.bodies import (
    BrokerAddresses,
    ClusterTable,
    Connection,
    ConsumerConnection,
    ConsumeStats,
    GroupConfig,
    GroupConfigTable,
    KeyValues,
    ProducerConnection,
    ResetOffsets,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicRoute,
    TopicStats,
    decode_body,
    encode_body,
)
from pyromq.remoting.codes import Permission
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import (
    AddWritePermission,
    AddWritePermissionResponse,
    AllGroups,
    AllTopics,
    BrokerSettings,
    BrokerState,
    Cluster,
    ConsumerConnections,
    ConsumeStatistics,
    CreateTopic,
    DeleteExpiredLog,
    DeleteExpiredLogResponse,
    DeleteGroup,
    DeleteKv,
    DeleteTopic,
    DeleteTopicName,
    KvNamespace,
    KvValue,
    KvValueResponse,
    ProducerConnections,
    PutKv,
    ResetOffset,
    RouteOfTopic,
    SaveGroup,
    TopicNames,
    TopicSettings,
    TopicStatistics,
    WipeWritePermission,
    WipeWritePermissionResponse,
)
from pyromq.remoting.properties import parse_properties

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"  # where name servers keep the fixed queues of order topics
END_OF_QUEUE = -1  # wire value of "reset to the end" instead of a time

B = TypeVar("B", bound=msgspec.Struct)

_PERMISSIONS = {"r": Permission.READ, "w": Permission.WRITE, "rw": Permission.READ | Permission.WRITE}


@dataclass(frozen=True, slots=True, order=True)
class QueueStatus:
    """One queue: the first offset still there, the offset of the next message, the last store time (ms; 0: none)."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    last_store_ms: int


@dataclass(frozen=True, slots=True, order=True)
class QueueProgress:
    """How far a group is in one queue; `last_ms` is when the last consumed message was stored (0: unknown)."""

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_ms: int

    @property
    def lag(self) -> int:
        """Messages not consumed yet."""
        return self.broker_offset - self.consumer_offset


@checked
class AsyncAdmin(AsyncLifespan):
    """Administers a cluster, for programs with an event loop; `Admin` is the same without one.

        async with AsyncAdmin() as admin:
            await admin.create_topic("orders", queues=8)

    `namesrv` is as for `AsyncProducer`; `timeout` is seconds for each request. Entering raises
    `NoNameServer` at once when no name server can be reached. Methods raise `UsageError` for what cannot be,
    `Unavailable` when a broker does not answer or none is registered, and a `BrokerError` (`TopicNotFound`,
    `ConsumerNotOnline`, ...) for an answer that says no.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        clock: Clock | None = None,
        connections: ConnectionConfig = PLAIN,
    ) -> None:
        self._timeout = timeout
        self._membership = ClusterClient(namesrv, clock or SystemClock(), connections=connections)
        self._offsets = QueueOffsets(self._membership, timeout=timeout)

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        await self._membership.start()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._membership.running:
            await self._membership.close()

    # --- topics

    async def create_topic(
        self,
        name: str,
        queues: int = 8,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str = "rw",
        order: bool = False,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Create a topic, or replace its settings, at every master, or only in one `cluster` or at one `broker`.

        Each broker gets `queues` queues; `permission` is `r`, `w` or `rw`. `order` also fixes the topic's queue list
        at the name servers, so that a dead broker's queues are not replaced by others. What a topic that may exist
        should keep, `alter_topic` keeps.
        """
        check_topic(name)
        _check_permission(permission)
        masters = await self._masters(cluster=cluster, broker=broker)
        header = CreateTopic(
            topic=name,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=int(_PERMISSIONS[permission]),
            default_topic="TBW102",
            order=order,
        )
        await self._ask_each(masters.values(), header)
        if order:
            await self._fix_queues(name, dict.fromkeys(masters, header.write_queues))
        self._membership.routes.forget(name)

    async def alter_topic(
        self,
        name: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: str | None = None,
        order: bool | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> None:
        """Change of a topic's settings what is given, at every master that has it. Raises `TopicNotFound`.

        Messages in queues that are read no more stay where they are, out of sight, until the queues are read again.
        """
        if permission is not None:
            _check_permission(permission)
        masters = await self._masters(cluster=cluster, broker=broker)
        configs = await self.topic_configs(name, cluster=cluster, broker=broker)
        if not configs:
            raise TopicNotFound(f"topic {name} does not exist at {_list(masters)}")
        fixed = _fixed_queues(await self.kv(ORDER_NAMESPACE, name))
        for broker_name, old in configs.items():
            new = altered(old, read_queues=read_queues, write_queues=write_queues, permission=permission, order=order)
            configs[broker_name] = new
            await self._ask(masters[broker_name], _as_order(new))
        if order or (order is None and fixed):
            await self._fix_queues(name, {broker_name: new.write_queues for broker_name, new in configs.items()})
        elif fixed:
            await self.delete_kv(ORDER_NAMESPACE, name)
        self._membership.routes.forget(name)

    async def _fix_queues(self, name: str, queues: dict[str, int]) -> None:
        """Tell the name servers how many queues an order topic has at these brokers; at others it keeps them."""
        known = _fixed_queues(await self.kv(ORDER_NAMESPACE, name))
        value = ";".join(f"{broker_name}:{count}" for broker_name, count in sorted((known | queues).items()))
        await self.put_kv(ORDER_NAMESPACE, name, value)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its queues at every broker that has it, and at the name servers."""
        route = await self.topic_route(name)
        await self._ask_each(_masters(route.brokers).values(), DeleteTopic(topic=name))
        await self._ask_name_servers(DeleteTopicName(topic=name))
        if route.order_conf:
            await self.delete_kv(ORDER_NAMESPACE, name)
        self._membership.routes.forget(name)

    async def topics(self) -> list[str]:
        """Return the names of all topics, reserved ones included, in order."""
        return sorted(set((await self._name_server(TopicNames(), TopicList)).topics))

    async def topic_route(self, name: str) -> TopicRoute:
        """Return which brokers hold a topic, asked now. Raises `TopicNotFound`."""
        return await self._name_server(RouteOfTopic(topic=name, standard_json_only=True), TopicRoute)

    async def topic_status(self, name: str) -> list[QueueStatus]:
        """Return the bounds of every queue of a topic, in order. Raises `TopicNotFound`."""
        masters = _masters((await self.topic_route(name)).brokers)
        found = []
        for response in await self._ask_each(masters.values(), TopicStatistics(topic=name)):
            stats = decode_body(TopicStats, response.body)
            found += [
                QueueStatus(queue, each.min_offset, each.max_offset, each.last_update_ms)
                for queue, each in stats.queues.items()
            ]
        return sorted(found)

    async def topic_config(self, name: str) -> TopicConfig:
        """Return a topic's settings as the first of its brokers has them. Raises `TopicNotFound`."""
        masters = _masters((await self.topic_route(name)).brokers)
        if not masters:
            raise Unavailable(f"no master of topic {name!r} is registered")
        address = masters[min(masters)]
        config = await self._topic_config_at(address, name)
        if config is None:
            raise TopicNotFound(f"broker {address} has no topic {name!r}")
        return config

    async def topic_configs(
        self, name: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return a topic's settings by the name of the broker, of all brokers that have it; {} if none has."""
        masters = await self._masters(cluster=cluster, broker=broker)
        found = {each: await self._topic_config_at(masters[each], name) for each in sorted(masters)}
        return {each: config for each, config in found.items() if config is not None}

    async def _topic_config_at(self, address: str, name: str) -> TopicConfig | None:
        try:
            return decode_body(TopicConfig, (await self._ask(address, TopicSettings(topic=name))).body)
        except TopicNotFound:
            return None
        except CodeNotSupported:  # RocketMQ 4 knows only the whole table
            table = decode_body(TopicConfigTable, (await self._ask(address, AllTopics())).body)
            return table.topics.get(name)

    # --- groups

    async def create_group(self, config: GroupConfig) -> None:
        """Create a consumer group, or replace its settings, at every master."""
        check_group(config.name)
        await self._ask_each((await self._masters()).values(), SaveGroup(), encode_body(config))

    async def alter_group(
        self,
        name: str,
        *,
        retries: int | None = None,
        retry_queues: int | None = None,
        enabled: bool | None = None,
        broadcast: bool | None = None,
    ) -> None:
        """Change of a group's settings what is given, at every master. Raises `GroupNotFound` when none has it.

        A master that does not have the group gets it as another one has it.
        """
        masters = await self._masters()
        configs = await self.group_configs(name)
        if not configs:
            raise GroupNotFound(f"group {name} does not exist")
        given = {
            "retry_max_times": retries,
            "retry_queues": retry_queues,
            "consume_enabled": enabled,
            "broadcast_enabled": broadcast,
        }
        changes = {field: value for field, value in given.items() if value is not None}
        for broker_name, address in masters.items():
            config = configs.get(broker_name) or configs[min(configs)]
            await self._ask(address, SaveGroup(), encode_body(msgspec.structs.replace(config, **changes)))

    async def delete_group(self, name: str) -> None:
        """Delete a consumer group with its offsets, retry topic and dead-letter topic at every master."""
        check_group(name)
        await self._ask_each((await self._masters()).values(), DeleteGroup(group=name, remove_offsets=True))
        for topic in (retry_topic(name), dead_letter_topic(name)):
            try:
                await self.delete_topic(topic)
            except TopicNotFound:
                pass  # a group that never failed has none

    async def groups(self) -> list[GroupConfig]:
        """Return the settings of all consumer groups, by name; of a group at several brokers, one broker's."""
        groups: dict[str, GroupConfig] = {}
        for table in (await self._groups_by_broker()).values():
            groups |= table
        return [groups[name] for name in sorted(groups)]

    async def group_configs(self, name: str) -> dict[str, GroupConfig]:
        """Return a group's settings by the name of the broker, of all brokers that have it; {} if none has."""
        tables = await self._groups_by_broker()
        return {broker_name: table[name] for broker_name, table in sorted(tables.items()) if name in table}

    async def _groups_by_broker(self) -> dict[str, dict[str, GroupConfig]]:
        masters = await self._masters()
        answers = await self._ask_each(masters.values(), AllGroups())
        tables = (decode_body(GroupConfigTable, each.body).groups for each in answers)
        return dict(zip(masters, tables, strict=True))

    async def group_progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return how far a group is in each queue it has consumed from, in order; [] where nothing is known."""
        masters = await self._masters()
        found = []
        for response in await self._ask_each(masters.values(), ConsumeStatistics(consumer_group=group, topic=topic)):
            stats = decode_body(ConsumeStats, response.body)
            found += [
                QueueProgress(queue, each.broker_offset, each.consumer_offset, each.last_ms)
                for queue, each in stats.queues.items()
            ]
        return sorted(found)

    async def consumer_connection(self, group: str) -> ConsumerConnection:
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

    async def group_state(self, group: str) -> GroupState:
        """Return a group's members, what each of them wants, and who has locked which queue."""
        return put_together(
            group, await self._consumer_connections(ConsumerConnections(consumer_group=group, details=True))
        )

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """Return the clients of a producer group at the brokers of a topic. Raises `BrokerError` when there is none."""
        members: dict[str, Connection] = {}
        refusal: BrokerError | None = None
        for address in _masters((await self.topic_route(topic)).brokers).values():
            try:
                response = await self._ask(address, ProducerConnections(producer_group=group))
            except BrokerError as error:
                refusal = error
                continue
            found = decode_body(ProducerConnection, response.body)
            members.update((each.client_id, each) for each in found.connections)
        if not members and refusal is not None:
            raise refusal
        return ProducerConnection(connections=[members[client_id] for client_id in sorted(members)])

    # --- offsets

    async def reset_offset(self, group: str, topic: str, timestamp_ms: int | None) -> dict[MessageQueue, int]:
        """Let a group go on at a time (ms since 1970; None: the end) and return the new offset of each queue.

        Members that are online are told by the broker; without any, the stored offsets are changed.
        """
        offsets: dict[MessageQueue, int] = {}
        time = END_OF_QUEUE if timestamp_ms is None else timestamp_ms
        self._membership.routes.forget(topic)
        route = await self._membership.route(topic)
        for broker_name in sorted(route.addresses):
            if (address := route.master(broker_name)) is None:
                continue
            if await self._has_members(address, group):
                order = ResetOffset(topic=topic, group=group, timestamp=time, force=True)
                table = decode_body(ResetOffsets, (await self._ask(address, order)).body).offsets
                assert isinstance(table, dict), "the list form is for C++ clients"
                offsets |= table
            else:
                queues = [queue for queue in route.readable if queue.broker_name == broker_name]
                offsets |= await self._reset_stored(group, queues, timestamp_ms)
        return offsets

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store where a group goes on in one queue. Members that are online do not notice."""
        check_group(group)
        if offset < 0:
            raise UsageError(f"offset {offset} is negative")
        await self._offsets.commit(group, queue, offset)

    # --- brokers and name servers

    async def cluster(self) -> ClusterTable:
        """Return all registered brokers by name, and the broker names of each cluster."""
        return await self._name_server(Cluster(), ClusterTable)

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime figures of the broker at `host:port`."""
        return decode_body(KeyValues, (await self._ask(address, BrokerState())).body).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of the broker at `host:port`, by the names of RocketMQ's configuration files."""
        return parse_properties((await self._ask(address, BrokerSettings())).body.decode())

    async def expire_log(self, address: str, *, older_than_hours: int | None = None) -> DeleteExpiredLogResponse:
        """Let the broker at `host:port` delete expired messages at once; None: what its settings call expired.

        The answer says how many log files go now, and from which log offset on none goes; Java brokers say neither.
        """
        response = await self._ask(address, DeleteExpiredLog(older_than_hours=older_than_hours))
        return response.header(DeleteExpiredLogResponse)

    async def wipe_write_permission(self, broker: str) -> int:
        """Take a broker, by name, out of producers' routes; return how many topics changed."""
        responses = await self._ask_name_servers(WipeWritePermission(broker_name=broker))
        return max(response.header(WipeWritePermissionResponse).count for response in responses)

    async def add_write_permission(self, broker: str) -> int:
        """Put a broker, by name, back into producers' routes; return how many topics changed."""
        responses = await self._ask_name_servers(AddWritePermission(broker_name=broker))
        return max(response.header(AddWritePermissionResponse).count for response in responses)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server."""
        await self._ask_name_servers(PutKv(namespace=namespace, key=key, value=value))

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a stored value; None if there is none."""
        try:
            response = await self._ask_name_server(KvValue(namespace=namespace, key=key))
        except QueryNotFound:
            return None
        return response.header(KvValueResponse).value

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server."""
        await self._ask_name_servers(DeleteKv(namespace=namespace, key=key))

    async def kv_namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace; {} if there are none."""
        try:
            return (await self._name_server(KvNamespace(namespace=namespace), KeyValues)).table
        except QueryNotFound:
            return {}

    # --- messages

    async def view(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Return one message: by the broker's offset id, or with `topic` by either id. Raises `QueryNotFound`."""
        self._membership.check_running()
        if topic is not None:
            found = await find_by_unique_id(self._membership, topic, message_id, timeout=self._timeout)
            if found is not None:
                return found
        return await find_by_offset_id(self._membership, message_id, timeout=self._timeout)

    async def query_by_key(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key and were stored between two times, newest first.

        Brokers give at most 64 each. Times are ms since 1970; `end_ms` None means now.
        """
        self._membership.check_running()
        found = await find_by_key(
            self._membership, topic, key, max_count=max_count, between=(begin_ms, end_ms), timeout=self._timeout
        )
        return found[:max_count]

    async def _consumer_connections(self, question: ConsumerConnections) -> list[ConsumerConnection]:
        """Return the answers of the brokers that know members."""
        found = []
        for address in (await self._masters()).values():
            try:
                response = await self._ask(address, question)
            except ConsumerNotOnline:
                continue
            found.append(decode_body(ConsumerConnection, response.body))
        return found

    async def _has_members(self, address: str, group: str) -> bool:
        try:
            await self._ask(address, ConsumerConnections(consumer_group=group))
        except ConsumerNotOnline:
            return False
        return True

    async def _reset_stored(
        self, group: str, queues: list[MessageQueue], timestamp_ms: int | None
    ) -> dict[MessageQueue, int]:
        offsets = {}
        for queue in queues:
            if timestamp_ms is None:
                offsets[queue] = await self._offsets.end(queue)
            else:
                offsets[queue] = await self._offsets.by_time(queue, timestamp_ms)
            await self._offsets.commit(group, queue, offsets[queue])
        return offsets

    async def _masters(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
        """Return the masters' addresses by broker name. Raises `UsageError` and `Unavailable` when there is none."""
        table = await self.cluster()
        if cluster is not None and cluster not in table.clusters:
            raise UsageError(f"cluster {cluster!r} does not exist; there is {_list(table.clusters)}")
        if broker is not None and broker not in table.brokers:
            raise UsageError(f"broker {broker!r} is not registered; there is {_list(table.brokers)}")
        masters = _masters(
            each
            for name, each in table.brokers.items()
            if (cluster is None or name in table.clusters[cluster]) and (broker is None or name == broker)
        )
        if not masters:
            where = ";".join(self._membership.name_servers.addresses)
            raise Unavailable(f"no broker is registered at name server {where}; start one with --namesrv {where}")
        return masters

    async def _ask(self, address: str, header: Header, body: bytes = b"") -> Response:
        return (await self._membership.ask(address, header, body, timeout=self._timeout)).check()

    async def _ask_each(self, addresses: Iterable[str], header: Header, body: bytes = b"") -> list[Response]:
        """Ask one broker after the other; the first that fails ends it, so that the error names it."""
        return [await self._ask(address, header, body) for address in addresses]

    async def _ask_name_server(self, header: Header) -> Response:
        self._membership.check_running()
        return (await self._membership.name_servers.ask(header)).check()

    async def _name_server(self, header: Header, body: type[B]) -> B:
        return decode_body(body, (await self._ask_name_server(header)).body)

    async def _ask_name_servers(self, header: Header) -> list[Response]:
        """Ask all name servers, which do not tell each other."""
        self._membership.check_running()
        return [response.check() for response in await self._membership.name_servers.ask_each(header)]


def altered(
    config: TopicConfig,
    *,
    read_queues: int | None = None,
    write_queues: int | None = None,
    permission: str | None = None,
    order: bool | None = None,
) -> TopicConfig:
    """Return the settings with what is given changed."""
    given = {"read_queues": read_queues, "write_queues": write_queues, "order": order}
    changes = {field: value for field, value in given.items() if value is not None}
    if permission is not None:
        changes["permission"] = (config.permission & ~_PERMISSIONS["rw"]) | _PERMISSIONS[permission]
    return msgspec.structs.replace(config, **changes)


def _as_order(config: TopicConfig) -> CreateTopic:
    return CreateTopic(
        topic=config.name,
        read_queues=config.read_queues,
        write_queues=config.write_queues,
        permission=config.permission,
        default_topic="TBW102",
        order=config.order,
        filter_type=config.filter_type,
        sys_flag=config.sys_flag,
    )


def _fixed_queues(text: str | None) -> dict[str, int]:
    """Return the queues by broker that name servers keep of an order topic: `broker-a:8;broker-b:8`."""
    pairs = (each.rpartition(":") for each in (text or "").split(";") if each)
    return {broker: int(count) for broker, _, count in pairs if count.isdigit()}


def _check_permission(permission: str) -> None:
    if permission not in _PERMISSIONS:
        raise UsageError(f"permission {permission!r} is none of {', '.join(_PERMISSIONS)}")


def _masters(brokers: Iterable[BrokerAddresses]) -> dict[str, str]:
    return {broker.broker_name: broker.addresses[MASTER] for broker in brokers if MASTER in broker.addresses}


def _list(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
