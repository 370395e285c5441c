"""Replica sets of tests: replicas as brokers in this process, with a registry in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from pyromq import testing
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.failover_config import FailoverConfig
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.store.store_config import FlushMode, StoreConfig


class ReplicaSet(testing.ReplicaSet):
    """A set whose replicas get their settings when the test starts them."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.namesrv = namesrv
        self.folder = folder
        super().__init__({1: self.config(1)}, testing.MemoryRegistry())

    def config(
        self, number: int, *, segment_bytes: int = 1 << 20, flush: FlushMode = FlushMode.ASYNC, **failover: object
    ) -> BrokerConfig:
        folder = self.folder / str(number)
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

    async def start(self, number: int, **settings: object) -> ReplicaServer:  # type: ignore[override]
        self._configs[number] = self.config(number, **settings)  # type: ignore[arg-type]
        await super().start(number)
        return self.servers[number]

    @property
    def master_server(self) -> ReplicaServer | None:
        return None if self.master is None else self.servers[self.master]


@asynccontextmanager
async def replica_set(folder: Path) -> AsyncIterator[ReplicaSet]:
    """Run a name server, and the replicas that the test starts."""
    async with NameServer(NameServerConfig(port=0)) as names:
        found = ReplicaSet(folder, names.address)
        try:
            yield found
        finally:
            await found.stop_all()
