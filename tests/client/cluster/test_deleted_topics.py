"""A client that lives long forgets the topics that were deleted."""

from collections.abc import AsyncIterator

import pytest

from pyromq import AsyncAdmin, AsyncProducer, Message
from pyromq.client.cluster.deleted_topics import REFRESHES
from pyromq.errors import MQError
from pyromq.testing import Cluster


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    async with Cluster(auto_create_topic=False) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: Cluster) -> AsyncAdmin:
    return await cluster.admin()


@pytest.fixture
async def producer(cluster: Cluster, admin: AsyncAdmin) -> AsyncProducer:
    await admin.create_topic("orders", queues=2)
    producer = await cluster.producer()
    await producer.send(Message("orders", b"a"))
    return producer


def sizes(producer: AsyncProducer) -> list[int]:
    cluster, outbox = producer._cluster, producer._outbox
    tables = (cluster.routes.known, cluster.routes._first, cluster._fetched, cluster._fetching)
    return [len(table) for table in (*tables, outbox._templates, outbox._selection.turns)]


async def refresh(producer: AsyncProducer, times: int = REFRESHES) -> None:
    for _ in range(times):
        producer._cluster._fetched.clear()  # as if a refresh were long ago
        await producer._cluster.refresh_all()


async def test_a_producer_forgets_deleted_topics(admin: AsyncAdmin, producer: AsyncProducer) -> None:
    await refresh(producer)
    before = sizes(producer)
    for number in range(5):
        await admin.create_topic(f"t{number}", queues=2)
        await producer.send(Message(f"t{number}", b"a"))
        await admin.delete_topic(f"t{number}")
    await refresh(producer, REFRESHES - 1)
    assert sizes(producer) > before
    await refresh(producer, 1)
    assert sizes(producer) == before


async def test_a_topic_that_is_created_again_in_time_stays(admin: AsyncAdmin, producer: AsyncProducer) -> None:
    await admin.delete_topic("orders")
    await refresh(producer, REFRESHES - 1)
    await admin.create_topic("orders", queues=2)
    await refresh(producer, 1)
    await admin.delete_topic("orders")
    await refresh(producer, REFRESHES - 1)
    assert producer._cluster.routes.find("orders") is not None


async def test_routes_stay_while_the_brokers_have_lost_the_name_servers(
    cluster: Cluster, producer: AsyncProducer
) -> None:
    assert cluster.name_server.routes.expire(float("inf")) == [cluster.broker.address]
    await refresh(producer)
    await producer.send(Message("orders", b"b"))
    assert producer._cluster.routes.find("orders") is not None


async def test_a_name_that_no_topic_has_leaves_nothing(producer: AsyncProducer) -> None:
    await refresh(producer)
    before = sizes(producer)
    for number in range(5):
        with pytest.raises(MQError):
            await producer.queues(f"none{number}")
    await refresh(producer, 1)
    assert sizes(producer) == before
