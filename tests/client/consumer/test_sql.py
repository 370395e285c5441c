"""Consumers that choose messages by an SQL92 expression over properties."""

import asyncio

import pytest
from tests.client.seen import Seen
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.errors import BrokerError, SubscriptionParseFailed, UsageError
from pyromq.message import Message
from pyromq.net.channel import connect
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import SaveBrokerSettings

PRICES = range(12)
WANTED = "price BETWEEN 3 AND 7 AND region = 'EU'"
BODIES = [3, 5, 7]


@pytest.fixture
async def priced(cluster):
    producer = await cluster.producer()
    for price in PRICES:
        properties = {"price": str(price), "region": "EU" if price % 2 else "US"}
        await producer.send(Message("orders", b"%d" % price, properties=properties))
    return cluster


async def polled(consumer, count):
    found = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await consumer.poll(0.2)
    return sorted(int(message.body) for message in found)


async def test_a_listener_is_given_what_is_wanted(priced):
    seen = Seen()
    consumer = AsyncConsumer("workers", priced.namesrv)
    consumer.subscribe("orders", seen, sql=WANTED)
    async with consumer:
        assert sorted(await seen.wait(3)) == BODIES
        producer = await priced.producer()
        await producer.send(Message("orders", b"100", properties={"price": "8", "region": "EU"}))
        await producer.send(Message("orders", b"101", properties={"price": "4", "region": "EU"}))
        assert sorted(await seen.wait(4)) == [*BODIES, 101]


async def test_a_failed_message_comes_again_through_the_retry_topic(priced):
    failed = []

    async def listener(messages):
        [message] = messages
        failed.append((message.body, message.reconsume_times))
        if len(failed) == 1:
            raise ValueError("not yet")

    consumer = AsyncConsumer("workers", priced.namesrv)
    consumer.subscribe("orders", listener, sql="price = 3")
    async with consumer, asyncio.timeout(PATIENCE_SECONDS):
        while len(failed) < 2:
            await priced.clock.advance(1)
    assert failed[0][0] == failed[1][0] == b"3"


async def test_members_of_a_group_share_what_is_wanted(priced):
    consumer = AsyncPullConsumer("readers", priced.namesrv)
    consumer.subscribe("orders", sql=WANTED)
    async with consumer:
        assert await polled(consumer, 3) == BODIES


async def test_assigned_queues_and_single_pulls_take_an_expression(priced):
    async with AsyncPullConsumer("readers", priced.namesrv) as consumer:
        queues = await consumer.queues("orders")
        await consumer.assign(queues, sql=WANTED)
        assert await polled(consumer, 3) == BODIES
        pulled = [await consumer.pull(queue, 0, sql="price > 10") for queue in queues]
        assert [message.body for each in pulled for message in each.messages] == [b"11"]
    async with AsyncQueueReader("readers", priced.namesrv) as reader:
        pulled = await reader.pull_all([(queue, 0, 32) for queue in queues], sql="price < 1")
        assert [message.body for each in pulled for message in each.messages] == [b"0"]


async def test_what_cannot_be_parsed_is_refused_before_anything_is_sent(cluster):
    consumer = AsyncConsumer("workers", cluster.namesrv)
    with pytest.raises(SubscriptionParseFailed, match="ADN at character 11"):
        consumer.subscribe("orders", print, sql="price > 5 ADN region = 'EU'")
    with pytest.raises(UsageError, match="say it in sql"):
        consumer.subscribe("orders", print, tags="a", sql="price > 5")


@pytest.mark.parametrize(("kind", "listener"), [(AsyncConsumer, {"listener": print}), (AsyncPullConsumer, {})])
async def test_the_start_fails_where_brokers_serve_no_expressions(priced, kind, listener):
    channel = await connect(priced.brokers[0].address, Dispatcher(), priced.clock)
    (await channel.call(SaveBrokerSettings(), b"enablePropertyFilter=false", timeout=30)).check()
    await channel.close()
    consumer = kind("workers", priced.namesrv)
    consumer.subscribe("orders", **listener, sql=WANTED)
    with pytest.raises(BrokerError, match="does not support consumer to filter message by SQL92"):
        await consumer.start()
    # Otherwise the other members would leave queues to it.
    assert not any(group.members for group in priced.broker.connections.consumer_groups())
    await consumer.close()
