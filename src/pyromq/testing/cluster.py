"""A cluster for tests: a real name server and real brokers in this process, on free ports, with a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Self, TypeVar

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.failover_config import FailoverConfig
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.client_config import ConsumerConfig, ProducerConfig
from pyromq.client.consumer.pop.async_simple_consumer import AsyncSimpleConsumer
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.store.store_config import StoreConfig
from pyromq.testing.fake_clock import FakeClock
from pyromq.testing.killed_folder import keep_as_killed
from pyromq.testing.link import Link
from pyromq.testing.memory_registry import MemoryRegistry
from pyromq.testing.replica_set import ReplicaSet

Config = TypeVar("Config", ProducerConfig, ConsumerConfig)

# Small files: tests create many stores, and some need a log of several files.
SEGMENT_BYTES = 4 << 20
QUEUE_ENTRIES = 3_000
INDEX_SLOTS = 5_000
INDEX_ENTRIES = 20_000
NO_ETCD = ("http://127.0.0.1:1",)  # a replica needs the URL of etcd; this one is never used
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

    With `replicas`, each broker is a set of so many replicas (`sets`), which fails over when its master is killed:

        async with Cluster(replicas=3, min_in_sync=2) as cluster:
            producer = await cluster.producer()
            await producer.send(Message("orders", b"1"))
            await cluster.kill_master()
            await producer.send(Message("orders", b"2"))  # waits for the new master

    `registry` replaces etcd: `cluster.registry.is_away = True` makes the registry unreachable for all replicas.
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
        replicas: int = 0,
        min_in_sync: int = 1,
        **settings: Any,
    ) -> None:
        if replicas and linked:
            raise UsageError("a cluster has links before brokers, or sets of replicas: leave out linked or replicas")
        if min_in_sync > max(replicas, 1):
            raise UsageError(
                f"min_in_sync is {min_in_sync}, and each set has {replicas} replicas: no send would succeed"
            )
        self.clock: Any = clock or FakeClock()
        self.links: list[Link] = []
        self.sets: list[ReplicaSet] = []
        self.registry = MemoryRegistry()
        self._brokers: list[Broker] = []
        self._replicas = replicas
        self._min_in_sync = min_in_sync
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
    def brokers(self) -> list[Broker]:
        """The brokers; of each replica set the master. Raises `UsageError` if a set has no master now."""
        return [each.broker() for each in self.sets] if self._replicas else self._brokers

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
            if self._replicas:
                await self._start_sets()
            else:
                await self._start_brokers()
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

    async def simple_consumer(self, group: str = "test-consumer", **options: Any) -> AsyncSimpleConsumer:
        """Return a started simple consumer that is closed with the cluster. The test must still call `subscribe`."""
        return await self._client(AsyncSimpleConsumer, group, ConsumerConfig(), **options)  # type: ignore[no-any-return]

    async def admin(self) -> AsyncAdmin:
        """Return a started admin client that is closed with the cluster."""
        return await self._stack.enter_async_context(AsyncAdmin(self.namesrv, connections=self.connections))

    async def _client(self, kind: Callable[..., Any], group: str, default: Config, **options: Any) -> Any:
        config = connected(options.pop("config", None) or default, self.connections)
        return await self._stack.enter_async_context(kind(group, self.namesrv, config=config, **options))

    async def stop_broker(self, number: int = 0, replica: int | None = None) -> None:
        """Stop a broker cleanly; its port and folder stay reserved for `start_broker`.

        In a replica set this stops one replica, by default the master, which hands over to another replica first.
        """
        if self._replicas:
            await self.sets[number].stop(replica)
        elif number in self._running:
            self._running.discard(number)
            await self._brokers[number].__aexit__(None, None, None)

    async def kill_broker(self, number: int = 0, replica: int | None = None) -> None:
        """End a broker as SIGKILL would end a process: connections break, and the folder stays unchanged.

        As the kernel does, this keeps everything that the process wrote, flushed or not. In a replica set this ends one
        replica, by default the master.
        """
        if self._replicas:
            await self.sets[number].kill(replica)
            return
        broker = self._brokers[number]
        broker.cut_connections()
        await keep_as_killed(broker.config.data, lambda: self.stop_broker(number))

    async def kill_master(self, number: int = 0) -> int:
        """Kill the master of a replica set, and return the number of the killed replica.

        Another replica becomes master within about a second. Producers wait for the new master; a test that looks at
        the set itself awaits `until_in_sync`.
        """
        return await self.sets[number].kill()

    async def until_in_sync(self, number: int = 0) -> None:
        """Wait until a replica set has a master, and all of its running replicas are in sync."""
        await self.sets[number].until_in_sync()

    async def start_broker(self, number: int = 0, replica: int | None = None) -> Broker:
        """Start a stopped or killed broker again, on the same port and folder.

        In a replica set this starts one replica, by default all that do not run. Returns the master's broker once all
        running replicas are in sync.
        """
        if self._replicas:
            await self.sets[number].start(replica)
            await self.sets[number].until_in_sync()
            return self.sets[number].broker()
        self._brokers[number] = await self._start(number, replace(self._brokers[number].config))
        return self._brokers[number]

    async def restart_broker(self, number: int = 0, replica: int | None = None) -> Broker:
        """Stop a broker cleanly and start it again; in a replica set one replica, by default the master."""
        if self._replicas:
            replica = self.sets[number].number_of(replica)
        await self.stop_broker(number, replica)
        return await self.start_broker(number, replica)

    async def _start(self, number: int, config: BrokerConfig) -> Broker:
        broker = await Broker(config, self.clock).__aenter__()
        self._running.add(number)
        return broker

    async def _start_brokers(self) -> None:
        for number in range(self._count):
            self._brokers.append(await self._start(number, self._config(number)))
            if self._linked:
                config = self._brokers[-1].config
                link = Link(f"{config.host}:{config.port}", host=LINK_HOST, port=config.port)
                self.links.append(await self._stack.enter_async_context(link))

    async def _start_sets(self) -> None:
        for number in range(self._count):
            configs = {each: self._config(number, each) for each in range(1, self._replicas + 1)}
            self.sets.append(ReplicaSet(configs, self.registry, self.clock))
            await self.sets[-1].start()
        for replicas in self.sets:
            await replicas.until_in_sync()

    async def _stop_brokers(self) -> None:
        for replicas in self.sets:
            await replicas.stop_all()
        for number in range(len(self._brokers)):
            await self.stop_broker(number)

    def _config(self, number: int, replica: int | None = None) -> BrokerConfig:
        assert self._data is not None
        name = f"broker-{chr(ord('a') + number)}"
        folder = self._data / (name if replica is None else f"{name}-{replica}")
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
        if replica is not None:
            settings["failover"] = FailoverConfig(NO_ETCD, replica_id=replica, min_in_sync=self._min_in_sync)
        return BrokerConfig(folder, **(settings | self._settings))


def connected(config: Config, connections: ConnectionConfig | None) -> Config:
    """Return the configuration of a client with these connections, unless the configuration has connections."""
    return config if config.connections is not None else replace(config, connections=connections)
