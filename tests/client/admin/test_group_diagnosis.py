"""Groups whose members differ, found by the diagnosis of a topic."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from pyromq.client.admin.diagnosis import diagnose
from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.testing import Cluster

ALIKE = {
    "one member": [{"orders": "a"}],
    "the same": [{"orders": "a"}, {"orders": "a"}],
    "the same tags in another order": [{"orders": "a || b"}, {"orders": "b||a"}],
    "the same two topics": [{"orders": "*", "parcels": "x"}, {"parcels": "x", "orders": "*"}],
}
DIFFERENT = {
    "other tags": ([{"orders": "a"}, {"orders": "b"}], 'orders: "a" by'),
    "some tags and all": ([{"orders": "a"}, {"orders": "*"}], 'orders: "*" by'),
    "more tags": ([{"orders": "a"}, {"orders": "a || b"}], '"a || b" by'),
    "SQL and tags": ([{"orders": "a"}, {"orders": "sql:n > 1"}], '"n > 1" by'),
    "other SQL": ([{"orders": "sql:n > 2"}, {"orders": "sql:n > 1"}], '"n > 2" by'),
    "another topic": ([{"orders": "*"}, {"parcels": "*"}], '"*" by'),
    "a further topic": ([{"orders": "*"}, {"orders": "*", "parcels": "*"}], "parcels:"),
    "other tags of a further topic": ([{"orders": "*", "parcels": "x"}, {"orders": "*", "parcels": "y"}], '"y" by'),
    "one of three": ([{"orders": "a"}, {"orders": "a"}, {"orders": "b"}], 'orders: "a" by'),
    "each of three": ([{"orders": "a"}, {"orders": "b"}, {"orders": "c"}], '"c" by'),
}


@asynccontextmanager
async def members(cluster, subscribed, settings=({},)):
    """Run a member of group `billing` for each entry; its topics have a filter each."""
    async with AsyncExitStack() as stack:
        for number, subscriptions in enumerate(subscribed):
            config = ConsumerConfig(**settings[number % len(settings)])
            consumer = AsyncConsumer("billing", cluster.namesrv, config=config)
            for topic, wanted in subscriptions.items():
                chosen = {"sql": wanted[4:]} if wanted.startswith("sql:") else {"tags": wanted}
                consumer.subscribe(topic, lambda _: None, **chosen)
            await stack.enter_async_context(consumer)
        admin = await cluster.admin()
        await until_async(admin, len(subscribed))
        yield


async def until_async(admin, count):
    async with asyncio.timeout(30):
        while len((await admin.group_state("billing")).members) < count:
            await asyncio.sleep(0.002)


async def found(cluster, topic="orders"):
    return [each for each in await diagnose(cluster.namesrv, topic) if each.name == "group billing"]


@pytest.fixture
async def topics(cluster):
    admin = await cluster.admin()
    for topic in ("orders", "parcels"):
        await admin.create_topic(topic, 2)


@pytest.mark.parametrize("subscribed", ALIKE.values(), ids=ALIKE)
async def test_members_alike_are_no_finding(cluster, topics, subscribed):
    async with members(cluster, subscribed):
        assert await found(cluster) == []


@pytest.mark.parametrize(("subscribed", "text"), DIFFERENT.values(), ids=DIFFERENT)
async def test_members_that_subscribe_differently_are_told_with_what_each_wants(cluster, topics, subscribed, text):
    async with members(cluster, subscribed):
        [finding] = await found(cluster)
        assert not finding.ok
        assert finding.text.startswith("members subscribe differently and miss messages: ") and text in finding.text
        assert "a group of their own" in finding.advice


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        (({"broadcast": True}, {}), ("get all messages (broadcast)", "share the messages")),
        (({"orderly": True}, {}), ("1 consume in order", "1 consume concurrently")),
    ],
)
async def test_members_of_different_modes_are_told(cluster, topics, settings, texts):
    async with members(cluster, [{"orders": "*"}, {"orders": "*"}], settings):
        [finding] = await found(cluster)
        assert finding.text.startswith("members consume in different modes: ")
        assert all(text in finding.text for text in texts)


async def test_a_group_is_told_that_differs_at_one_broker_only():
    async with Cluster(2) as cluster:
        admin = await cluster.admin()
        await admin.create_topic("orders", 1)
        await admin.create_topic("parcels", 1, broker="broker-b")
        async with members(cluster, [{"orders": "*"}, {"parcels": "*"}]):
            assert len(await found(cluster)) == len(await found(cluster, "parcels")) == 1
