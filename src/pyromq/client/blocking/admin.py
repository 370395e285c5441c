"""The blocking admin client: the async one behind a `BlockingRunner`, with no behaviour of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import wraps
from typing import ParamSpec, TypeVar

from pyromq.client.admin.accounts import Accounts
from pyromq.client.admin.admin import AsyncAdmin
from pyromq.client.admin.doctor.diagnosis import diagnose
from pyromq.client.admin.doctor.finding import Finding
from pyromq.client.admin.exports import Exports
from pyromq.client.admin.group_state import GroupState
from pyromq.client.admin.members import Members
from pyromq.client.admin.messages.delay_levels import DelayLevels
from pyromq.client.admin.messages.message_life import LifeEvent
from pyromq.client.admin.offsets import QueueProgress
from pyromq.client.admin.overviews import Overviews
from pyromq.client.admin.servers import Servers
from pyromq.client.admin.topics import QueueStatus
from pyromq.client.blocking.blocking_runner import BlockingRunner
from pyromq.client.lifespan import Lifespan
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import TRACE_TOPIC
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import (
    ClusterTable,
    ConsumerConnection,
    GroupConfig,
    ProducerConnection,
    QueueEntriesBody,
    TopicConfig,
    TopicRoute,
)
from pyromq.remoting.headers import DeleteExpiredLogResponse

P = ParamSpec("P")
T = TypeVar("T")


class Admin(Lifespan):
    """Administers a cluster; blocking, for programs without an event loop.

        with Admin() as admin:
            admin.create_topic("orders", queues=8)

    Arguments, units and errors are those of `AsyncAdmin`.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        instance: str | None = None,
        connections: ConnectionConfig | None = None,
    ) -> None:
        self._async = AsyncAdmin(namesrv, timeout=timeout, instance=instance, connections=connections)
        self._portal = BlockingRunner(self.close, instance)
        self.members = BlockingMembers(self._portal, self._async.members)
        self.servers = BlockingServers(self._portal, self._async.servers)
        self.overviews = BlockingOverviews(self._portal, self._async.overviews)
        self.accounts = BlockingAccounts(self._portal, self._async.accounts)
        self.delay_levels = BlockingDelayLevels(self._portal, self._async.delay_levels)
        self.exports = BlockingExports(self._portal, self._async.exports)

    @staticmethod
    def diagnose(
        namesrv: str | None = None, topic: str | None = None, *, connections: ConnectionConfig | None = None
    ) -> list[Finding]:
        """Check step by step why sending or consuming does not work; needs no started client."""
        portal = BlockingRunner(lambda: None)
        portal.start(_nothing)
        try:
            return portal.run(diagnose, namesrv, topic, connections=connections)
        finally:
            portal.close(_nothing)

    def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        self._portal.start(self._async.start)

    def close(self) -> None:
        """Close the connections. Idempotent."""
        self._portal.close(self._async.close)

    def create_topic(
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
        replace: bool = False,
    ) -> None:
        """Create a topic; `AlreadyExists` unless `replace` is given. See `AsyncAdmin.create_topic`."""
        self._portal.run(
            self._async.create_topic,
            name,
            queues,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=permission,
            order=order,
            cluster=cluster,
            broker=broker,
            replace=replace,
        )

    def alter_topic(
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
        """Change of a topic's settings what is given; see `AsyncAdmin.alter_topic`."""
        self._portal.run(
            self._async.alter_topic,
            name,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=permission,
            order=order,
            cluster=cluster,
            broker=broker,
        )

    def delete_topic(self, name: str) -> None:
        """Delete a topic with its queues at every broker that has it, and at the name servers."""
        self._portal.run(self._async.delete_topic, name)

    def topics(self) -> list[str]:
        """Return the names of all topics, reserved ones included, in order."""
        return self._portal.run(self._async.topics)

    def topic_route(self, name: str) -> TopicRoute:
        """Return which brokers hold a topic, asked now. Raises `TopicNotFound`."""
        return self._portal.run(self._async.topic_route, name)

    def topic_status(self, name: str) -> list[QueueStatus]:
        """Return the bounds of every queue of a topic, in order. Raises `TopicNotFound`."""
        return self._portal.run(self._async.topic_status, name)

    def topic_config(self, name: str) -> TopicConfig:
        """Return a topic's settings as the first of its brokers has them. Raises `TopicNotFound`."""
        return self._portal.run(self._async.topic_config, name)

    def topic_configs(
        self, name: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return a topic's settings by the name of the broker, of all brokers that have it; {} if none has."""
        return self._portal.run(self._async.topic_configs, name, cluster=cluster, broker=broker)

    def allocation(self, topic: str, client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Return which queues of a topic each of these members would get by averaging, the usual strategy."""
        return self._portal.run(self._async.allocation, topic, client_ids)

    def create_group(self, config: GroupConfig, *, replace: bool = False) -> None:
        """Create a consumer group; `AlreadyExists` unless `replace` is given. See `AsyncAdmin.create_group`."""
        self._portal.run(self._async.create_group, config, replace=replace)

    def alter_group(
        self,
        name: str,
        *,
        retries: int | None = None,
        retry_queues: int | None = None,
        enabled: bool | None = None,
        broadcast: bool | None = None,
    ) -> None:
        """Change of a group's settings what is given, at every master; see `AsyncAdmin.alter_group`."""
        self._portal.run(
            self._async.alter_group,
            name,
            retries=retries,
            retry_queues=retry_queues,
            enabled=enabled,
            broadcast=broadcast,
        )

    def delete_group(self, name: str) -> None:
        """Delete a consumer group with its offsets, retry topic and dead-letter topic at every master."""
        self._portal.run(self._async.delete_group, name)

    def groups(self) -> list[GroupConfig]:
        """Return the settings of all consumer groups, by name."""
        return self._portal.run(self._async.groups)

    def group_configs(self, name: str) -> dict[str, GroupConfig]:
        """Return a group's settings by the name of the broker, of all brokers that have it; {} if none has."""
        return self._portal.run(self._async.group_configs, name)

    def group_progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return how far a group is in each queue it has consumed from, in order; [] where nothing is known."""
        return self._portal.run(self._async.group_progress, group, topic)

    def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return a group's members and subscriptions. Raises `ConsumerNotOnline` when it has no member."""
        return self._portal.run(self._async.consumer_connection, group)

    def group_state(self, group: str) -> GroupState:
        """Return a group's members, what each of them wants, and who has locked which queue."""
        return self._portal.run(self._async.group_state, group)

    def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """Return the clients of a producer group at the brokers of a topic. Raises `BrokerError` when there is none."""
        return self._portal.run(self._async.producer_connection, group, topic)

    def reset_offset(self, group: str, topic: str, timestamp_ms: int | None) -> dict[MessageQueue, int]:
        """Let a group go on at a time (ms since 1970; None: the end) and return the new offset of each queue."""
        return self._portal.run(self._async.reset_offset, group, topic, timestamp_ms)

    def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store where a group goes on in one queue. Members that are online do not notice."""
        self._portal.run(self._async.commit_offset, group, queue, offset)

    def clone_offsets(self, source: str, destination: str, topic: str) -> dict[MessageQueue, int]:
        """Let group `destination` go on in a topic where `source` is, and return the offset of each queue."""
        return self._portal.run(self._async.clone_offsets, source, destination, topic)

    def queue_entries(
        self, queue: MessageQueue, index: int, count: int = 10, *, group: str | None = None
    ) -> QueueEntriesBody:
        """Return entries of a consume queue; see `AsyncAdmin.queue_entries`."""
        return self._portal.run(self._async.queue_entries, queue, index, count, group=group)

    def cluster(self) -> ClusterTable:
        """Return all registered brokers by name, and the broker names of each cluster."""
        return self._portal.run(self._async.cluster)

    def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime figures of the broker at `host:port`."""
        return self._portal.run(self._async.broker_runtime, address)

    def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of the broker at `host:port`, by the names of RocketMQ's configuration files."""
        return self._portal.run(self._async.broker_config, address)

    def expire_log(self, address: str, *, older_than_hours: int | None = None) -> DeleteExpiredLogResponse:
        """Let the broker at `host:port` delete expired messages at once; None: what its settings call expired.

        The answer says how many log files go now, and from which log offset on none goes; Java brokers say neither.
        """
        return self._portal.run(self._async.expire_log, address, older_than_hours=older_than_hours)

    def wipe_write_permission(self, broker: str) -> int:
        """Take a broker, by name, out of producers' routes; return how many topics changed."""
        return self._portal.run(self._async.wipe_write_permission, broker)

    def add_write_permission(self, broker: str) -> int:
        """Put a broker, by name, back into producers' routes; return how many topics changed."""
        return self._portal.run(self._async.add_write_permission, broker)

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server."""
        self._portal.run(self._async.put_kv, namespace, key, value)

    def kv(self, namespace: str, key: str) -> str | None:
        """Return a stored value; None if there is none."""
        return self._portal.run(self._async.kv, namespace, key)

    def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server."""
        self._portal.run(self._async.delete_kv, namespace, key)

    def kv_namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace; {} if there are none."""
        return self._portal.run(self._async.kv_namespace, namespace)

    def view(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Return one message: by the broker's offset id, or with `topic` by either id. Raises `QueryNotFound`."""
        return self._portal.run(self._async.view, message_id, topic)

    def message_life(
        self, message_id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC
    ) -> list[LifeEvent]:
        """Return what became of the message with a producer's id, in order of time. Raises `QueryNotFound`."""
        return self._portal.run(self._async.message_life, message_id, topic, trace_topic=trace_topic)

    def view_at(self, queue: MessageQueue, offset: int) -> StoredMessage:
        """Return the message at a queue offset. Raises `QueryNotFound`."""
        return self._portal.run(self._async.view_at, queue, offset)

    def query_by_key(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key, newest first; see `AsyncAdmin.query_by_key`."""
        return self._portal.run(self._async.query_by_key, topic, key, max_count, begin_ms=begin_ms, end_ms=end_ms)


async def _nothing() -> None:
    pass


class BlockingMembers:
    """`admin.members`; see `Members`."""

    def __init__(self, portal: BlockingRunner, members: Members) -> None:
        self.running = _blocking(portal, members.running)
        self.all_running = _blocking(portal, members.all_running)
        self.offsets = _blocking(portal, members.offsets)
        self.consume = _blocking(portal, members.consume)
        self.producers = _blocking(portal, members.producers)
        self.tracks = _blocking(portal, members.tracks)
        self.groups_of_topic = _blocking(portal, members.groups_of_topic)
        self.troubles = members.troubles


class BlockingServers:
    """`admin.servers`; see `Servers`."""

    def __init__(self, portal: BlockingRunner, servers: Servers) -> None:
        self.change_settings = _blocking(portal, servers.change_settings)
        self.settings_at_next_start = _blocking(portal, servers.settings_at_next_start)
        self.name_server_settings = _blocking(portal, servers.name_server_settings)
        self.change_name_server_settings = _blocking(portal, servers.change_name_server_settings)
        self.clean_topics = _blocking(portal, servers.clean_topics)
        self.clean_queues = _blocking(portal, servers.clean_queues)
        self.statistic = _blocking(portal, servers.statistic)
        self.progress = _blocking(portal, servers.progress)
        self.round_trips = _blocking(portal, servers.round_trips)


class BlockingAccounts:
    """`admin.accounts`; see `Accounts`."""

    def __init__(self, portal: BlockingRunner, accounts: Accounts) -> None:
        self.tables = _blocking(portal, accounts.tables)
        self.save = _blocking(portal, accounts.save)
        self.delete = _blocking(portal, accounts.delete)
        self.replace_white_list = _blocking(portal, accounts.replace_white_list)
        self.rights = _blocking(portal, accounts.rights)


class BlockingOverviews:
    """`admin.overviews`; see `Overviews`."""

    def __init__(self, portal: BlockingRunner, overviews: Overviews) -> None:
        self.topics = _blocking(portal, overviews.topics)
        self.groups = _blocking(portal, overviews.groups)
        self.rates = _blocking(portal, overviews.rates)
        self.figures = _blocking(portal, overviews.figures)


class BlockingDelayLevels:
    """`admin.delay_levels`; see `DelayLevels`."""

    def __init__(self, portal: BlockingRunner, levels: DelayLevels) -> None:
        self.all = _blocking(portal, levels.all)
        self.waiting = _blocking(portal, levels.waiting)


class BlockingExports:
    """`admin.exports`; see `Exports`."""

    def __init__(self, portal: BlockingRunner, exports: Exports) -> None:
        self.settings = _blocking(portal, exports.settings)
        self.metadata = _blocking(portal, exports.metadata)
        self.metrics = _blocking(portal, exports.metrics)


def _blocking(portal: BlockingRunner, method: Callable[P, Awaitable[T]]) -> Callable[P, T]:
    @wraps(method)
    def wait(*args: P.args, **kwargs: P.kwargs) -> T:
        return portal.run(method, *args, **kwargs)

    return wait
