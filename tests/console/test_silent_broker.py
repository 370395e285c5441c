"""A broker that hangs: pages answer from the others, say since when, and show all again when the broker is back."""

import asyncio
import re

import pytest
from tests.console.conftest import browsing

from pyromq import Message
from pyromq.console.console_config import ConsoleConfig
from pyromq.net import server_probes, silent_servers
from pyromq.testing import Cluster

PAGES = ("/", "/topics", "/topics/orders", "/messages?topic=orders", "/messages?q=k1", "/groups", "/groups/billing")
MORE = ("/dead-letters", "/delayed", "/delayed-levels/3", "/transactions", "/brokers", "/brokers/broker-b")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    for name, seconds in (("SUSPECT_SECONDS", 0.02), ("LIFE_SECONDS", 0.5)):
        monkeypatch.setattr(silent_servers, name, seconds)
    monkeypatch.setattr(server_probes, "CHECK_SECONDS", 0.01)


async def trade(cluster):
    """Fill one queue of each broker; leave group `billing` behind at both."""
    admin, producer = await cluster.admin(), await cluster.producer()
    await admin.create_topic("orders", 1)
    for number in range(4):
        await producer.send(Message("orders", b"x", keys=f"k{number}"))
    for status in await admin.topic_status("orders"):
        await admin.commit_offset("billing", status.queue, 0)


async def test_pages_answer_from_the_other_brokers_and_say_since_when(tmp_path):
    async with Cluster(2, linked=True) as cluster:
        await trade(cluster)
        config = ConsoleConfig(cluster.namesrv, tmp_path / "console", snapshot_seconds=0.001)
        async with browsing(config) as browser:
            assert "does not answer" not in await browser.get("/topics")
            cluster.links[1].pause()
            async with asyncio.timeout(20):  # each of the requests has 5 s
                await browser.get("/topics")
                for path in PAGES + MORE:
                    page = await browser.get(path)
                    assert re.search(r"does not answer(</b>)? since (<time [^>]+>)?20\d\d-", page), path
                assert re.search("k[0-3]</a>", await browser.get("/messages?topic=orders"))
            cluster.links[1].resume()
            async with asyncio.timeout(20):
                while "does not answer" in await browser.get("/topics"):
                    await asyncio.sleep(0.01)


async def test_sums_keep_what_a_silent_broker_has_said_and_members_that_only_it_knows(tmp_path):
    async with Cluster(2, linked=True) as cluster:
        await trade(cluster)
        admin = await cluster.admin()
        await admin.create_topic("parcels", 2, broker="broker-b")
        await (await cluster.producer()).send(Message("parcels", b"x"))
        consumer = await cluster.consumer("post")
        consumer.subscribe("parcels")
        await consumer.poll()
        await consumer.commit()
        config = ConsoleConfig(cluster.namesrv, tmp_path / "console", snapshot_seconds=0.001)
        async with browsing(config) as browser:
            clients = browser.console.clients_of(None)
            async with asyncio.timeout(20):
                while not (before := await clients.snapshot(fresh=True)).groups["post"].members:
                    await asyncio.sleep(0.01)
            cluster.links[1].pause()
            async with asyncio.timeout(20):
                while not (after := await clients.snapshot(fresh=True)).silent:
                    await asyncio.sleep(0.01)
            assert after.topics["orders"].messages == before.topics["orders"].messages == 4
            assert after.groups["billing"].lag == before.groups["billing"].lag == 4
            assert after.topics["parcels"].read_queues == 2
            assert after.groups["post"].members == before.groups["post"].members
            assert "sums have its earlier figures" in await browser.get("/topics")
            assert await browser.get("/brokers/broker-b")
        cluster.links[1].resume()


async def test_a_broker_that_was_never_seen_leaves_no_sum(tmp_path):
    async with Cluster(2, linked=True) as cluster:
        await trade(cluster)
        cluster.links[1].pause()
        config = ConsoleConfig(cluster.namesrv, tmp_path / "console", snapshot_seconds=0.001)
        async with browsing(config) as browser, asyncio.timeout(20):
            snapshot = await browser.console.clients_of(None).snapshot(fresh=True)
            assert snapshot.has_gaps and "so its messages are missing here" in await browser.get("/topics")
        cluster.links[1].resume()


async def test_without_name_servers_pages_answer_from_the_brokers_known_before(tmp_path):
    async with Cluster(2) as cluster:
        await trade(cluster)
        config = ConsoleConfig(cluster.namesrv, tmp_path / "console", snapshot_seconds=0.001)
        async with browsing(config) as browser:
            assert "No name server answers" not in await browser.get("/topics")
            await cluster.name_server.__aexit__(None, None, None)
            for path in PAGES + MORE:
                page = await browser.get(path)
                assert re.search(r"No name server answers( at [^ ]+)?(</b>)? since (<time [^>]+>)?20\d\d-", page), path
            assert "4 messages" in await browser.get("/")
            assert len(set(re.findall("k[0-3]</a>", await browser.get("/messages?topic=orders")))) == 4
            assert "orders is created" not in await browser.post("/new-topic", name="orders2", queues="1")
