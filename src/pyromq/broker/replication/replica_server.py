"""Runs one replica of a set: a broker that is master, or follows the master that the set's record names.

`Replica` makes the decisions, and this module carries out its actions. A follower becomes master while its broker runs
(`Broker.promote`). To step down, or to cut the log, the broker is restarted within this process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Self

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.confirmation import ReplicaRule
from pyromq.broker.replication import replica_actions as actions
from pyromq.broker.replication.cut_progress import cut_log
from pyromq.broker.replication.handover.passing_on import PassingOn
from pyromq.broker.replication.identity import Identity
from pyromq.broker.replication.operating.replica_metrics import ReplicaMetrics
from pyromq.broker.replication.operating.replica_set_processor import replica_set
from pyromq.broker.replication.operating.set_watch import SetWatch
from pyromq.broker.replication.record_access import RecordAccess
from pyromq.broker.replication.registry import Registry
from pyromq.broker.replication.replica import TICK_SECONDS, Replica
from pyromq.broker.replication.replica_links import ReplicaLinks
from pyromq.broker.replication.replica_port import ReplicaConfig
from pyromq.broker.replication.replica_stream import Frame, FrameRequest, Hello, Message, Refusal, Report
from pyromq.broker.replication.set_lease import SetLease
from pyromq.broker.replication.set_record import Member, ReplicaInfo, SetSettings
from pyromq.broker.replication.set_registry import ReplicaNumberTaken, SetRegistry
from pyromq.broker.replication.store_log import StoreLog
from pyromq.broker.replication.tables.table_exchange import TableExchange
from pyromq.broker.replication.trust.replica_trust import ReplicaTrust
from pyromq.broker.role import BrokerRole
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError, NotTheMaster, RegistryUnavailable, UsageError
from pyromq.logs import logger_of
from pyromq.message import join_address, pack_address
from pyromq.net.listening import OpenPorts
from pyromq.net.tasks import Tasks, soon_in_this_loop
from pyromq.platforms import platform
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.epoch_file import EpochFile
from pyromq.store.log_cut import LogCut
from pyromq.store.message_store import MessageStore
from pyromq.store.store_config import FlushMode

logger = logger_of(__name__)

_START_SECONDS = 10.0  # longest wait for the registry at the start
_RETRY_SECONDS = 0.2  # between two attempts of the start
REFUSED = "refusedByReplicas"  # a reason in the `RejectionLog`
_LEAVE_SECONDS = 2.0  # longest time that a stop waits for a handover, or for leaving the in-sync list


class ReplicaServer:
    """One replica of a set. An async context manager, which starts `broker` as a follower.

    Entering raises the errors of `Broker`, and `RegistryUnavailable` if no endpoint of the registry answers within 10
    s. Entering also raises `UsageError` if the folder, the number or the settings do not fit the set. `failed`
    completes with an error that ends the replica.
    """

    broker: Broker
    identity: Identity
    replica: Replica

    def __init__(
        self, config: BrokerConfig, registry: Registry, clock: Clock | None = None, *, disk: Disk = LOCAL_DISK
    ) -> None:
        self.config = replace(config)
        self.trouble: str | None = None  # reason why the set needs an operator
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        failover = config.failover
        self._failover = failover
        self._set = SetRegistry(registry, config.cluster, config.name)
        self.record = RecordAccess(self._set, now=platform.boot_seconds, do=self._do)
        self._lease = SetLease(
            *(registry, self._set, failover.lease_ms / 1000),
            now=platform.boot_seconds,
            info=self._info,
            renewed=self._lease_renewed,
        )
        self.clock = clock or SystemClock()
        self.watch = SetWatch(self.clock)
        self._disk = disk
        self.number = 0
        self._settings = SetSettings(config.store_config.segment_bytes, failover.min_in_sync, failover.unclean_election)
        self._rule = ReplicaRule(timeout_seconds=config.ha.slave_timeout_ms / 1000, holds_all=True, wake=self._wake)
        self._tasks = Tasks()
        self._reports: dict[int, actions.SendReport] = {}
        self._changing: asyncio.Task[None] | None = None  # a change of the broker's role
        self._may_leave = asyncio.Event()
        self._is_stopping = False
        self._flushes = config.store_config.flush is FlushMode.SYNC
        self._flushing = False
        self._is_woken = False  # whether `_log_grew` runs in the next turn of the event loop
        self._disk_error = ""
        self._handed_over: asyncio.Future[str | None] | None = None
        self._trust = ReplicaTrust(config, self.clock)
        self._rejections = RejectionLog(self.clock)
        self._links = ReplicaLinks(
            self,
            now=platform.boot_seconds,
            promised=lambda: self.replica.epoch,
            load=lambda pages: self.broker.cold_reads.load(pages),
            trust=self._trust,
            rejections=self._rejections,
            catch_up_bytes_per_second=failover.catch_up_bytes,
        )
        self.ha_address = ""
        self._passing = PassingOn(config.connections, self.clock)

    # -- life

    async def __aenter__(self) -> Self:
        try:
            takes_any_port = self.config.port == 0  # the next port may then be in use
            await self._agree()
            await self._open_broker()
            ha_port = self.config.ha.port
            if ha_port is None:
                ha_port = 0 if takes_any_port else self.config.port + 1
            port = await self._links.start(self.config.host, ha_port)
            self.ha_address = join_address(self.config.advertised_ip, port)
            await self._lease.enter()
        except BaseException:
            await self._close()
            raise
        for work, name in (
            (self._fail_if_taken(self._lease.keep), "renew lease"),
            (self.record.watch(self._record_changed), "watch the set"),
        ):
            self._tasks.start(work, name=name)
        self._tasks.start(self._tick(), name="replica").add_done_callback(self._fail_with)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._move_clients()
        self._is_stopping = True
        if not self.failed.done() and self._changing is None:
            self._do(self.replica.leave(platform.boot_seconds()))
            try:
                async with asyncio.timeout(_LEAVE_SECONDS):
                    await self._may_leave.wait()
            except TimeoutError:
                logger.warning("replica %d stops without an answer of the set", self.number)
        await self._close()

    def metrics(self) -> ReplicaMetrics:
        """Return the metrics of the set and of the broker, which follow the replica from broker to broker."""
        return ReplicaMetrics(self, platform.boot_seconds)

    @property
    def is_open(self) -> bool:
        """Whether the broker runs now. A change of its role may restart it."""
        return self._links.log is not None

    @property
    def refusal(self) -> str:
        """The reason why this replica, as the master, refuses sends; "" if it accepts them."""
        return self._rule.refusal

    def registry_seconds(self, now: float) -> float:
        """Return the seconds since the last successful request to the registry."""
        return max(0.0, now - max(self._lease.answered_at, self.replica.view.read_at))

    def cut_connections(self) -> None:
        """Break all connections, as a crash of this process does. `abort` must follow. For tests."""
        self._links.stop_listening()
        self._links.close_all(drop_unsent=True)
        self.broker.cut_connections()

    async def abort(self) -> None:
        """End as a killed process does: the lease is not released, and ends when its time is over. For tests."""
        self._is_stopping = True
        await self._close(release=False)

    async def _agree(self) -> None:
        """Compare the settings with the set's. Retries for a while, as etcd may start slowly after a power loss."""
        until = platform.boot_seconds() + _START_SECONDS
        is_told = False
        while True:
            try:
                await self._set.agree(self._settings)
                return
            except RegistryUnavailable as error:
                if platform.boot_seconds() > until:
                    raise
                if not is_told:
                    logger.warning("replica of %s waits for the registry: %s", self.config.name, error)
                    is_told = True
            await asyncio.sleep(_RETRY_SECONDS)

    async def _close(self, *, release: bool = True) -> None:
        if self._changing is not None:
            await asyncio.wait([self._changing])
        await self._tasks.stop()
        await self.record.stop()
        await self._links.stop()
        await self._passing.stop()
        if hasattr(self, "broker"):
            await self.broker.__aexit__(None, None, None)
        if release:
            await self._lease.release()

    # -- the broker

    async def _open_broker(self, begin: int = 0, ports: OpenPorts = ()) -> None:
        """Open the store and the broker as a follower, with a new `Replica`. An empty log begins at `begin`."""
        config = self.config
        self.identity = identity = Identity(config.data, self._disk)
        epochs = EpochFile(config.data, self._disk)
        epochs.load()
        role = BrokerRole(self.number or 1, is_master=False, epoch=epochs.promised)
        more = [replica_set(self, platform.boot_seconds)]
        broker = Broker(config, self.clock, disk=self._disk, role=role, more=more, ports=ports)
        broker.store.bound_reads()
        broker.confirmation.require_replicas(self._rule)
        broker.store.lock()
        identity.load(
            crashed=broker.store.crashed, lost_unflushed=broker.store.lost_unflushed, flush_async=not self._flushes
        )
        if not self.number and identity.number is not None:
            self.number = self._failover.replica_id or identity.number
        elif not self.number:
            self.number = await self._set.claim_number(self._failover.replica_id)
        identity.take_number(self.number)
        role.number = self.number
        self.broker = broker
        self._passing.dispatcher = broker.dispatcher
        broker.dispatcher.divert(self._passing.divert)
        await broker.__aenter__()
        self.config.port = broker.port
        log = StoreLog(broker.store, broker.confirmation.replicated, begin)
        self.trouble = None  # the new `Replica` names its own
        self.replica = Replica(
            ReplicaConfig(
                config.cluster,
                config.name,
                Member(self.number, identity.incarnation),
                self._settings,
                sync_flush=self._flushes,
                lease_seconds=self._failover.lease_ms / 1000,
                lag_seconds=self._failover.lag_ms / 1000,
                catchup_seconds=self._failover.catch_up_ms / 1000,
            ),
            log,
            epochs,
            now=platform.boot_seconds(),
        )
        self._trust.permissions = broker.permissions if config.permissions else None
        self._reports.clear()
        self._tables = TableExchange(
            *(broker, self.replica, self._links),
            do=self._do,
            report=self._send_reports,
            timeout_seconds=self._rule.timeout_seconds,
        )
        self._rule.when_stored = self._tables.sent.when_stored
        self._links.log, self._links.tables = log, self._tables.sent
        if self._lease.sent is not None:
            self._lease_renewed(self._lease.sent)
        for link, hello in self._links.waiting:
            self._do(self.replica.hello_received(platform.boot_seconds(), link, hello))

    def _change(self, change: Callable[[], Awaitable[None]], what: str) -> None:
        """Start a task that changes the broker's role, after earlier changes.

        `_tick` does nothing with the `Replica` until the task ends.
        """
        earlier = self._changing  # a new master may have to step down before it is promoted

        async def run() -> None:
            try:
                if earlier is not None:
                    await asyncio.wait([earlier])
                await change()
            except Exception as error:
                logger.exception("%s failed", what)
                self._fail(error)
            finally:
                if self._changing is changing:
                    self._changing = None
            if self.is_open:  # the others wait for this replica
                self._do(self.replica.record_changed(platform.boot_seconds()))
                self._tasks.start(self._fail_if_taken(self._lease.register), name="register the replica")

        changing = self._changing = self._tasks.start(run(), name=what)

    async def _reopen(self, cut: LogCut | None = None, *, begin: int | None = None) -> None:
        """Restart the broker as a follower. With `begin`, its log is emptied, and begins at this log offset."""
        self._links.close_all()
        await self.record.stop()
        ports = self.broker.keep_ports()
        await self.broker.__aexit__(None, None, None)
        if begin is not None:
            self.identity.renew()
        if cut is not None:
            address = pack_address("127.0.0.1", 0)
            store = MessageStore(self.config.store_config, self.clock, store_address=address, disk=self._disk)
            await asyncio.to_thread(cut_log, store, cut, self.config.data)
        await self._open_broker(begin or 0, ports)

    async def _promote(self, epoch: int) -> None:
        await self.broker.promote(epoch)
        self._passing.serve()
        logger.info("replica %d is master of epoch %d", self.number, epoch)

    async def _step_down(self, action: actions.StepDown) -> None:
        address = self._address_of(action.master)
        logger.warning("replica %d steps down: %s", self.number, action.reason)
        self.broker.confirmation.step_down(str(NotTheMaster(address)))
        self._tables.sent.step_down(NotTheMaster(address))
        self.broker.role.step_down(address)
        self._passing.pass_to(address)
        if self._handed_over is not None and not self._handed_over.done():
            self._handed_over.set_result(None)
        await asyncio.sleep(0)  # the replies are written
        if self._is_stopping:
            self._links.log = None
            self._may_leave.set()
        else:
            await self._reopen()

    def _fail(self, error: Exception) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _fail_with(self, task: asyncio.Task[None]) -> None:
        """End the replica with the error of `_tick`: without its ticks a replica would hold up the set."""
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._fail(error)

    # -- requests of operators

    async def hand_over(self, number: int) -> None:
        """Make another replica the master in a planned failover. Raises `UsageError` if that fails."""
        if self._handed_over is not None and not self._handed_over.done():
            raise UsageError("the master hands over already")
        if self.replica.is_over:  # no action would complete the future
            raise UsageError("this replica is not the master any more")
        self._handed_over = asyncio.get_running_loop().create_future()
        self._do(self.replica.hand_over(platform.boot_seconds(), number))
        if (reason := await self._handed_over) is not None:
            raise UsageError(f"the master stays at replica {self.number}: {reason}")

    async def _move_clients(self) -> None:
        """Before a master stops: hand over, and pass on requests until clients of other languages know the new master.

        Such clients fetch routes every 30 s. Does nothing if no such client is connected.
        """
        if self.replica.mastership is None or self._failover.pass_on_ms == 0 or not self.broker.serves_other_languages:
            return
        number = self.replica.mastership.best_successor()
        if number is None:
            return
        try:
            await self.hand_over(number)
        except UsageError as error:
            logger.warning("%s", error)
            return
        seconds = self._failover.pass_on_ms / 1000
        logger.warning("replica %d stops in %g s: by then all clients know the new master", self.number, seconds)
        await asyncio.wait([self.failed], timeout=seconds)

    def accept_loss(self, reason: str) -> None:
        """Make this replica the master although it may lack confirmed messages."""
        self._do(self.replica.accept_loss(platform.boot_seconds(), reason))

    # -- actions

    def _do(self, todo: actions.Actions) -> None:
        for action in todo:
            self._do_one(action)

    def _do_one(self, action: actions.Action) -> None:
        links = self._links
        match action:
            case actions.SendReport():
                self._reports[action.number] = action
            case actions.Confirmed():
                links.wake()  # sends the confirmed end to followers
            case actions.SendHello(link, hello):
                links.send(link, hello)
            case actions.SendRequest(number, request):
                links.send(actions.Link(number, True), request)
            case actions.Feed():
                links.begin_feed(action)
            case actions.CloseLink(link, reason):
                links.close(link, reason)
            case actions.Dial(number):
                self._dial(number)
            case actions.ReadRecord() | actions.SwapRecord():
                self.record.begin(self.replica, action)
            case actions.Serve():
                self._rule.refusal = action.sends_refused or ""
                self.broker.role.raise_fence(action.master_refused or "")
                self._serve()
            case actions.FollowMaster(number, epoch):
                self._tables.taken.begin()
                address = self._address_of(number)
                self.broker.role.follow(address, None, epoch)
                self._passing.pass_to(address)
                logger.info("replica %d follows replica %d, epoch %d", self.number, number, epoch)
            case actions.BecomeMaster(epoch):
                self._tables.taken.begin()
                self._change(partial(self._promote, epoch), "become master")
            case actions.StepDown():
                self._change(partial(self._step_down, action), "step down")
            case actions.CutLog(end, epoch, confirmed):
                logger.warning("the log is cut to %d: replica %d was not the last master", end, self.number)
                self._change(partial(self._reopen, LogCut(end, epoch, confirmed)), "cut the log")
            case actions.ReplaceLog(first, reason):
                logger.warning("the log is emptied, to begin at %d like the master's: %s", first, reason)
                cut = LogCut(0, self.replica.epoch)
                self._change(partial(self._reopen, cut, begin=first), "replace the log")
            case actions.AskOperator(text):
                self.trouble = text
                if text is not None:
                    logger.error("replica set %s: %s", self.config.name, text)
            case actions.StopReplica(reason):
                self._fail(MQError(reason))
            case actions.HandedOver(reason):
                if self._is_stopping:
                    self._may_leave.set()
                if self._handed_over is not None and not self._handed_over.done():
                    self._handed_over.set_result(reason)
            case actions.MayLeave():
                self._may_leave.set()

    def _serve(self) -> None:
        """Make new writes wait during a planned failover of this master; otherwise make the broker answer them.

        Deliveries and checks append nothing meanwhile, or this replica would have to cut its log before it follows.
        """
        mastership = self.replica.mastership
        if mastership is not None and mastership.is_handing_over:
            self._passing.hold()
            self.broker.store.refuse_own("the master hands over to another replica")
        elif mastership is not None:
            self._passing.serve()
            self.broker.store.refuse_own("")

    def _send_reports(self) -> None:
        """Send the newest report to the master. A report includes all earlier reports.

        Sends nothing while a table that must be confirmed is not on disk.
        """
        if self._tables.taken.is_saving:
            return
        for number, action in self._reports.items():
            self._links.send(actions.Link(number, True), action.report)
        self._reports.clear()

    def _dial(self, number: int) -> None:
        info = self.record.infos.get(number)
        if info is None:
            asyncio.get_running_loop().call_soon(self.link_lost, actions.Link(number, True))
        else:
            self._links.dial(number, info.ha_address, info.address)

    def _address_of(self, number: int | None) -> str | None:
        info = self.record.infos.get(number or 0)
        return None if info is None else info.address

    # -- events of links

    def link_opened(self, number: int) -> None:
        self._do(self.replica.connected(platform.boot_seconds(), number))

    def link_refused(self, number: int) -> None:
        self._do(self.replica.refused(platform.boot_seconds(), number))

    def link_lost(self, link: actions.Link) -> None:
        self._do(self.replica.disconnected(platform.boot_seconds(), link))

    def received(self, link: actions.Link, messages: list[Message]) -> None:
        replica, now, has_frames = self.replica, platform.boot_seconds(), False
        for message in messages:
            if not self._links.is_open(link):  # an earlier message has closed the link
                break
            match message:
                case Frame():
                    has_frames = has_frames or bool(message.data)
                    self._do(replica.frame_received(now, link.number, message))
                case Report():
                    self._do(replica.report_received(now, link.number, message))
                case Hello():
                    self._do(replica.hello_received(now, link, message))
                case FrameRequest():
                    self._do(replica.request_received(now, link.number, message))
                case Refusal(text):
                    self._rejections.note(REFUSED, str(link), "replica %d refuses this replica: %s", link.number, text)
                case _:
                    self._tables.received(link, message)
        self._tables.log_grew()
        if has_frames and self._flushes:
            self._flush()
        self._send_reports()

    def _flush(self) -> None:
        """Flush the log, then confirm or report the flushed end. After a flush that is running, the next one begins."""
        store = self.broker.store
        if self._flushing or store.flushed_to >= store.max_log_offset:
            return
        self._flushing = True
        run_soon = soon_in_this_loop()

        def flushed(is_done: bool) -> None:
            self._flushing = False
            self._log_grew()
            if is_done and self._changing is None:
                self._flush()

        store.wait_flushed(store.max_log_offset).add_done_callback(
            lambda done: run_soon(partial(flushed, done.result()))
        )

    def _wake(self) -> None:
        """Send new bytes of the log to followers, because replies wait for them. Then flush or confirm the log here."""
        self._links.wake()
        if self._flushes:
            self._flush()
        elif not self._is_woken:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._log_grew)

    def _log_grew(self) -> None:
        self._is_woken = False
        self._do(self.replica.log_grew(platform.boot_seconds()))
        self._send_reports()

    # -- time

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if self._changing is None:
                now = platform.boot_seconds()
                self._look_at_disk(now)
                self._do(self.replica.log_grew(now))
                self._tables.sent.check()
                self._do(self.replica.tick(now, is_waiting=bool(len(self.broker.confirmation))))
                self.watch.update(now, self.replica)
                self._send_reports()
            self._links.tick()

    def _look_at_disk(self, now: float) -> None:
        """Call `disk_failed` when a master's writes to its disk begin to fail, and `disk_works` when they succeed."""
        error = self.broker.store.refusal if self.broker.role.is_master else ""
        if bool(error) != bool(self._disk_error):
            self._do(self.replica.disk_failed(now, error) if error else self.replica.disk_works(now))
        self._disk_error = error

    # -- the registry

    def _record_changed(self) -> None:
        self._do(self.replica.record_changed(platform.boot_seconds()))

    def _lease_renewed(self, sent: float) -> None:
        self._do(self.replica.lease_renewed(platform.boot_seconds(), sent))

    def _info(self) -> ReplicaInfo | None:
        """Return this replica's registration; None while the broker's role changes."""
        if not self.is_open:
            return None
        from pyromq import __version__

        log, lines = self.replica.log, self.replica.epochs.lines
        return ReplicaInfo(
            self.number,
            self.identity.incarnation,
            self.broker.address,
            self.ha_address,
            __version__,
            log.end,
            lines[-1].epoch if lines else 0,
        )

    async def _fail_if_taken(self, register: Callable[[], Awaitable[None]]) -> None:
        try:
            await register()
        except ReplicaNumberTaken as error:
            self._fail(error)
