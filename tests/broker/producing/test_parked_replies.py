"""Replies to plain sends under SYNC_FLUSH, which compiled parts store and park: the same with and without those."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import threading
from dataclasses import replace

import pytest
from tests.broker.headers import send_header
from tests.waiting import until

from pyromq import speedups
from pyromq.broker.broker import Broker
from pyromq.broker.confirmation import MAX_UNCONFIRMED
from pyromq.errors import StoreNotWritable
from pyromq.remoting.codes import ONE_WAY
from pyromq.remoting.command import BINARY, JSON
from pyromq.remoting.headers import MaxOffset
from pyromq.store.store_config import FlushMode
from pyromq.testing import SimulatedDisk

from .plain_peer import FENCE, connecting


@pytest.fixture
def disk():
    return SimulatedDisk()


@pytest.fixture
async def broker(config, clock, caller_to, disk):
    """A broker that flushes when it is told to; its topic has a message, so compiled parts store further ones."""
    config = replace(config, store=replace(config.store, flush=FlushMode.SYNC))
    broker = Broker(config, clock, disk=disk)
    try:
        await broker.__aenter__()
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        first = caller.channel.call_soon(send_header(), b"x", timeout=30)
        await caller.ask(MaxOffset(topic="orders", queue_id=0))
        broker.store.flush_due()
        await first
        yield broker
    finally:
        has_failed = not broker.store.flush_due()
        with pytest.raises(StoreNotWritable) if has_failed else contextlib.nullcontext():
            await broker.__aexit__()


@pytest.fixture
async def connect(broker):
    async with connecting(broker) as connect:
        yield connect


def stored(broker):
    return broker.store.max_offset("orders", 0)


@contextlib.asynccontextmanager
async def running_flush(broker, disk):
    """A flush whose disk has taken its bytes, and ends when this is left."""
    has_begun, may_end = threading.Event(), threading.Event()

    def hold(path):
        has_begun.set()
        may_end.wait(30)

    disk.while_syncing = hold
    flush = asyncio.ensure_future(asyncio.to_thread(broker.store.flush_due))
    await asyncio.to_thread(has_begun.wait, 30)
    try:
        yield
    finally:
        disk.while_syncing = lambda path: None
        may_end.set()
        await flush


# Compiled parts take a plain send; one to a delay level goes the plain way.
WAYS = {"compiled": "", "plain": "DELAY\x013"}


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_replies_leave_after_the_flush_in_order_of_the_log(broker, connect, serialization):
    one, other = await connect(serialization), await connect(serialization)
    one.send(1, 2, 3)
    assert await one.seen() == {}
    other.send(1)
    assert await other.seen() == {}
    if speedups.is_active:
        assert len(broker._state.confirmation.parked) == 4
    broker.store.flush_due()
    assert [(await one.reply(opaque)).fields["queueOffset"] for opaque in (1, 2, 3)] == ["1", "2", "3"]
    assert list(one.replies) == [FENCE + 1, 1, 2, 3]
    assert (await other.reply(1)).fields["queueOffset"] == "4"
    assert len(broker._state.confirmation) == 0


async def test_a_flush_confirms_no_later_record(broker, connect):
    peer = await connect()
    peer.send(1)
    await peer.seen()
    broker.store.flush_due()
    peer.send(2)
    assert set(await peer.seen()) == {1}
    broker.store.flush_due()
    assert (await peer.reply(2)).code == 0


@pytest.mark.parametrize("properties", WAYS.values(), ids=WAYS)
async def test_a_running_flush_confirms_no_record_that_came_after_it_began(broker, connect, disk, properties):
    peer, late = await connect(), await connect()
    peer.send(1, properties=properties)
    await peer.seen()
    async with running_flush(broker, disk):
        late.send(2, properties=properties)
        assert await late.seen() == {}
    assert (await peer.reply(1)).code == 0
    assert await late.seen() == {}
    broker.store.flush_due()
    assert (await late.reply(2)).code == 0


@pytest.mark.parametrize("properties", WAYS.values(), ids=WAYS)
async def test_a_slow_disk_that_goes_on_confirming_refuses_nothing(broker, connect, disk, clock, properties):
    peer, late = await connect(), await connect()
    peer.send(1, properties=properties)
    await peer.seen()
    await clock.advance(0.7)
    async with running_flush(broker, disk):
        late.send(2, properties=properties)
        await late.seen()
    assert (await peer.reply(1)).code == 0
    await clock.advance(0.7)  # 1.4 s in which replies always waited, 0.7 s since the last progress
    late.send(3, properties=properties)
    assert await late.seen() == {}
    broker.store.flush_due()
    assert [(await late.reply(opaque)).code for opaque in (2, 3)] == [0, 0]


@pytest.mark.parametrize(
    ("value", "waits"), [("true", True), ("TRUE", True), ("", True), ("false", False), ("1", False)]
)
async def test_the_sender_says_whether_to_wait(broker, connect, value, waits):
    peer = await connect()
    peer.send(1, properties=f"a\x01b\x02WAIT\x01{value}\x02c\x01d")
    assert (1 in await peer.seen()) != waits


@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_a_reply_of_a_disk_that_stands_still_says_so_after_the_timeout(broker, connect, clock, serialization):
    peer = await connect(serialization)
    peer.send(1)
    await peer.seen()
    await clock.advance(0.5)
    peer.send(2)
    await peer.seen()
    await clock.advance(4)
    assert await peer.seen() == {}
    await clock.advance(1.25)  # 5.75 s for the first, 5.25 s for the second
    await clock.advance(1)
    replies = [await peer.reply(opaque) for opaque in (1, 2)]
    assert [(reply.code, reply.fields["queueOffset"]) for reply in replies] == [(10, "1"), (10, "2")]
    assert len(broker._state.confirmation) == 0


async def test_a_failing_disk_is_answered_at_once(broker, connect, disk):
    peer = await connect()
    peer.send(1, 2)
    await peer.seen()
    disk.refuse = lambda kind, path: errno.EIO if kind == "sync" else None
    broker.store.flush_due()
    assert [(await peer.reply(opaque)).code for opaque in (1, 2)] == [10, 10]
    peer.send(3)
    assert (await peer.reply(3)).code == 14


async def test_a_closed_connection_drops_its_replies_and_others_get_theirs(broker, connect):
    gone, other = await connect(), await connect()
    gone.send(1, 2)
    await gone.seen()
    other.send(3)
    await other.seen()
    gone.writer.transport.abort()
    await until(lambda: len(broker._server.sessions) == 2)  # the other one, and that which made the topic
    broker.store.flush_due()
    assert (await other.reply(3)).fields["queueOffset"] == "3"
    assert len(broker._state.confirmation) == 0


async def test_requests_without_an_answer_count_while_they_wait(broker, connect):
    peer = await connect()
    peer.send(1, 2, flag=ONE_WAY)
    assert await peer.seen() == {}
    assert (stored(broker), len(broker._state.confirmation)) == (3, 2)
    broker.store.flush_due()
    assert await peer.seen() == {}
    assert len(broker._state.confirmation) == 0


async def test_no_more_than_so_many_wait(broker, connect):
    peer = await connect()
    half = MAX_UNCONFIRMED // 2
    peers = [peer, await connect()]
    for each in peers:
        each.send(*range(half))
        await each.seen()
    assert len(broker._state.confirmation) == MAX_UNCONFIRMED
    peer.send(half)
    refused = await peer.reply(half)
    assert (refused.code, refused.remark) == (2, "[OVERLOAD]system busy, start flow control for a while")
    assert stored(broker) == MAX_UNCONFIRMED + 1
    broker.store.flush_due()
    for each in peers:
        assert {(await each.reply(opaque)).code for opaque in range(half)} == {0}


async def test_nothing_is_stored_while_the_disk_stands_still(broker, connect, clock):
    peer = await connect()
    peer.send(1)
    await peer.seen()
    await clock.advance(1.5)
    peer.send(2)
    assert (await peer.reply(2)).remark.startswith("[REJECTREQUEST]")
    assert stored(broker) == 2
    broker.store.flush_due()
    assert (await peer.reply(1)).code == 0
    peer.send(3)
    await peer.seen()
    assert stored(broker) == 3


async def test_what_came_before_invalid_bytes_is_answered_before_the_end(broker, connect):
    peer = await connect()
    peer.send(1)
    await peer.seen()
    peer.writer.write(b"GET / HTTP/1.1\r\n\r\n")
    other = await connect()
    await other.seen()
    await until(lambda: any(each.is_draining for each in broker._server._connections))
    broker.store.flush_due()
    assert (await peer.rest())[1].code == 0


async def test_a_broker_that_stops_waits_for_the_replies(broker, connect):
    peer = await connect()
    peer.send(1)
    await peer.seen()
    stopping = asyncio.ensure_future(broker._server.close(drain_seconds=30))
    await until(lambda: not broker._server._listener.is_serving())
    broker.store.flush_due()
    assert (await peer.rest())[1].code == 0
    await stopping
