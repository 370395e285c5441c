"""Brokers and name servers that die, restart, or say no: clients find their way without help."""

import asyncio

import pytest

from pyromq.client.client_config import ConsumerConfig, ProducerConfig
from pyromq.errors import TopicNotFound, Unavailable
from pyromq.message import Message
from pyromq.nameserver.name_server import NameServer


async def two_broker_topic(pair, **options):
    admin = await pair.admin()
    await admin.create_topic("orders", queues=2, **options)


async def test_a_dead_brokers_messages_go_to_another(pair):
    await two_broker_topic(pair)
    producer = await pair.producer()
    await asyncio.gather(*(producer.send(Message("orders", b"1")) for _ in range(4)))
    await pair.kill_broker(0)
    results = [await producer.send(Message("orders", b"2")) for _ in range(4)]
    assert {r.queue.broker_name for r in results} == {"broker-b"}


async def test_sends_wait_for_a_broker_that_restarts(cluster):
    producer = await cluster.producer(config=ProducerConfig(timeout=10))
    await producer.send(Message("orders", b"1"))
    await cluster.kill_broker()
    waiting = [producer.send_soon(Message("orders", b"%d" % n), ordering_key="k") for n in range(3)]
    waiting.append(asyncio.ensure_future(producer.send(Message("orders", b"2"))))
    await asyncio.sleep(0.05)  # the first attempts fail
    await cluster.start_broker()
    results = await asyncio.gather(*waiting)
    assert len({r.queue for r in results[:3]}) == 1


async def test_sends_fail_at_their_timeout_when_the_broker_stays_away(cluster):
    producer = await cluster.producer()
    await producer.send(Message("orders", b"1"))
    await cluster.kill_broker()
    with pytest.raises(
        Unavailable, match=f"no broker took the message to topic 'orders' in time: {cluster.broker.address}"
    ):
        await producer.send(Message("orders", b"1"), timeout=0.2)
    assert producer.in_flight == 0


async def test_a_refusal_that_may_be_local_is_retried_at_another_broker(pair):
    await two_broker_topic(pair)
    producer = await pair.producer()
    await producer.queues("orders")
    pair.brokers[0].topics.delete("orders")
    results = [await producer.send(Message("orders", b"1")) for _ in range(4)]
    assert {r.queue.broker_name for r in results} == {"broker-b"}


async def test_a_refusal_is_not_retried_where_the_caller_chose_or_sends_soon(pair):
    await two_broker_topic(pair)
    producer = await pair.producer()
    queues = await producer.queues("orders")
    pair.brokers[0].topics.delete("orders")
    with pytest.raises(TopicNotFound, match="apply first"):
        await producer.send(Message("orders", b"1"), queue=queues[0])
    results = await asyncio.gather(
        *(producer.send_soon(Message("orders", b"1")) for _ in queues), return_exceptions=True
    )
    assert sum(isinstance(result, TopicNotFound) for result in results) == 2


async def test_a_refused_batch_is_retried_at_another_broker(pair):
    await two_broker_topic(pair)
    producer = await pair.producer()
    await producer.queues("orders")
    pair.brokers[0].topics.delete("orders")
    results = [await producer.send_batch([Message("orders", b"1")]) for _ in range(4)]
    assert {r.queue.broker_name for r in results} == {"broker-b"}


async def test_pulling_goes_on_when_the_broker_is_back(cluster):
    producer = await cluster.producer(config=ProducerConfig(timeout=10))
    await producer.send(Message("orders", b"1"), ordering_key="k")
    consumer = await cluster.consumer(config=ConsumerConfig(retry_seconds=0.05))
    await consumer.assign(await consumer.queues("orders"))
    assert [m.body for m in await consumer.poll(5)] == [b"1"]
    await cluster.kill_broker()
    await cluster.start_broker()
    await producer.send(Message("orders", b"2"), ordering_key="k")
    assert [m.body for m in await consumer.poll(5)] == [b"2"]


async def test_a_restarted_broker_hears_at_once_who_is_there(cluster):
    consumer = await cluster.consumer("readers")
    admin = await cluster.admin()
    await admin.create_topic("orders")
    await consumer.assign(await consumer.queues("orders"))
    await cluster.restart_broker()
    await consumer.committed(consumer.assignment[0])
    assert (await admin.consumer_connection("readers")).connections


async def test_known_routes_outlast_the_name_server(cluster):
    producer = await cluster.producer()
    await producer.send(Message("orders", b"1"))
    await cluster.name_server.__aexit__(None, None, None)
    await producer.send(Message("orders", b"2"))
    async with NameServer(cluster.name_server.config, cluster.clock):
        await producer.send(Message("orders", b"3"))


async def test_slow_brokers_are_avoided_when_wanted(pair):
    await two_broker_topic(pair)
    producer = await pair.producer(config=ProducerConfig(avoid_slow_brokers=True))
    await asyncio.gather(*(producer.send(Message("orders", b"1")) for _ in range(4)))
    await pair.kill_broker(0)
    for _ in range(4):  # one of them meets the dead broker
        await producer.send(Message("orders", b"2"))
    await pair.start_broker(0)
    results = [await producer.send(Message("orders", b"3")) for _ in range(8)]
    assert {r.queue.broker_name for r in results} == {"broker-b"}
