"""The async admin client: topics, groups, offsets, brokers and single messages of a whole cluster.

What concerns topics and groups is done at every broker that has them; answers of several brokers are joined.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyromq.client.admin.accounts import Accounts
from pyromq.client.admin.admin_client import AdminClient
from pyromq.client.admin.brokers import ClusterBrokers
from pyromq.client.admin.exports import Exports
from pyromq.client.admin.group_state import GroupState
from pyromq.client.admin.groups import ClusterGroups
from pyromq.client.admin.kv import ClusterKv
from pyromq.client.admin.members import Members
from pyromq.client.admin.messages.delay_levels import DelayLevels
from pyromq.client.admin.messages.message_life import LifeEvent, life_of
from pyromq.client.admin.messages.message_search import find_at, find_by_key, find_message
from pyromq.client.admin.offsets import ClusterOffsets, QueueProgress
from pyromq.client.admin.overviews import Overviews
from pyromq.client.admin.servers import Servers
from pyromq.client.admin.topics import ClusterTopics, QueueStatus, TopicChange, permission_bits
from pyromq.client.arguments import checked
from pyromq.clock import Clock
from pyromq.message import MessageQueue, StoredMessage
from pyromq.names import AUTO_CREATE_TOPIC, TRACE_TOPIC, check_topic
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import (
    ClusterTable,
    ConsumerConnection,
    GroupConfig,
    KeyValues,
    ProducerConnection,
    QueueEntriesBody,
    TopicConfig,
    TopicRoute,
    decode_body,
)
from pyromq.remoting.headers import (
    AddWritePermission,
    AddWritePermissionResponse,
    BrokerSettings,
    BrokerState,
    CreateTopic,
    DeleteExpiredLog,
    DeleteExpiredLogResponse,
    WipeWritePermission,
    WipeWritePermissionResponse,
)
from pyromq.remoting.properties import parse_properties


@checked
class AsyncAdmin(AdminClient):
    """Administers a cluster, for programs with an event loop; `Admin` is the same without one.

        async with AsyncAdmin() as admin:
            await admin.create_topic("orders", queues=8)
            print(await admin.overviews.topics())

    `namesrv` is as for `AsyncProducer`, `connections` and `instance` as in `ProducerConfig`; `timeout` is seconds for
    each request. Entering raises `NoNameServer` at once when no name server can be reached. Methods raise `UsageError`
    for what cannot be, `Unavailable` when a broker does not answer or none is registered, and a `BrokerError`
    (`TopicNotFound`, `ConsumerNotOnline`, ...) for an answer that says no.

    `members` asks groups' members themselves, `servers` single brokers and the name servers; `overviews` shows all
    topics or groups at once, `delay_levels` what waits in the levels, `exports` gives what mqadmin's exports write.
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
        self._groups = ClusterGroups(self._brokers, self._topics)
        self._offsets = ClusterOffsets(self._cluster, self._brokers, timeout=timeout)
        clock = self._clock
        self.members = Members(self._cluster, self._brokers, self._groups, self._offsets, timeout=timeout, clock=clock)
        self.servers = Servers(self._cluster, self._brokers, clock=clock)
        self.overviews = Overviews(self._brokers, self.servers)
        self.accounts = Accounts(self._brokers)
        self.delay_levels = DelayLevels(self._cluster, self._brokers, timeout=timeout)
        self.exports = Exports(self._cluster, self._brokers, self.servers)

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
        replace: bool = False,
    ) -> None:
        """Create a topic at every master, or only in one `cluster` or at one `broker`.

        Each broker gets `queues` queues; `permission` is `r`, `w` or `rw`. `order` also fixes the topic's queue list
        at the name servers, so that a dead broker's queues are not replaced by others. Raises `AlreadyExists` when one
        of these masters has the topic: `alter_topic` changes single settings, `replace` sets all of them.
        """
        check_topic(name)
        header = CreateTopic(
            topic=name,
            read_queues=queues if read_queues is None else read_queues,
            write_queues=queues if write_queues is None else write_queues,
            permission=permission_bits(permission),
            default_topic=AUTO_CREATE_TOPIC,
            order=order,
        )
        await self._topics.create(header, cluster=cluster, broker=broker, replace=replace)

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
        change = TopicChange(read_queues, write_queues, permission, order)
        await self._topics.alter(name, change, cluster=cluster, broker=broker)

    async def delete_topic(self, name: str) -> None:
        """Delete a topic with its queues at every broker that has it, and at the name servers."""
        await self._topics.delete(name)

    async def topics(self) -> list[str]:
        """Return the names of all topics, reserved ones included, in order."""
        return await self._topics.names()

    async def topic_route(self, name: str) -> TopicRoute:
        """Return which brokers hold a topic, asked now. Raises `TopicNotFound`."""
        return await self._topics.route(name)

    async def topic_status(self, name: str) -> list[QueueStatus]:
        """Return the bounds of every queue of a topic, in order. Raises `TopicNotFound`."""
        return await self._topics.status(name)

    async def topic_config(self, name: str) -> TopicConfig:
        """Return a topic's settings as the first of its brokers has them. Raises `TopicNotFound`."""
        return await self._topics.config(name)

    async def topic_configs(
        self, name: str, *, cluster: str | None = None, broker: str | None = None
    ) -> dict[str, TopicConfig]:
        """Return a topic's settings by the name of the broker, of all brokers that have it; {} if none has."""
        return await self._topics.configs(name, cluster=cluster, broker=broker)

    async def allocation(self, topic: str, client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        """Return which queues of a topic each of these members would get by averaging, the usual strategy."""
        return await self._topics.allocation(topic, client_ids)

    # --- groups

    async def create_group(self, config: GroupConfig, *, replace: bool = False) -> None:
        """Create a consumer group at every master.

        Raises `AlreadyExists` when one has it: `alter_group` changes single settings, `replace` sets all of them.
        """
        await self._groups.create(config, replace=replace)

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
        given = {
            "retry_max_times": retries,
            "retry_queues": retry_queues,
            "consume_enabled": enabled,
            "broadcast_enabled": broadcast,
        }
        await self._groups.alter(name, {field: value for field, value in given.items() if value is not None})

    async def delete_group(self, name: str) -> None:
        """Delete a consumer group with its offsets, retry topic and dead-letter topic at every master."""
        await self._groups.delete(name)

    async def groups(self) -> list[GroupConfig]:
        """Return the settings of all consumer groups, by name; of a group at several brokers, one broker's."""
        return await self._groups.all()

    async def group_configs(self, name: str) -> dict[str, GroupConfig]:
        """Return a group's settings by the name of the broker, of all brokers that have it; {} if none has."""
        return await self._groups.configs(name)

    async def group_progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return how far a group is in each queue it has consumed from, in order; [] where nothing is known."""
        return await self._offsets.progress(group, topic)

    async def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return a group's members and subscriptions. Raises `ConsumerNotOnline` when it has no member."""
        return await self._groups.members(group)

    async def group_state(self, group: str) -> GroupState:
        """Return a group's members, what each of them wants, and who has locked which queue."""
        return await self._groups.state(group)

    async def producer_connection(self, group: str, topic: str) -> ProducerConnection:
        """Return the clients of a producer group at the brokers of a topic. Raises `BrokerError` when there is none."""
        return await self._groups.producers(group, topic)

    # --- offsets

    async def reset_offset(self, group: str, topic: str, timestamp_ms: int | None) -> dict[MessageQueue, int]:
        """Let a group go on at a time (ms since 1970; None: the end) and return the new offset of each queue.

        Members that are online are told by the broker; without any, the stored offsets are changed.
        """
        return await self._offsets.reset(group, topic, timestamp_ms)

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store where a group goes on in one queue. Members that are online do not notice."""
        await self._offsets.commit(group, queue, offset)

    async def clone_offsets(self, source: str, destination: str, topic: str) -> dict[MessageQueue, int]:
        """Let group `destination` go on in a topic where `source` is, and return the offset of each queue.

        Members of `destination` that are online do not notice.
        """
        return await self._offsets.clone(source, destination, topic)

    async def queue_entries(
        self, queue: MessageQueue, index: int, count: int = 10, *, group: str | None = None
    ) -> QueueEntriesBody:
        """Return entries of a consume queue from an offset on; with `group` what its subscription makes of each."""
        return await self._offsets.entries(queue, index, count, group=group)

    # --- brokers and name servers

    async def cluster(self) -> ClusterTable:
        """Return all registered brokers by name, and the broker names of each cluster."""
        return await self._brokers.table()

    async def broker_runtime(self, address: str) -> dict[str, str]:
        """Return the runtime figures of the broker at `host:port`."""
        return decode_body(KeyValues, (await self._brokers.ask(address, BrokerState())).body).table

    async def broker_config(self, address: str) -> dict[str, str]:
        """Return the settings of the broker at `host:port`, by the names of RocketMQ's configuration files."""
        answer = await self._brokers.ask(address, BrokerSettings())
        return parse_properties(answer.body.decode(errors="replace"))

    async def expire_log(self, address: str, *, older_than_hours: int | None = None) -> DeleteExpiredLogResponse:
        """Let the broker at `host:port` delete expired messages at once; None: what its settings call expired.

        The answer says how many log files go now, and from which log offset on none goes; Java brokers say neither.
        """
        response = await self._brokers.ask(address, DeleteExpiredLog(older_than_hours=older_than_hours))
        return response.header(DeleteExpiredLogResponse)

    async def wipe_write_permission(self, broker: str) -> int:
        """Take a broker, by name, out of producers' routes; return how many topics changed."""
        responses = await self._brokers.ask_name_servers(WipeWritePermission(broker_name=broker))
        return max(response.header(WipeWritePermissionResponse).count for response in responses)

    async def add_write_permission(self, broker: str) -> int:
        """Put a broker, by name, back into producers' routes; return how many topics changed."""
        responses = await self._brokers.ask_name_servers(AddWritePermission(broker_name=broker))
        return max(response.header(AddWritePermissionResponse).count for response in responses)

    async def put_kv(self, namespace: str, key: str, value: str) -> None:
        """Store a value at every name server."""
        await self._kv.put(namespace, key, value)

    async def kv(self, namespace: str, key: str) -> str | None:
        """Return a stored value; None if there is none."""
        return await self._kv.find(namespace, key)

    async def delete_kv(self, namespace: str, key: str) -> None:
        """Delete a value at every name server."""
        await self._kv.delete(namespace, key)

    async def kv_namespace(self, namespace: str) -> dict[str, str]:
        """Return all values of a namespace; {} if there are none."""
        return await self._kv.namespace(namespace)

    # --- messages

    async def view(self, message_id: str, topic: str | None = None) -> StoredMessage:
        """Return one message by its unique id, its offset id or its recall handle. Raises `QueryNotFound`.

        A unique id is looked up in `topic`; without it in all topics, which takes a request for each of them.
        A damaged message is returned as well, with a warning: its `is_damaged` is true.
        """
        self._cluster.check_running()
        return await find_message(self._cluster, message_id, topic, timeout=self._timeout)

    async def message_life(
        self, message_id: str, topic: str | None = None, *, trace_topic: str = TRACE_TOPIC
    ) -> list[LifeEvent]:
        """Return what became of the message with this unique id, offset id or recall handle, in order of time.

        Told by clients that trace, and by what the brokers' logs hold; without `topic`, all topics are searched unless
        a trace names it. Raises `QueryNotFound` where nothing is known.
        """
        self._cluster.check_running()
        return await life_of(
            self._cluster, self._offsets, message_id, topic=topic, trace_topic=trace_topic, timeout=self._timeout
        )

    async def view_at(self, queue: MessageQueue, offset: int) -> StoredMessage:
        """Return the message at a queue offset. Raises `QueryNotFound`. A damaged one is returned as with `view`."""
        self._cluster.check_running()
        return await find_at(self._cluster, queue, offset, timeout=self._timeout)

    async def query_by_key(
        self, topic: str, key: str, max_count: int = 32, *, begin_ms: int = 0, end_ms: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages of a topic that carry a key and were stored between two times, newest first.

        Brokers give at most 64 each. Times are ms since 1970; `end_ms` None means now. Damaged ones are among them, as
        with `view`.
        """
        self._cluster.check_running()
        found = await find_by_key(
            self._cluster, topic, key, max_count=max_count, between=(begin_ms, end_ms), timeout=self._timeout
        )
        return found[:max_count]
