"""Real sockets on loopback: servers and channels that are closed at a test's end, and what they talk about."""

import asyncio
from concurrent.futures import Future

import pytest
from tests import waiting
from tests.net.sockets import open_narrow

from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.net.server import Server
from pyromq.remoting.command import Reply, encode_request
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import EarliestStoreTime, MaxOffset, MinOffset, OffsetResponse
from pyromq.testing import FakeClock

LARGE = 1 << 20


class Offsets:
    """Says the queue id back: at once, when the test says so, or with a large body."""

    def __init__(self):
        self.asked = 0
        self.waiting = []

    @answers(MaxOffset)
    def at_once(self, header, call):
        self.asked += 1
        return Reply(OffsetResponse(offset=header.queue_id))

    @answers(MinOffset)
    def later(self, header, call):
        self.waiting.append(Future())
        return self.waiting[-1]

    @answers(EarliestStoreTime)
    def large(self, header, call):
        self.asked += 1
        return Reply(body=bytes(LARGE))


@pytest.fixture
def until():
    return waiting.until


@pytest.fixture
def clock():
    """The servers' clock."""
    return FakeClock()


@pytest.fixture
def offsets():
    return Offsets()


@pytest.fixture
async def serve(clock):
    """Start servers: `await serve(offsets)`."""
    servers = []

    async def start(*answerers, **options):
        server = Server(Dispatcher(*answerers), clock, **options)
        await server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        await server.close(drain_seconds=0)


@pytest.fixture
async def deaf():
    """Open connections that ask for more than all buffers take, and read nothing: `await deaf(port)`."""
    writers = []

    async def ask_much(port, count=40):
        reader, writer = await open_narrow(port)
        writer.transport.pause_reading()
        writers.append(writer)
        header = EarliestStoreTime(topic="t", queue_id=0)
        writer.write(b"".join(encode_request(header, b"", opaque=number, flag=0) for number in range(count)))
        return reader, writer

    yield ask_much
    for writer in writers:
        writer.transport.abort()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


@pytest.fixture
async def server(serve, offsets):
    return await serve(offsets)


@pytest.fixture
async def dial():
    """Open channels: `await dial(server, *answerers)`; they live by the machine's clock."""
    channels = []

    async def open_channel(server, *answerers, **options):
        channel = await connect(f"127.0.0.1:{server.port}", Dispatcher(*answerers), SystemClock(), **options)
        channels.append(channel)
        return channel

    yield open_channel
    for channel in channels:
        await channel.close()


@pytest.fixture
async def channel(dial, server):
    return await dial(server)
