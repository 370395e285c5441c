"""A master that sends its log, and the bytes of peers at its HA port."""

import asyncio
import struct

import pytest
from tests.broker.transactions.transactions import ROUND
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.broker.replication.ha.ha_service import HaService
from pyromq.store.store_config import StoreConfig
from pyromq.testing.fake_clock import settle

SEGMENT = 64 << 10


class Peer:
    """A connection to a HA port, spoken to in bytes."""

    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    def report(self, *offsets):
        self._writer.write(struct.pack(f">{len(offsets)}q", *offsets))

    def write(self, data):
        self._writer.write(data)

    async def frame(self):
        """Return log offset and bytes of the next frame."""
        offset, size = struct.unpack(">qi", await asyncio.wait_for(self._reader.readexactly(12), PATIENCE_SECONDS))
        return offset, await asyncio.wait_for(self._reader.readexactly(size), PATIENCE_SECONDS)

    async def bytes_up_to(self, end):
        """Return the first log offset and all bytes of the frames up to a log offset, without heartbeats."""
        offset, data = await self.frame()
        parts, reached = [data], offset + len(data)
        while reached < end:
            at, data = await self.frame()
            assert at == reached
            parts.append(data)
            reached += len(data)
        return offset, b"".join(parts)

    async def closed(self):
        """Wait until the other side has closed the connection; return the bytes that came before."""
        try:
            return await asyncio.wait_for(self._reader.read(), PATIENCE_SECONDS)
        except ConnectionResetError:
            return b""

    def close(self):
        self._writer.close()


@pytest.fixture
def config(tmp_path):
    store = StoreConfig(
        tmp_path, segment_bytes=SEGMENT, consume_queue_entries=1000, index_slots=100, index_entries=1000
    )
    ha = HaConfig(batch_bytes=10_000)
    return BrokerConfig(tmp_path, port=0, store=store, ha=ha, transaction_check_interval_ms=ROUND * 1_000)


class Master:
    """A broker with its HA service, which a test moves by its clock."""

    def __init__(self, broker, service, clock, replicated):
        self.broker, self.service, self.clock, self.replicated = broker, service, clock, replicated
        self.store = broker.store

    async def until(self, condition):
        """Let time pass until a condition holds; fail after 60 s of the clock."""
        for _ in range(600):
            if condition():
                return
            await self.turn()
        raise AssertionError("the condition does not hold after 60 s")

    async def turn(self, seconds=0.11):
        """Let time pass, and sockets be read and written."""
        await self.clock.advance(seconds)
        await sockets()


async def sockets():
    """Let the event loop read and write sockets."""
    for _ in range(5):
        await asyncio.sleep(0.001)
        await settle()


@pytest.fixture
async def master(config, clock):
    async with Broker(config, clock) as broker:
        replicated = []

        async def allows(host):
            return host == "127.0.0.1"

        state = broker._state
        service = HaService(
            broker.store,
            clock,
            config.ha,
            replicated=replicated.append,
            allows=allows,
            fetch=state.cold_reads.fetch,
        )
        await service.start("127.0.0.1", 0)
        stepping = asyncio.create_task(service.alarm.run(service.step))
        yield Master(broker, service, clock, replicated)
        stepping.cancel()
        await service.stop()
        service.close()


@pytest.fixture
async def orders(master, caller_to):
    """A connection to the master, which has the topic orders."""
    caller = await caller_to(master.broker)
    await caller.create_topic("orders")
    return caller


async def fill(caller, bytes_, body=3_000):
    """Store messages of about so many bytes."""
    for _ in range(-(-bytes_ // body)):
        await caller.send("orders", b"x" * body)


@pytest.fixture
async def peer_of():
    """Connect to the HA port of a service."""
    peers = []

    async def connect(service):
        peer = Peer(*await asyncio.open_connection("127.0.0.1", service.port))
        peers.append(peer)
        await sockets()
        return peer

    yield connect
    for peer in peers:
        peer.close()
