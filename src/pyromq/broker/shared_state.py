"""The tables of a broker that several of its modules use. Each table is made once.

A table gets the tables that it uses as arguments. A processor takes the tables that it needs from the shared state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyromq.broker.admission import Admission
from pyromq.broker.batches.batch_coordinator import BatchCoordinator
from pyromq.broker.changed_settings import ChangedSettings, load_changes
from pyromq.broker.cold_reads import ColdReads
from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import Confirmation
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.consuming.long_polls import LongPolls
from pyromq.broker.consuming.queue_locks import QueueLocks
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.delays.timer_scheduler import TimerScheduler
from pyromq.broker.indexing import Indexing
from pyromq.broker.internal_topics import InternalTopics
from pyromq.broker.members.connections import Connections
from pyromq.broker.members.consumer_groups import ConsumerGroups
from pyromq.broker.name_server_registration import NameServerRegistration
from pyromq.broker.popping.pop_table import PopTable
from pyromq.broker.popping.pop_waiting import PopWaiting
from pyromq.broker.put_message import PutMessage
from pyromq.broker.replication.ha.ha_client import HaClient
from pyromq.broker.replication.ha.ha_service import HaService
from pyromq.broker.replication.tables.deleted_topics import DeletedTopics
from pyromq.broker.role import BrokerRole, configured_role
from pyromq.broker.statistics import Statistics
from pyromq.broker.topics import Topics
from pyromq.broker.transactions.half_messages import HalfMessages
from pyromq.clock import Clock
from pyromq.message import pack_address
from pyromq.net.slow_replies import SlowReplies
from pyromq.permissions.permissions import AclWatch, Permissions
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.store.disk import Disk
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore
from pyromq.store.table_file import RunSoon, at_once


class SharedState:
    """The tables of one broker. The constructor reads only the settings from disk; modules load the other tables."""

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock,
        disk: Disk,
        run_soon: RunSoon = at_once,
        *,
        role: BrokerRole | None = None,
    ) -> None:
        folder = config.data / "config"
        self.clock = clock
        settings = JsonFile(folder / "broker.properties", disk)
        self.config = config = load_changes(replace(config), settings)  # a copy, since a broker's settings change
        self.role = role or configured_role(config)
        limits = config.limits
        store = MessageStore(config.store_config, clock, store_address=pack_address("127.0.0.1", 0), disk=disk)
        self.store = store
        self.topics = topics = Topics(
            config,
            *(JsonFile(folder / "topics.json", disk), clock, run_soon),
            on_change=lambda topic, change: self.registering.announce_one_way(topic, change),
        )
        groups_file = JsonFile(folder / "subscriptionGroup.json", disk)
        self.groups = ConsumerGroups(config, groups_file, clock, run_soon, role=self.role)
        self.deleted_topics: DeletedTopics | None = None  # None outside of replica sets
        if config.failover.etcd:
            self.deleted_topics = DeletedTopics(store, JsonFile(folder / "deletedTopics.json", disk), run_soon)
        self.offsets = ConsumerOffsets(JsonFile(folder / "consumerOffset.json", disk), most=limits.offsets)
        self.refusals = RejectionLog(clock)
        self.permissions = Permissions()
        self.connections = Connections(config, clock)
        self.long_polls = LongPolls(
            *(clock, store.record_at, run_soon), when_confirmed=store.when_confirmed, most=limits.waiting_pulls
        )
        self.request_modes = JsonFile(folder / "messageRequestMode.json", disk)
        self.run_soon = run_soon
        self.pops = PopTable(store, self.offsets, config.data / "pops", clock=clock, max_pops=limits.pops_in_flight)
        self.waiting_pops = PopWaiting(self.long_polls, store, clock, run_soon)
        store.listen(self.long_polls.arrived, self.long_polls.arrived_together)
        self.statistics = statistics = Statistics(config.cluster, clock)
        self.queue_locks = QueueLocks(clock, most=limits.queue_locks)
        self.cold_reads = cold_reads = ColdReads(store.disk, clock)
        self.indexing = Indexing(store, clock)
        self.slow_replies = SlowReplies(clock, cold_reads.load)
        self.registering = NameServerRegistration(config, topics, clock, self.role)
        self.changed_settings = ChangedSettings(
            *(config, settings, clock, self.registering.announce_all), retention=store.retention
        )
        self.put_message = put_message = PutMessage(store, statistics)
        self.admission = Admission(topics, config)
        self.confirmation = Confirmation(store, clock, limits)
        self.delay_levels = DelayLevels(
            *(store, put_message, JsonFile(folder / "delayOffset.json", disk)),
            statistics=statistics,
            cold_reads=cold_reads,
            clock=clock,
            queue_for=topics.queue_for,
        )
        self.timers = TimerScheduler(
            *(store, put_message, config.data / "timers"),
            config=config,
            cold_reads=cold_reads,
            clock=clock,
            queue_for=topics.queue_for,
        )
        self.accounts: AclWatch | None = None  # set by `modules.permissions`; None if permissions are off
        self.ha_service: HaService | None = None  # set by `ha_modules` in a broker that serves slaves
        self.ha_client: HaClient | None = None  # set by `ha_modules` in a slave
        self.more_figures: Callable[[], dict[str, str]] = dict  # a replica's own figures; set by its module
        self.half_messages = HalfMessages(
            store, put_message, topics=topics, offsets=self.offsets, clock=clock, most=limits.half_messages
        )
        self.internal_topics = InternalTopics(
            self.half_messages, self.delay_levels, self.timers, statistics=statistics, config=config
        )
        self.batches = BatchCoordinator(
            *(store, put_message),
            topics=topics,
            offsets=self.offsets,
            cold_reads=cold_reads,
            config=config,
            clock=clock,
        )
