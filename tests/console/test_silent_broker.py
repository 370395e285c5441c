"""A broker that hangs: pages answer from the others, say since when, and show all again when the broker is back."""

import asyncio
import re

from tests.console.conftest import browsing

from pyromq import Message
from pyromq.console.console_config import ConsoleConfig
from pyromq.net import silent_servers
from pyromq.testing import Cluster

PAGES = ("/", "/topics", "/topics/orders", "/messages?topic=orders", "/messages?q=k1", "/groups", "/groups/billing")
MORE = ("/dead-letters", "/delayed", "/delayed-levels/3", "/transactions", "/brokers", "/brokers/broker-b")


async def test_pages_answer_from_the_other_brokers_and_say_since_when(tmp_path, monkeypatch):
    for name, seconds in (("SUSPECT_SECONDS", 0.02), ("LIFE_SECONDS", 0.5), ("LOOK_SECONDS", 0.01)):
        monkeypatch.setattr(silent_servers, name, seconds)
    async with Cluster(2, linked=True) as cluster:
        admin, producer = await cluster.admin(), await cluster.producer()
        await admin.create_topic("orders", 1)
        for number in range(4):
            await producer.send(Message("orders", b"x", keys=f"k{number}"))
        for status in await admin.topic_status("orders"):
            await admin.commit_offset("billing", status.queue, 0)
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
