"""One broker: a list of modules. Modules start in the order of the list and stop in reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Self

from pyromq.broker import modules
from pyromq.broker.admin.audit_log import audit_log
from pyromq.broker.config import BrokerConfig
from pyromq.broker.log_cleaning import LogCleaning
from pyromq.broker.modules import BrokerModule, Save, Step, periodic
from pyromq.broker.replicated_table import ReplicatedTable
from pyromq.broker.replication.cut_progress import lower_progress
from pyromq.broker.replication.ha.ha_modules import following_log, sending_log
from pyromq.broker.replication.ha.starting_over import start_over
from pyromq.broker.replication.slave_tables import copying_tables
from pyromq.broker.replication.tables.broker_tables import replicated_tables
from pyromq.broker.role import BrokerRole, FenceRefusals, SetRefusals, WriteRefusals
from pyromq.broker.shared_state import SharedState
from pyromq.broker.statistics import SAMPLE_SECONDS
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError, StoreNotWritable, UsageError
from pyromq.logs import logger_of
from pyromq.message import pack_address
from pyromq.net.listening import OpenPorts
from pyromq.net.server import Server
from pyromq.net.tasks import Alarm, Tasks, call_soon
from pyromq.remoting.codes import Language
from pyromq.remoting.dispatch import Dispatcher
from pyromq.store.disk import LOCAL_DISK, Disk

if TYPE_CHECKING:
    from pyromq.broker.broker_metrics import BrokerMetrics

logger = logger_of(__name__)

VIP_CHANNEL = -2  # difference of the second port to the broker's port. Source: RocketMQ 4.9.8, BrokerController
DRAIN_SECONDS = 2.0  # longest wait for running requests when the broker stops
SHORT_DRAIN_SECONDS = 0.2  # the same if another broker follows at its ports: clients wait for that one
STORE_TICK_SECONDS = 0.25  # time between two searches for replies whose wait timed out


def _modules(state: SharedState) -> list[BrokerModule]:
    """Return the modules of a broker in the order of loading. Modules are saved and stopped in reverse order."""
    listed = [
        modules.consumer_offsets(state),
        modules.consumer_groups(state),
        modules.topics(state),
        modules.deleted_topics(state),
        modules.delay_levels(state),
        modules.transactions(state),
        modules.batch_transactions(state),
        modules.timers(state),
        modules.built_in(state),
        BrokerModule(
            steps=[
                Step(state.statistics.step, first_after=SAMPLE_SECONDS),
                periodic(STORE_TICK_SECONDS, state.confirmation.tick),
            ]
        ),
        BrokerModule(
            steps=[Step(each.step, each.alarm) for each in (state.indexing, state.slow_replies)],
            close=state.slow_replies.close,
        ),
        modules.producing(state),
        modules.consuming(state),
        modules.popping(state),
        modules.members(state),
        modules.administration(state),
        audit_log(state),
        modules.permissions(state),
    ]
    needed = [module.log_needed_from for module in listed if module.log_needed_from is not None]
    expiring = LogCleaning(
        state.store,
        [*needed, lambda: state.store.confirmed_end if state.role.is_master else state.role.log_needed_from],
        topics=state.topics,
        statistics=state.statistics,
        role=state.role,
        cold_reads=state.cold_reads,
        clock=state.clock,
    )
    return [
        *listed,
        BrokerModule(answerers=[expiring], steps=[Step(expiring.step, expiring.alarm)]),
        sending_log(state),
        following_log(state),
        copying_tables(state),
        BrokerModule(start=state.registering.start, stop=state.registering.stop),
    ]


class Broker:
    """Stores and serves messages. An async context manager: inside it, clients can connect to `address`.

    Entering raises `StoreLocked`, `StoreCorrupt` or `StoreNotWritable` if the data folder cannot be used, and
    `UsageError` if the port cannot. Unreachable name servers are only logged.

    A broker whose role is not master is a follower: it stores only what it copies from the master, answers reads, and
    refuses writes. `promote` makes a running follower the master. A master that must follow another one is closed, and
    a new `Broker` is made.
    """

    def __init__(
        self,
        config: BrokerConfig,
        clock: Clock | None = None,
        *,
        disk: Disk = LOCAL_DISK,
        role: BrokerRole | None = None,
        more: Sequence[Callable[[SharedState], BrokerModule]] = (),
        ports: OpenPorts = (),
    ) -> None:
        """Make a broker with this role; None: the role that the configuration names.

        `more` make further modules of the broker. `ports` are ports that an earlier broker has left open
        (`keep_ports`).
        """
        state = SharedState(config, clock or SystemClock(), disk, call_soon, role=role)
        self.config, self.store, self.statistics = state.config, state.store, state.statistics
        self.topics, self.groups, self.offsets = state.topics, state.groups, state.offsets
        self.connections, self.registering = state.connections, state.registering
        self.delay_levels, self.timers = state.delay_levels, state.timers
        self.half_messages, self.batches = state.half_messages, state.batches
        self.queue_locks, self.pops = state.queue_locks, state.pops
        self.confirmation, self.cold_reads = state.confirmation, state.cold_reads
        self.permissions = state.permissions
        self._state = state
        self.role = state.role
        self._ports_are_kept = False
        self._refusals: list[object] = [WriteRefusals(state.role)]
        self.replicated_tables: list[ReplicatedTable] = []  # tables that follow the log in a replica set
        self._clock = state.clock
        self._modules = [*_modules(state), *(make(state) for make in more)]
        if config.failover.etcd:
            self._refusals.append(SetRefusals(state.role))
            self.replicated_tables = replicated_tables(state)
        self._tasks = Tasks()
        self._saving: dict[BrokerModule, asyncio.Future[None]] = {}
        connections = self.config.connections
        hooks = (*connections.hooks, *(hook for module in self._modules for hook in module.hooks))
        self.dispatcher = Dispatcher(
            *(answerer for module in self._modules for answerer in module.answerers),
            guard=next((module.guard for module in self._modules if module.guard is not None), None),
            refusals=state.refusals,
            compute=state.slow_replies.submit,
        )
        self._apply_role()
        self.role.listen(self._apply_role)
        self._server = Server(
            self.dispatcher,
            self._clock,
            limits=self.config.limits_of_connections,
            host=self.config.host,
            port=self.config.port,
            beside=VIP_CHANNEL if self.config.has_vip_channel else 0,
            opened=ports,
            connections=replace(connections, hooks=hooks),
            tls=self.config.tls,
            fast_path=[handler for module in self._modules for handler in module.fast_path],
            busy_poll_us=self.config.busy_poll_us,
        )

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        """The address to which clients connect: `host:port`."""
        return self.config.advertised_address

    @property
    def serves_other_languages(self) -> bool:
        """Whether a client in another language than Python is connected: a member of a group."""
        return any(member.language != Language.PYTHON.name for member in self.connections.members())

    def metrics(self) -> BrokerMetrics:
        """Return the metrics of this broker, to be passed to a `MetricsEndpoint`."""
        from pyromq.broker.broker_metrics import BrokerMetrics  # loaded only if metrics are on

        return BrokerMetrics(self._state, self._server.sessions)

    async def __aenter__(self) -> Self:
        try:
            await start_over(self.config, self._clock, self.store.disk)
            self.store.open()
            lower_progress(self.store, self.config.data)  # a kill may have left a cut of the log unfinished
            for module in self._modules:
                module.load()
            await self._listen()
            begun = [module for module in self._modules if self.role.is_master or not module.master_only]
            for module in begun:
                module.repair()
            for module in begun:
                await module.start()
            save = periodic(self.config.offsets_interval_ms / 1000, self._save)
            self._run([save, *(step for module in begun for step in module.steps)])
        except BaseException:
            await self._stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def promote(self, epoch: int = 0) -> None:
        """Make this running follower the master of its name; return once it stores messages.

        Connections, waiting pulls and the tables of members are kept. The broker registers at name servers until they
        show this broker as the master. `epoch` is the number of the new master in a replica set. Raises
        `UsageError` if the broker is the master already, and `StoreCorrupt` or `StoreNotWritable`.
        """
        if self.role.is_master:
            raise UsageError(f"broker {self.config.name} is the master already; only a follower can be promoted")
        began = self._clock.monotonic()
        masters = [module for module in self._modules if module.master_only]
        self.store.refuse_own("")
        for module in self._modules:
            module.lead()
        for module in masters:
            module.repair()
        self.topics.touch()  # name servers take the topics of a new master only with a new version
        self.role.lead(epoch)
        for module in masters:
            await module.start()
        self._run([step for module in masters for step in module.steps])
        seconds = self._clock.monotonic() - began
        logger.info("broker %s is the master now, epoch %d, after %.3f s", self.config.name, epoch, seconds)

    def _apply_role(self) -> None:
        is_master = self.role.is_master
        at_master = (FenceRefusals(self.role),) if self.role.fence else ()
        self.dispatcher.override(*(at_master if is_master else self._refusals))
        # No part of a follower may append: its log would differ from the master's.
        self.store.refuse_own("" if is_master else "a follower stores only what its master sends")

    def keep_ports(self) -> OpenPorts:
        """Return sockets that keep the ports open when this broker stops, which must be soon.

        Clients reconnect immediately, wait for the next broker at these ports, and repeat requests without a reply.
        """
        self._ports_are_kept = True
        return self._server.keep_ports()

    def cut_connections(self) -> None:
        """Break all connections, as a crash of the broker does. For tests of clients."""
        self._server.stop_accepting()
        self._server.cut()

    async def _listen(self) -> None:
        await self._server.start()
        self.config.port = self._server.port
        host = self.config.advertised_host or self.config.host
        self.store.store_address = pack_address(host, self.config.port)

    def _run(self, steps: Iterable[Step]) -> None:
        for step in steps:
            alarm = step.alarm or Alarm(self._clock)
            name = step.act.__qualname__
            self._tasks.start(alarm.run(step.act, first_after=step.first_after), name=name)

    async def _stop(self) -> None:
        self._server.stop_accepting()
        for module in reversed(self._modules):
            await module.stop()
        if self._ports_are_kept:
            await self._server.close(SHORT_DRAIN_SECONDS, reset=True)
        else:
            await self._server.close(DRAIN_SECONDS)
        await self._tasks.stop()
        await self.saved()
        self._close()

    def _close(self) -> None:
        """Close the store and save the tables.

        If one table cannot be saved, all other tables are still saved. Raises `StoreNotWritable`.
        """
        at_first = _refused([module.close for module in reversed(self._modules)])
        if unclean := _refused([self.store.close]):
            raise StoreNotWritable("; ".join(at_first + unclean))
        # The tables hold progress through the log, so they are saved after the log.
        if refused := _refused([module.persist for module in reversed(self._modules)]):
            raise StoreNotWritable(
                f"{'; '.join(refused)}; everything else is saved; the next start uses the previous files"
            )

    def _save(self) -> None:
        """Start saving the changed tables, each in a thread. A table that is still being saved is skipped."""
        loop = asyncio.get_running_loop()
        for module in reversed(self._modules):
            if module not in self._saving and (save := module.unsaved()) is not None:
                saving = self._saving[module] = loop.run_in_executor(None, save)
                saving.add_done_callback(partial(self._note_saved, module))

    def _note_saved(self, module: BrokerModule, saving: asyncio.Future[None]) -> None:
        del self._saving[module]
        if (error := saving.exception()) is not None:
            logger.warning("%s", error) if isinstance(error, MQError) else logger.error("saving failed", exc_info=error)

    async def saved(self) -> None:
        """Wait until all tables that are being saved are on disk, or have failed."""
        if self._saving:
            await asyncio.wait(self._saving.values())


def _refused(writings: Sequence[Save]) -> list[str]:
    """Call all functions; return the texts of `StoreNotWritable` errors, [] if none failed."""
    refused = []
    for write in writings:
        try:
            write()
        except StoreNotWritable as error:
            refused.append(str(error))
    return refused
