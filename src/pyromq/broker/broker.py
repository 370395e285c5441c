"""One broker: puts its parts together, starts them in order, stops them in the opposite order - nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Self

from pyromq.broker.admin.consume_stats import Progress
from pyromq.broker.admin.consume_stats_answers import Tracking
from pyromq.broker.admin.group_admin import Grouping
from pyromq.broker.admin.member_calls import Relaying
from pyromq.broker.admin.message_queries import Querying
from pyromq.broker.admin.runtime_info import Inspecting
from pyromq.broker.admin.settings_admin import Configuring, load_changes
from pyromq.broker.admin.topic_admin import Administering
from pyromq.broker.admission import Admission
from pyromq.broker.batches.batch_answers import BatchTransacting
from pyromq.broker.batches.batch_transactions import BatchTransactions
from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import Confirmation
from pyromq.broker.consuming.cold_pulls import ColdReads
from pyromq.broker.consuming.consumer_offsets import Offsets
from pyromq.broker.consuming.long_polls import LongPolls
from pyromq.broker.consuming.offset_queries import Consuming
from pyromq.broker.consuming.pulling import Pulling
from pyromq.broker.consuming.queue_locking import Locking
from pyromq.broker.consuming.queue_locks import QueueLocks
from pyromq.broker.consuming.send_back import Retrying
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.delays.timer_answers import Recalling
from pyromq.broker.delays.timer_delivery import Timers
from pyromq.broker.indexing import Indexing
from pyromq.broker.log_cleaning import Expiring
from pyromq.broker.members.connections import Connections
from pyromq.broker.members.consumer_groups import Groups
from pyromq.broker.members.heartbeating import Heartbeating
from pyromq.broker.name_server_registration import Registering
from pyromq.broker.producing.reply_messages import Replying
from pyromq.broker.producing.sending import Sending
from pyromq.broker.put_message import PutMessage
from pyromq.broker.statistics import SAMPLE_SECONDS, Statistics
from pyromq.broker.topics import Topics
from pyromq.broker.transactions.end_transaction import Transacting
from pyromq.broker.transactions.half_messages import HalfMessages
from pyromq.broker.transactions.transaction_checks import TransactionChecks
from pyromq.clock import Clock, SystemClock
from pyromq.errors import StoreNotWritable
from pyromq.message import pack_address
from pyromq.net.alarm import Alarm
from pyromq.net.server import Server
from pyromq.net.tasks import Tasks, every
from pyromq.remoting.dispatch import Dispatcher
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.json_file import JsonFile
from pyromq.store.message_store import MessageStore

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 2.0  # running requests get this long to end
STORE_TICK_SECONDS = 1.0
EXPIRE_PULLS_SECONDS = 0.25  # how late a parked pull may be told that its time is up
EXPIRE_CLIENTS_SECONDS = 10.0


class Broker:
    """Stores and serves messages. An async context manager: inside, clients can connect; `address` says where.

    Entering raises `StoreLocked`, `StoreCorrupt` or `StoreNotWritable` for the data folder and `UsageError` for the
    port; unreachable name servers are only logged.
    """

    def __init__(self, config: BrokerConfig, clock: Clock | None = None, *, disk: Disk = LOCAL_DISK) -> None:
        self._clock = clock or SystemClock()
        folder = config.data / "config"
        settings = JsonFile(config.config_file or folder / "broker.properties", disk)
        # With a file of its own, whoever started the broker has read it; a copy, since the settings change here.
        self.config = replace(config) if config.config_file else load_changes(replace(config), settings)
        self.store = MessageStore(
            self.config.store_config, self._clock, store_address=pack_address("127.0.0.1", 0), disk=disk
        )
        self.topics = Topics(self.config, JsonFile(folder / "topics.json", disk), self._clock)
        self.groups = Groups(self.config, JsonFile(folder / "subscriptionGroup.json", disk), self._clock)
        self.offsets = Offsets(JsonFile(folder / "consumerOffset.json", disk))
        self.connections = Connections(self.config, self._clock)
        self.statistics = Statistics(self.config.cluster, self._clock)
        self.long_polls = LongPolls(self._clock, self.store.record_at)
        self._cold_reads = ColdReads(self.store)
        self.queue_locks = QueueLocks(self._clock)
        store, clock = self.store, self._clock
        self.put_message = put_message = PutMessage(store, self.statistics, self.config)
        delay_file = JsonFile(folder / "delayOffset.json", disk)
        self.delay_levels = DelayLevels(store, put_message, delay_file, statistics=self.statistics, clock=clock)
        self.timers = Timers(store, put_message, config.data / "timers", config=self.config, clock=clock)
        self.delay_levels.queue_for = self.timers.queue_for = self.topics.queue_for
        self.half_messages = HalfMessages(store, put_message, topics=self.topics, offsets=self.offsets, clock=clock)
        self.batches = BatchTransactions(
            store, put_message, topics=self.topics, offsets=self.offsets, config=self.config, clock=clock
        )
        self.registering = Registering(self.config, self.topics, self._clock)
        self.expiring = Expiring(self.store, (self.delay_levels, self.timers.filed, self.half_messages, self.batches))
        self.indexing = Indexing(self.store)
        self._tasks = Tasks()
        checks = TransactionChecks(
            self.store,
            self.half_messages,
            topics=self.topics,
            connections=self.connections,
            config=self.config,
            clock=self._clock,
        )
        self._checking = Alarm(checks.step, self._clock)
        self._delivering = Alarm(self.delay_levels.deliver, self._clock)
        self._timing = Alarm(self.timers.step, self._clock)
        self._freeing = Alarm(self.queue_locks.tell_refused, self._clock)
        self._following = Alarm(self.indexing.step, self._clock)
        self._publishing = Alarm(self.batches.step, self._clock)
        self._saving: set[asyncio.Future[None]] = set()
        self._server = Server(
            Dispatcher(*self._answerers(settings)),
            self._clock,
            host=self.config.host,
            port=self.config.port,
            connections=self.config.connections,
        )

    def _answerers(self, settings: JsonFile) -> list[object]:
        store, topics, groups, offsets = self.store, self.topics, self.groups, self.offsets
        queue_locks = self.queue_locks
        connections, statistics, config, clock = self.connections, self.statistics, self.config, self._clock
        progress = Progress(store, offsets, statistics=statistics, broker_name=config.name, clock=clock)
        return [
            *self._storing(),
            Pulling(
                store,
                topics,
                groups,
                connections=connections,
                offsets=offsets,
                long_polls=self.long_polls,
                cold_reads=self._cold_reads,
                statistics=statistics,
                config=config,
            ),
            Consuming(store, topics, offsets=offsets, connections=connections),
            Locking(queue_locks),
            Querying(store, self.indexing, connections),
            Heartbeating(connections, groups, topics=topics, config=config, clock=clock),
            self.expiring,
            Administering(
                store,
                topics,
                offsets=offsets,
                connections=connections,
                statistics=statistics,
                config=config,
                announce=self.registering.announce,
            ),
            Grouping(groups, offsets, delay_levels=self.delay_levels, statistics=statistics),
            Configuring(config, settings, topics=topics, announce_all=self.registering.announce_all, clock=clock),
            Relaying(store, topics, offsets=offsets, connections=connections, broker_name=config.name),
            Tracking(progress, topics, groups=groups, offsets=offsets, connections=connections, config=config),
            Inspecting(
                store,
                connections,
                queue_locks=queue_locks,
                statistics=statistics,
                delay_levels=self.delay_levels,
                config=config,
                clock=clock,
            ),
        ]

    def _storing(self) -> list[object]:
        """What answers requests that store something."""
        store, topics, groups, put_message = self.store, self.topics, self.groups, self.put_message
        config, clock = self.config, self._clock
        admission, confirmation = Admission(topics, config), Confirmation(store, clock)
        return [
            Sending(
                put_message,
                admission=admission,
                confirmation=confirmation,
                store=store,
                topics=topics,
                groups=groups,
                config=config,
            ),
            Replying(
                put_message,
                admission=admission,
                confirmation=confirmation,
                store=store,
                connections=self.connections,
                config=config,
                clock=clock,
            ),
            Transacting(put_message, self.half_messages, confirmation=confirmation, store=store),
            BatchTransacting(self.batches, admission=admission, confirmation=confirmation, config=config),
            Recalling(self.timers, topics, confirmation=confirmation, config=config, clock=clock),
            Retrying(
                put_message,
                admission=admission,
                confirmation=confirmation,
                store=store,
                topics=topics,
                groups=groups,
                statistics=self.statistics,
            ),
        ]

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        """What clients connect to: `host:port`."""
        return self.config.advertised_address

    async def __aenter__(self) -> Self:
        try:
            self.store.open()
            self._load_tables()
            await self._listen()
            await self.registering.start()
            self._start_loops()
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    def cut_connections(self) -> None:
        """Break every connection at once: what clients see of a crash. For tests of clients."""
        self._server.stop_accepting()
        self._server.cut()

    async def _stop(self) -> None:
        self._server.stop_accepting()
        await self.registering.stop()
        self.long_polls.answer_all()
        await self._server.close(DRAIN_SECONDS)
        self._cold_reads.close()
        await self._tasks.stop()
        await self.saved()
        self.topics.close()
        self.groups.close()
        self._close()

    def _close(self) -> None:
        """Close the store and write the tables: what one of them costs on a full disk costs the others nothing."""
        at_first = _refused(self.offsets.persist)
        if unclean := _refused(self.store.close):
            raise StoreNotWritable("; ".join(at_first + unclean))
        # What needs all that it speaks of to be on disk.
        self.half_messages.note_progress(closed=True)
        self.batches.note_progress(closed=True)
        tables = [self.delay_levels.persist, self.offsets.persist, self.timers.persist]
        if (save := self.groups.unsaved()) is not None:
            tables.append(save)
        if refused := _refused(*tables):
            raise StoreNotWritable(
                f"{'; '.join(refused)}; all else is kept, and the next start goes on from what was written there before"
            )

    def _load_tables(self) -> None:
        self.topics.load()
        self.groups.load()
        self.offsets.load()
        self.delay_levels.load()
        self.half_messages.load()
        self.batches.load()
        self.timers.load()
        try:
            self.topics.persist()  # the built-in ones of a new folder
            self.groups.persist()
        except StoreNotWritable as error:  # a full disk: what is stored can be read all the same
            logger.warning("%s; nothing is lost by it, the next change is refused if that is still so", error)

    async def _listen(self) -> None:
        self.long_polls.run_soon = asyncio.get_running_loop().call_soon
        self.store.on_append = self.long_polls.arrived
        self.delay_levels.on_parked = lambda: self._delivering.ring_within(0)
        await self._server.start()
        self.config.port = self._server.port
        host = self.config.advertised_host or self.config.host
        self.store.store_address = pack_address(host, self.config.port)
        self.half_messages.mend()
        self.timers.on_parked = self._timing.ring_within
        self.batches.on_work = lambda: self._publishing.ring_within(0)
        self.indexing.ring_within = self._following.ring_within
        self.queue_locks.on_free = self._freeing.ring_within
        self.topics.on_change = self.registering.announce_one_way

    def _start_loops(self) -> None:
        actions: list[tuple[float, Callable[[], Awaitable[None] | None]]] = [
            (self.config.offsets_interval_ms / 1000, self._persist_offsets),
            (self.config.offsets_interval_ms / 1000, self._persist_timers),
            (SAMPLE_SECONDS, self.statistics.sample),
            (STORE_TICK_SECONDS, self.store.tick),
            (EXPIRE_PULLS_SECONDS, self.long_polls.expire),
            (EXPIRE_CLIENTS_SECONDS, self.connections.expire),
        ]
        for seconds, action in actions:
            self._tasks.start(every(seconds, action, self._clock), name=action.__qualname__)
        self._tasks.start(self._delivering.run(), name="delay levels")
        self._tasks.start(self._timing.run(), name="timers")
        self._tasks.start(self._checking.run(), name="transaction checks")
        self._tasks.start(self._publishing.run(), name="batch transactions")
        self._tasks.start(self._freeing.run(), name="freed queue locks")
        self._tasks.start(self._following.run(), name="key index")
        self._tasks.start(self._expire(), name="expiring")

    async def _persist_offsets(self) -> None:
        """Write what has been consumed and delivered, and new groups, in a thread: the disk may take long."""
        self.half_messages.note_progress()
        self.batches.note_progress()
        for save in (self.offsets.unsaved(), self.delay_levels.unsaved(), self.groups.unsaved()):
            await self._save(save)

    async def _persist_timers(self) -> None:
        await self._save(self.timers.unsaved())

    async def _save(self, save: Callable[[], None] | None) -> None:
        if save is not None:
            saving = asyncio.get_running_loop().run_in_executor(None, save)
            self._saving.add(saving)
            saving.add_done_callback(self._saving.discard)
            await asyncio.shield(saving)

    async def saved(self) -> None:
        """Wait until no thread writes tables any more."""
        if self._saving:
            await asyncio.wait(self._saving)

    async def _expire(self) -> None:
        """Let old messages go, in slices between other work."""
        while True:
            await self._clock.sleep(self.expiring.step())


def _refused(*writings: Callable[[], None]) -> list[str]:
    """Do each of them; return what the disk did not take."""
    refused = []
    for write in writings:
        try:
            write()
        except StoreNotWritable as error:
            refused.append(str(error))
    return refused
