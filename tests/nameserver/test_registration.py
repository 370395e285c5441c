"""What brokers are answered that register, say goodbye, or ask for their version."""

import asyncio
import zlib

import pytest
from tests.nameserver.conftest import announcement

from pyromq.remoting.bodies import DataVersion, TopicConfig, encode_body
from pyromq.remoting.headers import (
    PutKv,
    QueryDataVersion,
    RegisterBroker,
    RouteOfTopic,
    TopicNames,
    UnregisterBroker,
)

MASTER = {"broker_name": "a", "broker_address": "10.0.0.1:10911", "cluster": "c", "broker_id": 0}


@pytest.mark.parametrize("compressed", [False, True])
async def test_what_a_broker_announces_is_routed(broker, client, compressed):
    topic = TopicConfig(name="t", read_queues=3, write_queues=2, permission=6)
    await broker.register(announcement(topic), compressed=compressed)
    response = await client.ask(RouteOfTopic(topic="t"))
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in response.body  # quoted, which every client reads
    (queues,) = (await client.route("t")).queues
    assert (queues.broker_name, queues.read_queues, queues.write_queues, queues.permission) == ("a", 3, 2, 6)


async def test_a_new_topic_is_routed_at_once(broker, client):
    await broker.register(announcement("t"))
    await client.ask(RouteOfTopic(topic="u"), code=17)
    await broker.register(announcement("t", "u", version=2))
    assert (await client.route("u")).queues[0].broker_name == "a"


@pytest.mark.parametrize("compressed", [False, True])
async def test_an_announcement_damaged_on_the_way_is_refused(broker, client, compressed):
    response = await broker.register(announcement("t"), compressed=compressed, body_crc=1, code=1)
    assert response.remark == "crc32 not match"
    await client.ask(RouteOfTopic(topic="t"), code=17)


async def test_without_a_checksum_nothing_is_compared(broker, client):
    await broker.register(announcement("t"), body_crc=0)
    await client.route("t")


async def test_an_announcement_that_cannot_be_read_is_refused(broker, client):
    await broker.register(announcement("t"))
    for body, compressed in (
        (b"no zlib", True),
        (zlib.compress(b"no table"), True),
        (b"{no json", False),
        (b"[]", False),
    ):
        await broker.ask(RegisterBroker(**MASTER, compressed=compressed), body, code=1)
    assert (await client.route("t")).queues[0].broker_name == "a"


async def test_slaves_are_answered_with_their_masters_addresses(broker):
    master = await broker.register(announcement("t"))
    assert master.fields == {}
    slave = await broker.register(announcement("t"), address="10.0.0.2:10911", broker_id=1)
    assert slave.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


async def test_brokers_are_told_the_order_topics(broker, client):
    assert (await broker.register(announcement("t"))).body == b""
    await client.ask(PutKv(namespace="ORDER_TOPIC_CONFIG", key="t", value="a:4"))
    assert (await broker.register(announcement("t"))).body == b'{"table":{"t":"a:4"}}'


async def test_a_broker_that_says_goodbye_is_gone(broker, client):
    await broker.register(announcement("t"))
    await broker.ask(UnregisterBroker(**MASTER))
    await client.ask(RouteOfTopic(topic="t"), code=17)
    await broker.ask(UnregisterBroker(**MASTER))


async def test_a_broker_may_ask_whether_its_version_is_known(broker):
    version, other = (encode_body(DataVersion(counter=counter, timestamp=1)) for counter in (1, 2))
    response = await broker.ask(QueryDataVersion(**MASTER), version)
    assert (response.fields, response.body) == ({"changed": "true"}, b"")
    await broker.register(announcement("t"))
    response = await broker.ask(QueryDataVersion(**MASTER), version)
    assert response.fields == {"changed": "false"}
    assert b'"counter":1' in response.body
    assert (await broker.ask(QueryDataVersion(**MASTER), other)).fields == {"changed": "true"}
    await broker.ask(QueryDataVersion(**MASTER), b"", code=1)


async def test_a_long_registration_is_taken_in_while_others_are_served(broker, client):
    topics = [f"topic-{number}" for number in range(3_000)]
    await broker.register(announcement(*topics))
    (queues,) = (await client.route("topic-2999")).queues
    assert (queues.broker_name, queues.read_queues) == ("a", 16)
    assert sorted((await client.body(TopicNames())).topics) == sorted(topics)


async def test_of_two_registrations_that_come_together_the_later_one_counts(broker, client):
    old = [TopicConfig(name=f"topic-{number}", read_queues=1) for number in range(3_000)]
    first = asyncio.ensure_future(broker.register(announcement(*old)))
    await asyncio.sleep(0)
    await broker.register(announcement(TopicConfig(name="topic-0", read_queues=2), version=2))
    await first
    (queues,) = (await client.route("topic-0")).queues
    assert queues.read_queues == 2
