"""One name server: puts its parts together, starts and stops them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Self

from pyromq.clock import Clock, SystemClock
from pyromq.logs import logger_of
from pyromq.nameserver.change_guard import ChangeGuard
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.kv import KvTable
from pyromq.nameserver.kv_answers import AnsweringKv
from pyromq.nameserver.registration import RegisteringBrokers
from pyromq.nameserver.route_queries import QueryingRoutes
from pyromq.nameserver.routes import RouteTable
from pyromq.nameserver.settings_answers import ConfiguringNameServer
from pyromq.net.long_answers import LongAnswers
from pyromq.net.server import Server
from pyromq.net.tasks import Tasks, every
from pyromq.permissions.acl_folder import AclFolder
from pyromq.permissions.acl_watch import LOOK_SECONDS, AclWatch
from pyromq.permissions.permissions import Permissions
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.refusals import Refusals
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.json_file import JsonFile
from pyromq.store.worker import worker

if TYPE_CHECKING:
    from pyromq.nameserver.metrics import NameServerMetrics

logger = logger_of(__name__)

DRAIN_SECONDS = 0.5  # answers wait for a table on disk at most


class NameServer:
    """Tells clients where topics are. An async context manager: inside, it answers at `address`.

    Entering raises `UsageError` for the port and `StoreCorrupt` for a damaged file of key-value settings.
    """

    def __init__(self, config: NameServerConfig | None = None, clock: Clock | None = None) -> None:
        self.config = replace(config) if config is not None else NameServerConfig()
        self.routes = RouteTable(most_topics=self.config.max_topics, most_brokers=self.config.max_brokers)
        self._clock = clock or SystemClock()
        self._watch: AclWatch | None = None
        self._kv = KvTable(
            JsonFile(self.config.kv_path) if self.config.kv_path is not None else None,
            most_bytes=self.config.max_kv_bytes,
        )
        # Beside the key-value settings: what administrators change. A name server without that file keeps neither.
        kept = self.config.kv_path.with_name("namesrv.properties") if self.config.kv_path is not None else None
        self._configuring = ConfiguringNameServer(self.config, JsonFile(kept) if kept is not None else None)
        self._long_answers = LongAnswers(self._clock)
        self._registering = RegisteringBrokers(self.routes, self._kv, self._clock, self._long_answers)
        self._refusals = refusals = Refusals(self._clock)
        guard = None
        if self.config.permissions_path is not None:
            permissions = Permissions()
            self._watch = AclWatch(
                AclFolder(self.config.permissions_path), permissions, worker(LOCAL_DISK, "permissions")
            )
            guard = ChangeGuard(permissions, refusals)
        dispatcher = Dispatcher(
            self._registering,
            QueryingRoutes(self.routes, self._kv, self.config, self._long_answers),
            AnsweringKv(self._kv),
            self._configuring,
            guard=guard,
            refusals=refusals,
        )
        config = self.config
        self._server = Server(
            dispatcher,
            self._clock,
            host=config.host,
            port=config.port,
            connections=config.connections,
            limits=config.connection_limits,
            tls=config.tls,
        )
        self._tasks = Tasks()

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def address(self) -> str:
        """What clients and brokers connect to: `host:port`."""
        host = self.config.host
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"

    def metrics(self) -> NameServerMetrics:
        """Return what a `MetricsEndpoint` tells of this name server."""
        from pyromq.nameserver.metrics import NameServerMetrics  # a start without metrics does not pay for them

        return NameServerMetrics(self.address, self.routes, self._refusals, self._server.exchanges)

    async def __aenter__(self) -> Self:
        self._kv.load()
        self._configuring.load()
        if self._watch is not None:
            self._watch.load()
            self._tasks.start(every(LOOK_SECONDS, self._watch.look, self._clock), name="look at accounts")
        await self._server.start()
        self._tasks.start(every(self.config.scan_interval_ms / 1000, self._expire, self._clock), name="expire brokers")
        for step, alarm in (
            (self._long_answers.step, self._long_answers.alarm),
            (self._registering.forget_some, self._registering.alarm),
        ):
            self._tasks.start(alarm.run(step), name=step.__qualname__)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.stop()
        await self._server.close(DRAIN_SECONDS)
        self._kv.close()
        if self._watch is not None:
            self._watch.close()

    def _expire(self) -> None:
        for address in self.routes.expire(self._clock.monotonic() - self.config.broker_timeout_ms / 1000):
            logger.warning("broker %s is gone: silent for %d ms", address, self.config.broker_timeout_ms)
        self._registering.alarm.ring_within(0)
