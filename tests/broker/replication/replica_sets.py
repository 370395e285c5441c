"""Replica sets of tests: replicas as brokers in this process, with a registry in memory."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.failover_config import FailoverConfig
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import MemoryRegistry

SECONDS = 10.0


class ReplicaSet:
    """The replicas of one test, by their numbers."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.registry = MemoryRegistry()
        self.namesrv = namesrv
        self.servers: dict[int, ReplicaServer] = {}
        self._folder = folder

    def config(
        self, number: int, *, segment_bytes: int = 1 << 20, flush: FlushMode = FlushMode.ASYNC, **failover: object
    ) -> BrokerConfig:
        folder = self._folder / str(number)
        small = {"consume_queue_entries": 3_000, "index_slots": 500, "index_entries": 2_000}
        store = StoreConfig(folder, segment_bytes=segment_bytes, flush=flush, **small)
        settings = {"min_in_sync": 2, "replica_id": number} | failover
        etcd = ("http://127.0.0.1:1",)  # not used: the registry is in memory
        return BrokerConfig(
            folder,
            name="orders",
            port=0,
            namesrv=(self.namesrv,),
            offsets_interval_ms=100,
            store=store,
            failover=FailoverConfig(etcd, **settings),  # type: ignore[arg-type]
        )

    async def start(self, number: int, **settings: object) -> ReplicaServer:
        server = ReplicaServer(self.config(number, **settings), self.registry)  # type: ignore[arg-type]
        self.servers[number] = await server.__aenter__()
        return server

    async def stop(self, number: int) -> None:
        await self.servers.pop(number).__aexit__(None, None, None)

    @property
    def master(self) -> ReplicaServer | None:
        return next((each for each in self.servers.values() if each.broker.role.is_master), None)

    @property
    def in_sync(self) -> list[int]:
        master = self.master
        record = None if master is None else master.replica.view.record
        return [] if record is None else [member.number for member in record.in_sync]

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not holds():
                await asyncio.sleep(0.01)

    def log(self, number: int) -> bytes:
        store = self.servers[number].broker.store
        files = sorted(store.config.log_folder.iterdir())
        return b"".join(path.read_bytes() for path in files)[: store.max_log_offset]


@asynccontextmanager
async def replica_set(folder: Path) -> AsyncIterator[ReplicaSet]:
    """Run a name server, and the replicas that the test starts."""
    async with NameServer(NameServerConfig(port=0)) as names:
        found = ReplicaSet(folder, names.address)
        try:
            yield found
        finally:
            for number in sorted(found.servers):
                await found.stop(number)
