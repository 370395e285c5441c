"""One name server: puts its parts together, starts and stops them."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Self

from pyromq.clock import Clock, SystemClock
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.kv import KvTable
from pyromq.nameserver.kv_answers import AnsweringKv
from pyromq.nameserver.registration import RegisteringBrokers
from pyromq.nameserver.route_queries import QueryingRoutes
from pyromq.nameserver.routes import RouteTable
from pyromq.nameserver.settings_answers import ConfiguringNameServer
from pyromq.net.server import Server
from pyromq.net.tasks import Tasks, every
from pyromq.remoting.dispatch import Dispatcher
from pyromq.store.json_file import JsonFile

logger = logging.getLogger(__name__)

DRAIN_SECONDS = 0.5  # no answer waits for anything


class NameServer:
    """Tells clients where topics are. An async context manager: inside, it answers at `address`.

    Entering raises `UsageError` for the port and `StoreCorrupt` for a damaged file of key-value settings.
    """

    def __init__(self, config: NameServerConfig | None = None, clock: Clock | None = None) -> None:
        self.config = replace(config) if config is not None else NameServerConfig()
        self.routes = RouteTable()
        self._clock = clock or SystemClock()
        self._kv = KvTable(JsonFile(self.config.kv_path) if self.config.kv_path is not None else None)
        # Beside the key-value settings: what administrators change. A name server without that file keeps neither.
        kept = self.config.kv_path.with_name("namesrv.properties") if self.config.kv_path is not None else None
        self._configuring = ConfiguringNameServer(self.config, JsonFile(kept) if kept is not None else None)
        dispatcher = Dispatcher(
            RegisteringBrokers(self.routes, self._kv, self._clock),
            QueryingRoutes(self.routes, self._kv, self.config),
            AnsweringKv(self._kv),
            self._configuring,
        )
        config = self.config
        self._server = Server(
            dispatcher, self._clock, host=config.host, port=config.port, connections=config.connections
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

    async def __aenter__(self) -> Self:
        self._kv.load()
        self._configuring.load()
        await self._server.start()
        self._tasks.start(every(self.config.scan_interval_ms / 1000, self._expire, self._clock), name="expire brokers")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.stop()
        await self._server.close(DRAIN_SECONDS)

    def _expire(self) -> None:
        for address in self.routes.expire(self._clock.monotonic() - self.config.broker_timeout_ms / 1000):
            logger.warning("broker %s is gone: silent for %d ms", address, self.config.broker_timeout_ms)
