"""Connections to former masters are closed soon; those to a master that was doubted for a moment are not."""

import asyncio

import pytest
from tests.client.replica_set import NAME, replica_set
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.cluster import replica_set_watch
from pyromq.client.cluster.cluster_client import REFRESH_PAUSE
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.message import Message


@pytest.fixture
async def replicas(tmp_path, monkeypatch):
    monkeypatch.setattr(replica_set_watch, "FORMER_SECONDS", 0.1)
    async with replica_set(tmp_path) as replicas:
        yield replicas


@pytest.fixture
async def masters(replicas):
    """Two brokers, the first of them registered as the master."""
    addresses = [await replicas.start(), await replicas.start()]
    await replicas.register(addresses[0], epoch=1)
    return addresses


async def test_the_connection_to_a_former_master_is_closed_soon(replicas, masters):
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        channel = producer._cluster.open_channel(masters[0])
        await replicas.register(masters[1], epoch=2)
        await producer._cluster.refresh("orders")
        assert not channel.closed
        await until(lambda: channel.closed)


async def test_the_connection_to_a_silent_former_master_is_closed_at_once(replicas, monkeypatch):
    monkeypatch.setattr(replica_set_watch, "FORMER_SECONDS", 60.0)
    monkeypatch.setattr(replica_set_watch, "SILENT_SECONDS", 0.01)
    old, new = await replicas.start(linked=True), await replicas.start()
    await replicas.register(old, epoch=1)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        replicas.links[0].requests.pause()
        sending = producer.send_soon(Message("orders", b"2"))
        await until(lambda: producer._cluster._set_watch._is_silent(old))
        await replicas.register(new, epoch=2)
        await producer._cluster._set_watch.look()
        await asyncio.wait_for(sending, PATIENCE_SECONDS)
    assert replicas.stored(1) == [b"2"]


async def test_a_silent_master_costs_one_route_and_not_one_of_each_topic(replicas, monkeypatch):
    monkeypatch.setattr(replica_set_watch, "SILENT_SECONDS", 0.01)
    monkeypatch.setattr(replica_set_watch, "WATCH_SECONDS", 60.0)
    master = await replicas.start(linked=True)
    await replicas.register(master, epoch=1)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        cluster, watch = producer._cluster, producer._cluster._set_watch
        for topic in ("orders", "bills", "letters"):
            await producer.send(Message(topic, b"1"))
            await cluster.refresh(topic)
        replicas.links[0].requests.pause()
        sending = producer.send_soon(Message("orders", b"2"))
        before = dict(cluster._fetched)
        await until(
            lambda: watch._is_silent(master) and all(cluster.route_age(each) > REFRESH_PAUSE for each in before)
        )
        await watch.look()
        assert len(cluster._fetched.items() - before.items()) == 1
        replicas.links[0].requests.resume()
        await sending


async def test_the_connection_to_a_master_that_two_replicas_argued_about_stays(replicas, masters):
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        channel = producer._cluster.open_channel(masters[0])
        for named in (masters[1], masters[0]):
            producer._cluster.routes.redirect(NAME, named)
        await asyncio.sleep(0.3)
        assert not channel.closed


async def test_a_new_master_hears_of_the_producer_at_once(replicas, masters):
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        await replicas.register(masters[1], epoch=2)
        await producer._cluster.refresh("orders")
        await until(lambda: producer._cluster.open_channel(masters[1]) is not None)


async def test_routes_of_plain_brokers_are_not_asked_for_more_often(replicas, monkeypatch):
    monkeypatch.setattr(replica_set_watch, "REFRESH_SECONDS", 0.0)
    await replicas.register(await replicas.start(), epoch=None)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        await producer._cluster._set_watch.look()
        assert producer._cluster.route_age("orders") == float("inf")
    await replicas.register(replicas.brokers[0].address, epoch=1)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        await producer._cluster._set_watch.look()
        assert producer._cluster.route_age("orders") < 60
