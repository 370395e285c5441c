"""The async admin client for topics, groups, offsets, brokers and single messages of a whole cluster.

A request about a topic or group goes to every broker that has it; the responses are merged into one result.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from pyromq.client.admin.admin_client import AdminClient, ClusterBrokers
from pyromq.client.admin.cluster_accounts import Accounts
from pyromq.client.admin.cluster_groups import ClusterGroups
from pyromq.client.admin.cluster_offsets import ClusterOffsets
from pyromq.client.admin.cluster_topics import ClusterTopics
from pyromq.client.admin.exports import Exports
from pyromq.client.admin.members import Members
from pyromq.client.admin.messages.delayed_messages import ClusterDelayLevels
from pyromq.client.admin.messages.message_life import LifeEvent, life_of
from pyromq.client.admin.messages.message_search import find_at, find_by_key, find_message
from pyromq.client.admin.overviews import Overviews
from pyromq.client.admin.replica_sets import ReplicaSets
from pyromq.client.admin.servers import ClusterKv, Servers
from pyromq.client.arguments import checked
from pyromq.clock import Clock
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import TRACE_TOPIC
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import (
    ClusterTable,
    KeyValues,
)
from pyromq.remoting.headers import (
    AddWritePermission,
    AddWritePermissionResponse,
    BrokerState,
    DeleteExpiredLog,
    DeleteExpiredLogResponse,
    WipeWritePermission,
    WipeWritePermissionResponse,
)

P = ParamSpec("P")
T = TypeVar("T")


def forwarded(
    noun: str, method: Callable[Concatenate[Any, P], Awaitable[T]]
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """Return a method that calls `method` of the object in attribute `noun`, with docstring and types of `method`."""

    @wraps(method)
    async def forward(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await method(getattr(self, noun), *args, **kwargs)

    return forward


@checked
class AsyncAdmin(AdminClient):
    """Administers a cluster, for programs with an event loop; `Admin` is the blocking form.

        async with AsyncAdmin() as admin:
            await admin.create_topic("orders", queues=8)
            print(await admin.overviews.topics())

    `namesrv` is as for `AsyncProducer`, `connections` and `instance` as in `ProducerConfig`; `timeout` is seconds for
    each request. Entering raises `NoNameServer` immediately if no name server can be reached. Methods raise
    `UsageError` for illegal arguments, `Unavailable` if a broker does not answer or none is registered, and a
    `BrokerError` (`TopicNotFound`, `ConsumerNotOnline`, ...) for a refusal by a server.

    Further methods are in attributes. `members` sends requests to members of groups, `servers` to single brokers and
    the name servers. `replica_sets` shows replica sets and changes their masters. `accounts` manages accounts of
    brokers with permissions. `overviews` lists all topics or groups, `delay_levels` lists messages in delay levels, and
    `exports` returns the contents of mqadmin's exports.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        clock: Clock | None = None,
        instance: str | None = None,
        connections: ConnectionConfig | None = None,
    ) -> None:
        super().__init__(namesrv, timeout=timeout, clock=clock, instance=instance, connections=connections)
        self._brokers = ClusterBrokers(self._cluster, timeout=timeout)
        self._kv = ClusterKv(self._brokers)
        self._topics = ClusterTopics(self._cluster, self._brokers, self._kv)
        self._groups = ClusterGroups(self._cluster, self._brokers, self._topics)
        self._offsets = ClusterOffsets(self._cluster, self._brokers, timeout=timeout)
        clock = self._clock
        self.members = Members(self._cluster, self._brokers, self._groups, self._offsets, timeout=timeout, clock=clock)
        self.servers = Servers(self._cluster, self._brokers, clock=clock)
        self.overviews = Overviews(self._brokers, self.servers)
        self.accounts = Accounts(self._brokers)
        self.replica_sets = ReplicaSets(self._brokers, clock=clock)
        self.delay_levels = ClusterDelayLevels(self._cluster, self._brokers, timeout=timeout)
        self.exports = Exports(self._cluster, self._brokers, self.servers)

    create_topic = forwarded("_topics", ClusterTopics.create_topic)
    alter_topic = forwarded("_topics", ClusterTopics.alter_topic)
    delete_topic = forwarded("_topics", ClusterTopics.delete_topic)
    topics = forwarded("_topics", ClusterTopics.topics)
    topic_route = forwarded("_topics", ClusterTopics.topic_route)
    topic_status = forwarded("_topics", ClusterTopics.topic_status)
    topic_config = forwarded("_topics", ClusterTopics.topic_config)
    topic_configs = forwarded("_topics", ClusterTopics.topic_configs)
    allocation = forwarded("_topics", ClusterTopics.allocation)

    create_group = forwarded("_groups", ClusterGroups.create_group)
    alter_group = forwarded("_groups", ClusterGroups.alter_group)
    delete_group = forwarded("_groups", ClusterGroups.delete_group)
    groups = forwarded("_groups", ClusterGroups.groups)
    group_configs = forwarded("_groups", ClusterGroups.group_configs)
    consumer_connection = forwarded("_groups", ClusterGroups.consumer_connection)
    group_state = forwarded("_groups", ClusterGroups.group_state)
    producer_connection = forwarded("_groups", ClusterGroups.producer_connection)

    group_progress = forwarded("_offsets", ClusterOffsets.group_progress)
    reset_offset = forwarded("_offsets", ClusterOffsets.reset_offset)
    commit_offset = forwarded("_offsets", ClusterOffsets.commit_offset)
    clone_offsets = forwarded("_offsets", ClusterOffsets.clone_offsets)
    queue_entries = forwarded("_offsets", ClusterOffsets.queue_entries)

    put_kv = forwarded("_kv", ClusterKv.put_kv)
    kv = forwarded("_kv", ClusterKv.kv)
    delete_kv = forwarded("_kv", ClusterKv.delete_kv)
    kv_namespace = forwarded("_kv", ClusterKv.kv_namespace)

    async def cluster(self) -> ClusterTable:
        """Return all registered brokers by name, and the broker names of each cluster."""
        return await self._brokers.table()

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime figures of the broker at `host:port`, as strings by RocketMQ's names."""
        return (await self._brokers.read(address, BrokerState(), KeyValues)).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of the broker at `host:port`, by their names in RocketMQ's configuration files."""
        return await self._brokers.settings(address)

    async def expire_log(self, address: str, *, older_than_hours: int | None = None) -> DeleteExpiredLogResponse:
        """Let the broker at `host:port` delete expired messages now. None means expired by the broker's own setting.

        The response has the number of deleted log files and the first log offset kept; Java's brokers send neither.
        """
        response = await self._brokers.ask(address, DeleteExpiredLog(older_than_hours=older_than_hours))
        return response.header(DeleteExpiredLogResponse)

    async def wipe_write_permission(self, broker: str) -> int:
        """Remove a broker, by its name, from producers' routes. Return the number of topics changed."""
        responses = await self._brokers.ask_name_servers(WipeWritePermission(broker_name=broker))
        return max(response.header(WipeWritePermissionResponse).count for response in responses)

    async def add_write_permission(self, broker: str) -> int:
        """Put a broker, by its name, back into producers' routes. Return the number of topics changed."""
        responses = await self._brokers.ask_name_servers(AddWritePermission(broker_name=broker))
        return max(response.header(AddWritePermissionResponse).count for response in responses)

    async def view(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Return one message by its unique id, its offset id or its recall handle. Raises `QueryNotFound`.

        A unique id is searched in `topic`, or without `topic` in all topics with one request per topic. A damaged
        message is returned with `is_damaged` set, and a warning is logged.
        """
        self._cluster.check_running()
        return await find_message(self._cluster, message_id, topic, timeout=self._timeout)

    async def message_life(
        self, message_id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC
    ) -> list[LifeEvent]:
        """Return the events of the message with this unique id, offset id or recall handle, in order of time.

        Sources are the traces of clients and the brokers' logs. Without `topic`, all topics are searched unless a
        trace names the topic. Raises `QueryNotFound` if there is no event.
        """
        self._cluster.check_running()
        return await life_of(
            self._cluster, self._offsets, message_id, topic=topic, trace_topic=trace_topic, timeout=self._timeout
        )

    async def view_at(self, queue: MessageQueue, offset: int) -> StoredMessage:
        """Return the message at a queue offset. Raises `QueryNotFound`.

        A damaged message is returned with `is_damaged` set, and a warning is logged.
        """
        self._cluster.check_running()
        return await find_at(self._cluster, queue, offset, timeout=self._timeout)

    async def query_by_key(
        self,
        topic: str,
        key: str,
        max_count: int = 32,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        at_brokers_of: str | None = None,
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key and were stored between two times, newest first.

        Each broker returns at most 64. Times are ms since 1970; `end_ms` None means now. Damaged messages are returned
        with `is_damaged` set. `at_brokers_of` names a topic whose brokers are asked, if `topic` is internal and has no
        route.
        """
        self._cluster.check_running()
        found = await find_by_key(
            self._cluster,
            topic,
            key,
            max_count=max_count,
            between=(begin_ms, end_ms),
            timeout=self._timeout,
            at_brokers_of=at_brokers_of,
        )
        return found[:max_count]
