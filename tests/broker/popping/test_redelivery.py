"""Redelivery of popped messages when a step of it fails, or ends late."""

import asyncio
import errno
from dataclasses import replace

import pytest
from tests.broker.headers import send_header
from tests.broker.popping.poppers import Popper, bodies
from tests.broker.popping.test_pop_processor import after, send

from pyromq.broker.broker import Broker
from pyromq.errors import LimitReached
from pyromq.names import pop_retry_topic
from pyromq.record import MAX_PROPERTIES_SIZE
from pyromq.remoting.bodies import GroupConfig
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


async def test_a_dead_letter_with_long_properties_leaves_its_own_properties_out(broker, orders, popper, clock):
    broker.groups.put(GroupConfig(name="g", retry_max_times=0))
    long = "K\x01" + "x" * (MAX_PROPERTIES_SIZE - 60)
    await orders.send("orders", b"a", properties=long)
    await popper.pop(invisible_ms=1_000)
    await after(clock, 1)
    (dead,) = await orders.messages("%DLQ%g")
    assert (dead.body, dead.properties["K"]) == (b"a", long[2:])


async def test_a_message_whose_copy_is_refused_delays_no_others(config, clock, caller_to):
    config.limits = type(config.limits)(groups=10)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await send(caller, "a", "b")
        first, second = [Popper(await caller_to(broker), clock, group) for group in ("first", "second")]
        broker.topics.for_group_retry(pop_retry_topic("second", "orders"), 1)
        full = fill_topics(broker)
        await first.pop(1, invisible_ms=1_000)
        await second.pop(2, invisible_ms=2_000)
        await after(clock, 2)
        assert bodies(await second.pop()) == [b"a", b"b"]
        for name in full:
            broker.topics.delete(name)
        await after(clock, 31)
        assert bodies(await first.pop()) == [b"a", b"b"]


def fill_topics(broker):
    """Create topics of groups up to the limit; return their names."""
    names = []
    while True:
        try:
            names.append(broker.topics.for_group_retry(f"%RETRY%other{len(names)}", 1).name)
        except LimitReached:
            return names


async def test_a_full_disk_copies_no_message_of_a_pop_again(config, clock, caller_to):
    disk = SimulatedDisk()
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await caller.create_topic("others")
        second_segment = f"{1 << 20:020d}"
        disk.refuse = lambda kind, path: errno.ENOSPC if path.name == second_segment else None
        for _ in range(4):
            await caller.send("others", bytes(200_000))
        await send(caller, "a", "b" * 150_000)
        popper = Popper(caller, clock)
        assert len(await popper.pop(invisible_ms=1_000)) == 2
        for _ in range(10):
            await after(clock, 1)
        assert broker.store.next_offset(pop_retry_topic("g", "orders"), 0) == 1
        disk.refuse = lambda kind, path: None
        await after(clock, 1)
        assert [body[:1] for body in bodies(await popper.pop())] == [b"a", b"b"]


async def test_a_damaged_retry_holds_up_no_others(broker, orders, popper, clock):
    await send(orders, "a", "b")
    await popper.pop(invisible_ms=1_000)
    await after(clock, 1)
    record = broker.store.message(pop_retry_topic("g", "orders"), 0, 0)
    at = record.log_offset + 4  # the record's magic
    broker.store._log.memory[at : at + 4] = bytes(4)
    received = [each for _ in range(5) for each in await popper.pop()]
    assert bodies(received) == [b"b"]


@pytest.mark.parametrize("at", [0, 27])  # the record's size, and its queue offset
async def test_a_damaged_head_of_a_record_is_an_error_of_its_queue_only(broker, orders, popper, at):
    for tag in ("red", "blue", "red"):
        await send(orders, tag, properties=f"TAGS\x01{tag}")
    await send(orders, "other", queue_id=1, properties="TAGS\x01red")
    begin = broker.store.message("orders", 0, 0).log_offset + at
    broker.store._log.memory[begin : begin + 4] = bytes([0x7F * (at > 0), 0, 0, 0])
    remarks, received = [], []
    for _ in range(4):
        response = await popper.pop_soon(expression="red", order=True, poll_ms=0)
        remarks.append(response.remark)
        received += popper.received(response) if response.code == 0 else []
    assert bodies(received) == [b"other"]
    assert any("queue 0 of topic orders" in remark for remark in remarks)
