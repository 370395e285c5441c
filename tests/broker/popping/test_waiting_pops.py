"""Pops that wait: which events resume them."""

import asyncio

import pytest
from tests.broker.consuming.test_unconfirmed_messages import confirm, store
from tests.broker.popping.poppers import Popper, bodies
from tests.broker.popping.test_pop_processor import after, send

from pyromq.broker.confirmation import ReplicaRule
from pyromq.broker.popping.pop_processor import PopProcessor
from pyromq.message import StoredMessage
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.remoting_session import RemotingSession


async def test_a_message_that_comes_while_pops_are_resumed_resumes_another_pop(broker, orders, caller_to, clock):
    first, second = [Popper(await caller_to(broker), clock) for _ in range(2)]
    broker.store.bound_reads()
    broker.confirmation.require_replicas(ReplicaRule(holds_all=True))
    waiting = [first.pop_soon(1), second.pop_soon(1)]
    await after(clock, 0)
    assert await first.waiting() == 2
    await store(orders, b"a")
    confirm(broker)
    broker._state.put_message.put(StoredMessage("orders", b"b", ""))  # in the same turn of the event loop
    assert bodies(first.received(await waiting[0])) == [b"a"]
    await after(clock, 0)
    assert not waiting[1].done()
    confirm(broker)
    async with asyncio.timeout(1):
        assert bodies(second.received(await waiting[1])) == [b"b"]
    broker.confirmation.require_replicas(None)


async def test_a_pop_that_waits_for_another_queue_is_resumed(broker, orders, caller_to, clock):
    first, second = [Popper(await caller_to(broker), clock) for _ in range(2)]
    waiting = first.pop_soon(queue_id=0), second.pop_soon(queue_id=1)
    await after(clock, 0)
    await send(orders, "a", queue_id=1)
    async with asyncio.timeout(1):
        assert bodies(second.received(await waiting[1])) == [b"a"]
    await send(orders, "b")
    async with asyncio.timeout(1):
        assert bodies(first.received(await waiting[0])) == [b"b"]


async def test_the_last_acknowledgement_of_an_orderly_pop_resumes_a_waiting_pop(
    broker, orders, popper, caller_to, clock
):
    await send(orders, *"abc")
    received = await popper.pop(2, order=True)
    other = Popper(await caller_to(broker), clock)
    waiting = other.pop_soon(order=True)
    await after(clock, 0)
    await popper.ack(*received)
    async with asyncio.timeout(1):
        assert bodies(other.received(await waiting)) == [b"c"]


async def test_a_slow_pop_whose_connection_has_closed_neither_waits_nor_takes_messages(broker, orders, popper):
    for _ in range(6):
        await send(orders, *["a"] * 300, properties="TAGS\x01red")
    answerers = [each for module in broker._modules for each in module.answerers]
    (processor,) = [each for each in answerers if isinstance(each, PopProcessor)]
    session = RemotingSession(broker.dispatcher, broker._clock, address=("127.0.0.1", 1), wake=print, run_soon=print)
    header = popper.header(expression="blue", poll_ms=10_000)
    popping = processor.pop(header, Call(int(header.code), header=header, peer=session))
    assert asyncio.iscoroutine(popping)
    popping.send(None)
    session.close("killed")
    await send(orders, "b", properties="TAGS\x01blue")
    with pytest.raises(StopIteration) as ended:
        while True:
            popping.send(None)
    assert isinstance(ended.value.value, Reply)
    assert (await popper.waiting(), broker.pops.in_flight.count) == (0, 0)
