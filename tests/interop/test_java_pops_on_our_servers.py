"""The genuine client 5.3.3 pops at our servers, which assign its queues, hand out messages and take them back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.interop.peers.clients import JavaClient, contents, received
from tests.interop.peers.java import Driver
from tests.interop.peers.samples import samples
from tests.interop.peers.servers import OurServers

from pyromq import Admin
from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.remoting.bodies import MessageRequestMode, encode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import SetMessageRequestMode

pytestmark = pytest.mark.interop

SECONDS = 30


async def let_pop(address: str, topic: str, group: str) -> None:
    channel = await connect(address, Dispatcher(), SystemClock())
    body = encode_body(MessageRequestMode(topic=topic, group=group, mode="POP"))
    (await channel.call(SetMessageRequestMode(), body, timeout=10)).check()
    await channel.close()


@pytest.mark.interop_short
def test_javas_consumer_pops_every_message_once_and_acknowledges_it(home: Path, ours: OurServers, topic: str) -> None:
    java = JavaClient(Driver(home, ours.namesrv, major=5))
    java.send("async", samples(topic))
    group = f"pop-{topic}"
    asyncio.run(let_pop(ours.broker, topic, group))

    arrived = received(java.driver.run("push-pop", topic, group, "*", len(samples(topic)), SECONDS))

    assert contents(arrived) == contents(samples(topic))
    with Admin(ours.namesrv) as admin:
        assert all(queue.lag == 0 for queue in admin.group_progress(group))
