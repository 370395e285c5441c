"""Consumers read from the replica that the master suggests, and go back to the master when it is gone or behind."""

from dataclasses import replace

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import ConfiguredRole
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.clock import SystemClock
from pyromq.message import Message, MessageQueue
from pyromq.remoting.bodies import GroupConfig
from pyromq.testing import Cluster

TOPIC = "orders"
QUEUE = MessageQueue(TOPIC, "broker-a", 0)
ONE_BY_ONE = ConsumerConfig(consume_from=ConsumeFrom.FIRST, pull_count=1, buffered_messages=1, long_poll_seconds=0.1)


@pytest.fixture
async def cluster():
    """A master that refers the group to the slave with id 1."""
    async with Cluster(clock=SystemClock(), default_topic_queues=1, slave_read=True) as cluster:
        await send(cluster, b"master", 4)
        cluster.brokers[0].groups.put(GroupConfig(name="workers", broker_id=1))
        yield cluster


@pytest.fixture
async def replica(cluster, tmp_path):
    """A broker of the same name with another id; its messages tell that they come from it."""
    async with Cluster(data=tmp_path, default_topic_queues=1) as elsewhere:
        await send(elsewhere, b"replica", 3)
        elsewhere.broker.groups.put(GroupConfig(name="workers"))
        role = {"role": ConfiguredRole.SLAVE, "broker_id": 1}
        config = replace(elsewhere.broker.config, port=0, namesrv=(cluster.namesrv,), **role)
    async with Broker(config, SystemClock()) as replica:
        yield replica


async def send(cluster, body, count):
    producer = await cluster.producer()
    for _ in range(count):
        await producer.send(Message(TOPIC, body), queue=QUEUE)


async def test_a_push_consumer_pulls_where_it_is_told_and_returns_to_the_master(cluster, replica):
    bodies = []

    async def take(messages):
        bodies.extend(message.body for message in messages)
        if len(bodies) == 4:
            consumer.stop()

    consumer = AsyncConsumer("workers", cluster.namesrv, config=ONE_BY_ONE)
    consumer.subscribe(TOPIC, take)
    async with consumer:
        await consumer.wait()
    # The replica sends its readers back, and has no fourth message.
    assert bodies == [b"master", b"replica", b"master", b"master"]


async def test_a_pull_consumer_does_so_too(cluster, replica):
    async with AsyncPullConsumer("workers", cluster.namesrv, config=ONE_BY_ONE) as consumer:
        await consumer.assign([QUEUE])
        bodies = []
        async for message in consumer:
            bodies.append(message.body)
            if len(bodies) == 4:
                break
    assert bodies == [b"master", b"replica", b"master", b"master"]


async def test_without_the_replica_the_master_is_read(cluster):
    async with AsyncPullConsumer("workers", cluster.namesrv, config=ONE_BY_ONE) as consumer:
        await consumer.assign([QUEUE])
        bodies = [(await consumer.poll())[0].body for _ in range(4)]
    assert bodies == [b"master"] * 4
