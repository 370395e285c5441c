"""A cluster for tests: a real name server and real brokers in this process, on free ports, with a temporary folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.client_config import ConsumerConfig, ProducerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.clock import Clock
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.store.store_config import StoreConfig
from pyromq.testing.fake_clock import FakeClock
from pyromq.testing.link import Link

Config = TypeVar("Config", ProducerConfig, ConsumerConfig)

# Small files: tests create many stores, and some need a log of several files.
SEGMENT_BYTES = 4 << 20
QUEUE_ENTRIES = 3_000
INDEX_SLOTS = 5_000
INDEX_ENTRIES = 20_000
LINK_HOST = "127.0.0.2"  # address of links: a link has its broker's port, and so needs another loopback address


class Cluster:
    """A cluster for tests, an async context manager.

        async with Cluster() as cluster:
            producer = await cluster.producer()
            await producer.send(Message("orders", b"1"))

    `clock` is the servers' clock, by default a `FakeClock`; clients use the real time. `settings` are fields of
    `BrokerConfig` for every broker. With `data` the folder is kept; otherwise it is temporary. With `linked`, clients
    reach each broker through its link in `links`. `tls` is for the ports of all servers. `connections` is for the
    brokers' connections to the name server, and for the clients made here.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        clock: Clock | None = None,
        data: Path | None = None,
        linked: bool = False,
        tls: ServerTlsConfig | None = None,
        connections: ConnectionConfig | None = None,
        **settings: Any,
    ) -> None:
        self.clock: Any = clock or FakeClock()
        self.brokers: list[Broker] = []
        self.links: list[Link] = []
        self._count = brokers
        self._data = data
        self._linked = linked
        self._tls = tls
        self.connections = connections
        self._settings = settings
        self._names: NameServer
        self._running: set[int] = set()
        self._stack = AsyncExitStack()

    @property
    def namesrv(self) -> str:
        """The address of the name server."""
        return self._names.address

    @property
    def name_server(self) -> NameServer:
        return self._names

    @property
    def broker(self) -> Broker:
        """The first broker of the cluster."""
        return self.brokers[0]

    async def __aenter__(self) -> Self:
        try:
            if self._data is None:
                self._data = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pyromq-")))
            names = NameServerConfig(port=0, tls=self._tls)
            self._names = await self._stack.enter_async_context(NameServer(names, self.clock))
            self._stack.push_async_callback(self._stop_brokers)
            for number in range(self._count):
                self.brokers.append(await self._start(number, self._config(number)))
                if self._linked:
                    self.links.append(await self._stack.enter_async_context(_link_before(self.brokers[-1].config)))
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *failure: object) -> None:
        await self._stack.aclose()

    async def producer(self, group: str = "test-producer", **options: Any) -> AsyncProducer:
        """Return a started producer that is closed with the cluster."""
        return await self._client(AsyncProducer, group, ProducerConfig(), **options)  # type: ignore[no-any-return]

    async def consumer(self, group: str = "test-consumer", **options: Any) -> AsyncPullConsumer:
        """Return a started pull consumer that is closed with the cluster."""
        return await self._client(AsyncPullConsumer, group, ConsumerConfig(), **options)  # type: ignore[no-any-return]

    async def push_consumer(self, group: str = "test-consumer", **options: Any) -> AsyncConsumer:
        """Return a started push consumer that is closed with the cluster. The test must still call `subscribe`."""
        return await self._client(AsyncConsumer, group, ConsumerConfig(), **options)  # type: ignore[no-any-return]

    async def admin(self) -> AsyncAdmin:
        """Return a started admin client that is closed with the cluster."""
        return await self._stack.enter_async_context(AsyncAdmin(self.namesrv, connections=self.connections))

    async def _client(self, kind: Callable[..., Any], group: str, default: Config, **options: Any) -> Any:
        config = connected(options.pop("config", None) or default, self.connections)
        return await self._stack.enter_async_context(kind(group, self.namesrv, config=config, **options))

    async def stop_broker(self, number: int = 0) -> None:
        """Stop a broker cleanly; its port and folder stay reserved for `start_broker`."""
        if number in self._running:
            self._running.discard(number)
            await self.brokers[number].__aexit__(None, None, None)

    async def kill_broker(self, number: int = 0) -> None:
        """End a broker as SIGKILL would end a process: connections break, and the folder stays unchanged.

        As the kernel does, this keeps everything that the process wrote, flushed or not.
        """
        broker = self.brokers[number]
        folder = broker.config.data
        left = folder.with_name(folder.name + ".killed")
        broker.cut_connections()
        # Without temporary files, which a thread may be writing.
        shutil.copytree(folder, left, ignore=shutil.ignore_patterns("*.tmp"))
        await self.stop_broker(number)
        shutil.rmtree(folder)
        left.rename(folder)

    async def start_broker(self, number: int = 0) -> Broker:
        """Start a stopped or killed broker again, on the same port and folder."""
        self.brokers[number] = await self._start(number, replace(self.brokers[number].config))
        return self.brokers[number]

    async def restart_broker(self, number: int = 0) -> Broker:
        """Stop a broker cleanly and start it again."""
        await self.stop_broker(number)
        return await self.start_broker(number)

    async def _start(self, number: int, config: BrokerConfig) -> Broker:
        broker = await Broker(config, self.clock).__aenter__()
        self._running.add(number)
        return broker

    async def _stop_brokers(self) -> None:
        for number in range(len(self.brokers)):
            await self.stop_broker(number)

    def _config(self, number: int) -> BrokerConfig:
        assert self._data is not None
        name = f"broker-{chr(ord('a') + number)}"
        folder = self._data / name
        store = StoreConfig(
            folder,
            segment_bytes=SEGMENT_BYTES,
            consume_queue_entries=QUEUE_ENTRIES,
            index_slots=INDEX_SLOTS,
            index_entries=INDEX_ENTRIES,
        )
        settings: dict[str, Any] = {"name": name, "port": 0, "namesrv": (self.namesrv,), "store": store}
        settings |= {"tls": self._tls, "connections": self.connections or PLAIN}
        if self._linked:
            settings["advertised_host"] = LINK_HOST
        return BrokerConfig(folder, **(settings | self._settings))


def connected(config: Config, connections: ConnectionConfig | None) -> Config:
    """Return the configuration of a client with these connections, unless the configuration has connections."""
    return config if config.connections is not None else replace(config, connections=connections)


def _link_before(config: BrokerConfig) -> Link:
    return Link(f"{config.host}:{config.port}", host=LINK_HOST, port=config.port)
