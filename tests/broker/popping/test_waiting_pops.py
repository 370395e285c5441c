"""Pops that wait: which events resume them."""

import asyncio

from tests.broker.consuming.test_unconfirmed_messages import confirm, store
from tests.broker.popping.poppers import Popper, bodies
from tests.broker.popping.test_pop_processor import after, send

from pyromq.broker.confirmation import ReplicaRule
from pyromq.message import StoredMessage


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
