"""A real name server in this process on a free port, and brokers and clients that speak typed headers to it."""

import zlib

import pytest

from pyromq.clock import SystemClock
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.channel import connect
from pyromq.remoting.bodies import (
    BrokerRegistration,
    DataVersion,
    TopicConfig,
    TopicConfigTable,
    compress_registration,
    decode_body,
    encode_body,
)
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import RegisterBroker, RouteOfTopic
from pyromq.testing import FakeClock


def announcement(*topics, version=1, filter_servers=()):
    """What a broker announces: topics by name or as `TopicConfig`."""
    configs = [TopicConfig(name=topic) if isinstance(topic, str) else topic for topic in topics]
    table = TopicConfigTable(
        data_version=DataVersion(counter=version, timestamp=1), topics={each.name: each for each in configs}
    )
    return BrokerRegistration(topics=table, filter_servers=list(filter_servers))


class Caller:
    """One connection to a name server."""

    def __init__(self, channel):
        self.channel = channel

    async def ask(self, header, body=b"", *, code=0):
        """Ask and return the response, which must have the code."""
        response = await self.channel.call(header, body, timeout=30)
        assert response.code == code, response.remark
        return response

    async def body(self, header, body=b""):
        """Ask and return the answer's declared body."""
        return decode_body(header.reply_body, (await self.ask(header, body)).body)

    async def register(self, registration, *, name="a", address="10.0.0.1:10911", compressed=False, code=0, **changes):
        """Announce as a broker."""
        body = compress_registration(registration) if compressed else encode_body(registration)
        fields = {"cluster": "c", "broker_id": 0, "ha_address": "10.0.0.1:10912", "body_crc": crc(body)}
        header = RegisterBroker(broker_name=name, broker_address=address, compressed=compressed, **(fields | changes))
        return await self.ask(header, body, code=code)

    async def route(self, topic):
        return await self.body(RouteOfTopic(topic=topic))


def crc(body):
    return zlib.crc32(body) & 0x7FFFFFFF


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def config(tmp_path):
    return NameServerConfig(port=0, kv_path=tmp_path / "kvConfig.json")


@pytest.fixture
async def name_server(config, clock):
    async with NameServer(config, clock) as name_server:
        yield name_server


@pytest.fixture
async def caller_to():
    """Open connections: `await caller_to(name_server)`."""
    channels = []

    async def open_caller(name_server):
        channel = await connect(name_server.address, Dispatcher(), SystemClock())
        channels.append(channel)
        return Caller(channel)

    yield open_caller
    for channel in channels:
        await channel.close()


@pytest.fixture
async def broker(name_server, caller_to):
    """A connection of a broker."""
    return await caller_to(name_server)


@pytest.fixture
async def client(name_server, caller_to):
    """A connection of somebody else."""
    return await caller_to(name_server)
