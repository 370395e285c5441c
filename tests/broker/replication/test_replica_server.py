"""Replicas of a set as brokers in this process, with a registry in memory: started, stopped in order, started again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from pyromq import Message
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.failover_config import FailoverConfig
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import UsageError
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.store.store_config import StoreConfig
from pyromq.testing import MemoryRegistry

SECONDS = 10.0


class ReplicaSet:
    """The replicas of one test, by their numbers."""

    def __init__(self, folder: Path, namesrv: str) -> None:
        self.registry = MemoryRegistry()
        self.namesrv = namesrv
        self.servers: dict[int, ReplicaServer] = {}
        self._folder = folder

    def config(self, number: int, *, segment_bytes: int = 1 << 20, **failover: object) -> BrokerConfig:
        folder = self._folder / str(number)
        store = StoreConfig(
            folder, segment_bytes=segment_bytes, consume_queue_entries=3_000, index_slots=500, index_entries=2_000
        )
        settings = {"min_in_sync": 2, "replica_id": number} | failover
        etcd = ("http://127.0.0.1:1",)  # not used: the registry is in memory
        return BrokerConfig(
            folder,
            name="orders",
            port=0,
            namesrv=(self.namesrv,),
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


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with NameServer(NameServerConfig(port=0)) as names:
        found = ReplicaSet(tmp_path, names.address)
        try:
            yield found
        finally:
            for number in sorted(found.servers):
                await found.stop(number)


async def sent(producer: AsyncProducer, count: int) -> None:
    for number in range(count):
        await producer.send(Message("orders", b"%d" % number))


async def test_a_set_of_three_elects_a_master_and_has_equal_logs(replicas: ReplicaSet) -> None:
    for number in (1, 2, 3):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await sent(producer, 100)
    end = replicas.servers[1].broker.store.max_log_offset
    await replicas.until(lambda: all(each.broker.store.confirmed_end == end for each in replicas.servers.values()))
    assert replicas.log(1) == replicas.log(2) == replicas.log(3)


async def test_a_master_that_stops_hands_over_and_comes_back_as_a_follower(replicas: ReplicaSet) -> None:
    for number in (1, 2, 3):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    first = replicas.master
    assert first is not None
    async with AsyncExitStack() as stack:
        producer = await stack.enter_async_context(AsyncProducer("g", replicas.namesrv))
        await sent(producer, 50)
        await replicas.stop(first.number)
        await sent(producer, 50)
        assert replicas.master is not None and replicas.master.number != first.number
        await replicas.start(first.number)
        await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
        await sent(producer, 50)
    ends = {each.broker.store.max_log_offset for each in replicas.servers.values()}
    assert len(ends) == 1
    assert replicas.log(1) == replicas.log(2) == replicas.log(3)


async def test_sends_are_refused_below_the_least_number_in_sync(replicas: ReplicaSet) -> None:
    server = await replicas.start(1)
    await replicas.until(lambda: replicas.master is server)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        with pytest.raises(Exception, match="in sync: 1, asked for: 2"):
            await producer.send(Message("orders", b"1"), timeout=0.5)
    assert server.broker.store.max_log_offset == 0


async def test_replicas_of_other_file_sizes_and_taken_numbers_do_not_start(replicas: ReplicaSet) -> None:
    await replicas.start(1)
    with pytest.raises(UsageError, match="mappedFileSizeCommitLog is 2097152 here and 1048576 there"):
        await replicas.start(2, segment_bytes=2 << 20)
    other = ReplicaSet(replicas._folder / "other", replicas.namesrv)
    other.registry = replicas.registry
    with pytest.raises(UsageError, match="replica 1 of the set orders runs at"):
        await other.start(1, lease_ms=2_000)
