"""A real cluster for client tests; also in a thread of its own, for the blocking clients."""

from contextlib import asynccontextmanager

import pytest
from tests import waiting

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import Message
from pyromq.net.channel import connect
from pyromq.net.server import Server
from pyromq.remoting.bodies import BrokerRegistration, KeyValues, encode_body
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import BrokerState, RegisterBroker
from pyromq.testing import BlockingCluster
from pyromq.testing.cluster import Cluster
from pyromq.testing.fake_clock import FakeClock

from .seen import Seen


@pytest.fixture
async def cluster():
    async with Cluster() as cluster:
        yield cluster


@pytest.fixture
async def pair():
    async with Cluster(brokers=2, auto_create_topic=False) as cluster:
        yield cluster


class JavaState:
    """Some figures of a Java broker: none are ours."""

    @answers(BrokerState)
    def state(self, header, call):
        return Reply(body=encode_body(KeyValues(table={"brokerVersionDesc": "V4_9_8"})))


@asynccontextmanager
async def stand_in(answerer):
    """A registered broker that answers what is given, and nothing else; yields the name server's address."""
    server = Server(Dispatcher(answerer), FakeClock(), host="127.0.0.1", port=0)
    await server.start()
    async with Cluster(brokers=0) as cluster:
        channel = await connect(cluster.namesrv, Dispatcher(), cluster.clock)
        address = f"127.0.0.1:{server.port}"
        registration = RegisterBroker(broker_name="java", broker_address=address, cluster="c", broker_id=0)
        (await channel.call(registration, encode_body(BrokerRegistration()), timeout=30)).check()
        yield cluster.namesrv
        await channel.close()
    await server.close()


@pytest.fixture
async def java_broker():
    """A registered broker that knows none of our own requests; yields the name server's address."""
    async with stand_in(JavaState()) as namesrv:
        yield namesrv


class ThreadedCluster:
    """A cluster whose event loop runs in another thread; `do` runs its coroutines there."""

    def __init__(self, blocking):
        self.cluster = blocking.cluster
        self.namesrv = blocking.namesrv
        self.do = blocking.run


@pytest.fixture(scope="module")
def served():
    with BlockingCluster() as blocking:
        yield ThreadedCluster(blocking)


@pytest.fixture
async def seen():
    return Seen()


@pytest.fixture
async def new_seen():
    return Seen


@pytest.fixture
def until():
    return waiting.until


@pytest.fixture
def send(cluster):
    """Send numbers as messages, to queues in turns or by key."""

    async def send(numbers, topic="orders", *, key=None, **fields):
        producer = await cluster.producer()
        return [await producer.send(Message(topic, b"%d" % n, **fields), ordering_key=key) for n in numbers]

    return send


@pytest.fixture
def consuming(cluster):
    """A started consumer of one topic, as a context."""

    @asynccontextmanager
    async def consuming(listener, *, group="workers", topic="orders", tags="*", clock=None, **config):
        consumer = AsyncConsumer(group, cluster.namesrv, config=ConsumerConfig(**config), clock=clock)
        consumer.subscribe(topic, listener, tags=tags)
        async with consumer:
            yield consumer

    return consuming
