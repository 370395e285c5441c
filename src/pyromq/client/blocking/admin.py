"""The blocking admin client."""

from __future__ import annotations

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.cluster_accounts import Accounts
from pyromq.client.admin.diagnosis import Finding, diagnose
from pyromq.client.admin.exports import Exports
from pyromq.client.admin.members import Members
from pyromq.client.admin.messages.delayed_messages import ClusterDelayLevels
from pyromq.client.admin.overviews import Overviews
from pyromq.client.admin.replica_sets import ReplicaSets
from pyromq.client.admin.servers import Servers
from pyromq.client.blocking.blocking_client import Blocking, BlockingClient, BlockingRunner, blocking
from pyromq.net.connection_config import ConnectionConfig


class Admin(BlockingClient[AsyncAdmin]):
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
        client = AsyncAdmin(namesrv, timeout=timeout, instance=instance, connections=connections)
        super().__init__(client, instance)
        self.members = BlockingMembers(self._runner, client.members)
        self.servers = BlockingServers(self._runner, client.servers)
        self.replica_sets = BlockingReplicaSets(self._runner, client.replica_sets)
        self.overviews = BlockingOverviews(self._runner, client.overviews)
        self.accounts = BlockingAccounts(self._runner, client.accounts)
        self.delay_levels = BlockingDelayLevels(self._runner, client.delay_levels)
        self.exports = BlockingExports(self._runner, client.exports)

    @staticmethod
    def diagnose(
        namesrv: str | None = None, topic: str | None = None, *, connections: ConnectionConfig | None = None
    ) -> list[Finding]:
        """Check step by step why sending or consuming does not work. Return the findings. Needs no started client."""
        runner = BlockingRunner(lambda: None)
        runner.start(_nothing)
        try:
            return runner.run(diagnose, namesrv, topic, connections=connections)
        finally:
            runner.close(_nothing)

    create_topic = blocking(AsyncAdmin.create_topic)
    alter_topic = blocking(AsyncAdmin.alter_topic)
    delete_topic = blocking(AsyncAdmin.delete_topic)
    topics = blocking(AsyncAdmin.topics)
    topic_route = blocking(AsyncAdmin.topic_route)
    topic_status = blocking(AsyncAdmin.topic_status)
    topic_config = blocking(AsyncAdmin.topic_config)
    topic_configs = blocking(AsyncAdmin.topic_configs)
    allocation = blocking(AsyncAdmin.allocation)
    create_group = blocking(AsyncAdmin.create_group)
    alter_group = blocking(AsyncAdmin.alter_group)
    delete_group = blocking(AsyncAdmin.delete_group)
    groups = blocking(AsyncAdmin.groups)
    group_configs = blocking(AsyncAdmin.group_configs)
    group_progress = blocking(AsyncAdmin.group_progress)
    consumer_connection = blocking(AsyncAdmin.consumer_connection)
    group_state = blocking(AsyncAdmin.group_state)
    producer_connection = blocking(AsyncAdmin.producer_connection)
    reset_offset = blocking(AsyncAdmin.reset_offset)
    commit_offset = blocking(AsyncAdmin.commit_offset)
    clone_offsets = blocking(AsyncAdmin.clone_offsets)
    queue_entries = blocking(AsyncAdmin.queue_entries)
    cluster = blocking(AsyncAdmin.cluster)
    broker_runtime = blocking(AsyncAdmin.broker_runtime)
    broker_config = blocking(AsyncAdmin.broker_config)
    expire_log = blocking(AsyncAdmin.expire_log)
    wipe_write_permission = blocking(AsyncAdmin.wipe_write_permission)
    add_write_permission = blocking(AsyncAdmin.add_write_permission)
    put_kv = blocking(AsyncAdmin.put_kv)
    kv = blocking(AsyncAdmin.kv)
    delete_kv = blocking(AsyncAdmin.delete_kv)
    kv_namespace = blocking(AsyncAdmin.kv_namespace)
    view = blocking(AsyncAdmin.view)
    message_life = blocking(AsyncAdmin.message_life)
    view_at = blocking(AsyncAdmin.view_at)
    query_by_key = blocking(AsyncAdmin.query_by_key)


async def _nothing() -> None:
    pass


class BlockingMembers(Blocking[Members]):
    """The object `admin.members` of a blocking `Admin`; see `Members`."""

    def __init__(self, runner: BlockingRunner, members: Members) -> None:
        super().__init__(runner, members)
        self.troubles = members.troubles

    running = blocking(Members.running)
    all_running = blocking(Members.all_running)
    offsets = blocking(Members.offsets)
    consume = blocking(Members.consume)
    producers = blocking(Members.producers)
    tracks = blocking(Members.tracks)
    groups_of_topic = blocking(Members.groups_of_topic)


class BlockingServers(Blocking[Servers]):
    """The object `admin.servers` of a blocking `Admin`; see `Servers`."""

    change_settings = blocking(Servers.change_settings)
    settings_at_next_start = blocking(Servers.settings_at_next_start)
    name_server_settings = blocking(Servers.name_server_settings)
    change_name_server_settings = blocking(Servers.change_name_server_settings)
    clean_topics = blocking(Servers.clean_topics)
    clean_queues = blocking(Servers.clean_queues)
    statistic = blocking(Servers.statistic)
    progress = blocking(Servers.progress)
    round_trips = blocking(Servers.round_trips)


class BlockingReplicaSets(Blocking[ReplicaSets]):
    """The object `admin.replica_sets` of a blocking `Admin`; see `ReplicaSets`."""

    state = blocking(ReplicaSets.state)
    hand_over = blocking(ReplicaSets.hand_over)
    accept_loss = blocking(ReplicaSets.accept_loss)


class BlockingAccounts(Blocking[Accounts]):
    """The object `admin.accounts` of a blocking `Admin`; see `Accounts`."""

    tables = blocking(Accounts.tables)
    save = blocking(Accounts.save)
    delete = blocking(Accounts.delete)
    replace_white_list = blocking(Accounts.replace_white_list)
    rights = blocking(Accounts.rights)


class BlockingOverviews(Blocking[Overviews]):
    """The object `admin.overviews` of a blocking `Admin`; see `Overviews`."""

    topics = blocking(Overviews.topics)
    groups = blocking(Overviews.groups)
    rates = blocking(Overviews.rates)
    figures = blocking(Overviews.figures)


class BlockingDelayLevels(Blocking[ClusterDelayLevels]):
    """The object `admin.delay_levels` of a blocking `Admin`; see `ClusterDelayLevels`."""

    all = blocking(ClusterDelayLevels.all)
    waiting = blocking(ClusterDelayLevels.waiting)


class BlockingExports(Blocking[Exports]):
    """The object `admin.exports` of a blocking `Admin`; see `Exports`."""

    settings = blocking(Exports.settings)
    metadata = blocking(Exports.metadata)
    metrics = blocking(Exports.metrics)
