"""A real broker in this process on a free port, and connections that speak typed headers to it."""

import asyncio

import pytest
from tests.broker.headers import pull_header
from tests.broker.transactions.transactions import ROUND, Checked, Transactions

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.record import decode_all
from pyromq.remoting.bodies import ConsumerEntry, HeartbeatBody, ProducerEntry, Subscription, decode_body, encode_body
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import (
    ConsumerIdsChanged,
    CreateTopic,
    Heartbeat,
    SendMessageResponse,
)
from pyromq.store.store_config import StoreConfig
from pyromq.testing import FakeClock

from .headers import send_header


class Notices:
    """The groups that the broker said have changed, in order."""

    def __init__(self):
        self.groups = asyncio.Queue()

    @answers(ConsumerIdsChanged)
    def note(self, header, call):
        self.groups.put_nowait(header.consumer_group)
        return Reply()


class Caller:
    """One connection to a broker."""

    def __init__(self, channel, notices):
        self.channel = channel
        self.notices = notices.groups

    async def ask(self, header, body=b"", *, code=0):
        """Ask and return the response, which must have the code."""
        response = await self.channel.call(header, body, timeout=30)
        assert response.code == code, response.remark
        return response

    async def body(self, header, body=b""):
        """Ask and return the answer's declared body."""
        return decode_body(header.reply_body, (await self.ask(header, body)).body)

    async def send(self, topic, body=b"hello", *, queue_id=0, properties=""):
        header = send_header(properties, topic=topic, queue_id=queue_id)
        return (await self.ask(header, body)).header(SendMessageResponse)

    def pull(self, topic="orders", queue_id=0, *, offset=0, suspend_ms=0, sql=None):
        """Ask for messages; return the future of the response."""
        pull = pull_header(
            topic=topic,
            queue_id=queue_id,
            queue_offset=offset,
            sys_flag=6 if suspend_ms else 4,
            suspend_ms=suspend_ms,
            subscription=sql,
            expression_type=None if sql is None else "SQL92",
        )
        return self.channel.call_soon(pull, timeout=20)

    async def messages(self, topic="orders", queue_id=0, *, offset=0):
        """Return what one pull finds."""
        return decode_all((await self.pull(topic, queue_id, offset=offset)).body)

    async def bodies(self, topic="orders", queue_id=0):
        return [message.body for message in await self.messages(topic, queue_id)]

    async def create_topic(self, topic, queues=4, permission=6):
        await self.ask(CreateTopic(topic=topic, read_queues=queues, write_queues=queues, permission=permission))

    async def beat(self, client_id, *, group=None, topics=("orders",), tags=(), producer=None, version=1, code=0):
        """Send a heartbeat of a client with one consumer and one producer at most."""
        expression = " || ".join(tags) or "*"
        subscriptions = [
            Subscription(topic=topic, expression=expression, tags=list(tags), version=version) for topic in topics
        ]
        consumers = [ConsumerEntry(group=group, subscriptions=subscriptions)] if group else []
        producers = [ProducerEntry(group=producer)] if producer else []
        beat = HeartbeatBody(client_id=client_id, consumers=consumers, producers=producers)
        return await self.ask(Heartbeat(), encode_body(beat), code=code)


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def config(tmp_path):
    store = StoreConfig(
        tmp_path, segment_bytes=1 << 20, consume_queue_entries=1000, index_slots=100, index_entries=1000
    )
    return BrokerConfig(tmp_path, port=0, store=store, transaction_check_interval_ms=ROUND * 1_000)


@pytest.fixture
async def broker(config, clock):
    async with Broker(config, clock) as broker:
        yield broker


@pytest.fixture
async def caller_to():
    """Open connections: `await caller_to(broker)`, with objects that answer the broker's own requests."""
    channels = []

    async def open_caller(broker, *answerers):
        notices = Notices()
        channel = await connect(broker.address, Dispatcher(notices, *answerers), SystemClock())
        channels.append(channel)
        return Caller(channel, notices)

    yield open_caller
    for channel in channels:
        await channel.close()


@pytest.fixture
async def caller(broker, caller_to):
    return await caller_to(broker)


@pytest.fixture
async def orders(caller):
    await caller.create_topic("orders")
    return caller


@pytest.fixture
def transactions_of(caller_to, clock):
    """Connect a producer of group p to a broker."""

    async def connect(broker, *, member=True):
        checked = Checked()
        caller = await caller_to(broker, checked)
        if member:
            await caller.beat("producer", producer="p")
        return Transactions(caller, clock, checked)

    return connect


@pytest.fixture
async def producer(broker, transactions_of):
    return await transactions_of(broker)
