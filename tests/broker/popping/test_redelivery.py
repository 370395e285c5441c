"""Redelivery of popped messages when a step of it fails, or ends late."""

import asyncio
from dataclasses import replace

from tests.broker.headers import send_header
from tests.broker.popping.poppers import Popper, bodies
from tests.broker.popping.test_pop_processor import after, send

from pyromq.broker.broker import Broker
from pyromq.store.store_config import FlushMode
from pyromq.testing import SimulatedDisk


async def flushed(broker, caller, header, body=b""):
    response = caller.channel.call_soon(header, body, timeout=30)
    while not response.done():
        broker.store.flush_due()
        await asyncio.sleep(0)
    assert (await response).code == 0


async def test_a_copy_that_is_flushed_by_a_stop_changes_no_closed_journal(config, clock, caller_to):
    config = replace(config, store=replace(config.store, flush=FlushMode.SYNC))
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        for body in (b"a", b"b"):
            await flushed(broker, caller, send_header(topic="orders"), body)
        popper = Popper(caller, clock)
        await popper.pop(1, invisible_ms=1_000)
        await popper.pop(1, invisible_ms=60_000)
        await after(clock, 1)  # a is copied, and the copy waits for its flush
    for _ in range(20):
        await asyncio.sleep(0)
    async with Broker(config, clock, disk=disk) as broker:
        await after(clock, 0)
        assert b"b" not in bodies(await Popper(await caller_to(broker), clock).pop())
