"""Replies that wait for replicas, to plain sends of both ways: compiled and plain. The replicas are told here."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import replace

import pytest
from tests.broker.headers import send_header
from tests.broker.transactions.transactions import COMMIT
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.confirmation import ReplicaRule
from pyromq.errors import StoreNotWritable
from pyromq.net.listening import new_serving_loop
from pyromq.remoting.command import BINARY, JSON
from pyromq.remoting.headers import EndTransaction, MaxOffset, SendMessageBack, SendMessageResponse
from pyromq.store.store_config import FlushMode
from pyromq.testing import SimulatedDisk

from .plain_peer import connecting

# Compiled parts take a plain send; one to a delay level goes the plain way.
WAYS = {"compiled": "", "plain": "DELAY\x013"}
BOTH_WAYS = pytest.mark.parametrize("properties", WAYS.values(), ids=WAYS)


@pytest.fixture
def flush():
    return FlushMode.ASYNC


@pytest.fixture
async def broker(config, clock, caller_to, flush):
    """A broker with a message in its topic, so that compiled parts store further ones."""
    config = replace(config, store=replace(config.store, flush=flush))
    async with Broker(config, clock, disk=SimulatedDisk()) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        first = caller.channel.call_soon(send_header(), b"x", timeout=30)
        await caller.ask(MaxOffset(topic="orders", queue_id=0))
        broker.store.flush_due()
        await first
        yield broker
        broker._state.confirmation.require_replicas(None)
        broker.store.flush_due()


@pytest.fixture
def confirmation(broker):
    return broker._state.confirmation


@pytest.fixture
async def connect(broker):
    async with connecting(broker) as connect:
        yield connect


def end(broker):
    return broker.store.max_log_offset


@BOTH_WAYS
@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_replies_leave_once_the_replicas_have_their_records(
    broker, confirmation, connect, serialization, properties
):
    confirmation.require_replicas(ReplicaRule())
    peer = await connect(serialization)
    peer.send(1, properties=properties)
    assert await peer.seen() == {}
    first = end(broker)
    peer.send(2, properties=properties)
    await peer.seen()
    confirmation.replicated(first - 1)
    assert await peer.seen() == {}
    confirmation.replicated(first)
    assert {opaque: reply.code for opaque, reply in (await peer.seen()).items()} == {1: 0}
    confirmation.replicated(end(broker))
    assert (await peer.reply(2)).code == 0
    assert len(confirmation) == 0


@BOTH_WAYS
async def test_the_replication_is_woken_when_replies_begin_to_wait(broker, confirmation, connect, properties):
    calls = []
    confirmation.require_replicas(ReplicaRule(wake=lambda: calls.append(end(broker))))
    peer = await connect()
    peer.send(1, properties=properties)
    await peer.seen()
    assert calls == [end(broker)]
    confirmation.replicated(end(broker))
    await peer.reply(1)
    assert len(calls) == 1


@BOTH_WAYS
async def test_a_lower_report_than_before_takes_nothing_back(broker, confirmation, connect, properties):
    confirmation.require_replicas(ReplicaRule())
    confirmation.replicated(end(broker) + 10_000)
    confirmation.replicated(0)
    peer = await connect()
    peer.send(1, properties=properties)
    assert (await peer.reply(1)).code == 0


@BOTH_WAYS
async def test_replies_say_after_the_timeout_that_no_replica_had_their_records(
    broker, confirmation, connect, clock, properties
):
    confirmation.require_replicas(ReplicaRule(timeout_seconds=3.0))
    peer = await connect()
    peer.send(1, properties=properties)
    await peer.seen()
    await clock.advance(2.5)
    peer.send(2, properties=properties)
    assert await peer.seen() == {}
    await clock.advance(0.75)
    reply = (await peer.seen())[1]
    assert (reply.code, 2 in peer.replies) == (12, False)
    assert "queueOffset" in reply.fields
    confirmation.replicated(end(broker))
    assert (await peer.reply(2)).code == 0


@BOTH_WAYS
async def test_sends_that_wait_for_replicas_refuse_no_other_sends(broker, confirmation, connect, clock, properties):
    confirmation.require_replicas(ReplicaRule())
    peer = await connect()
    peer.send(1, properties=properties)
    await peer.seen()
    await clock.advance(2)
    peer.send(2, properties=properties)
    assert await peer.seen() == {}
    confirmation.replicated(end(broker))
    assert [(await peer.reply(opaque)).code for opaque in (1, 2)] == [0, 0]


@BOTH_WAYS
async def test_without_a_replica_messages_are_stored_and_answered_at_once(broker, confirmation, connect, properties):
    confirmation.require_replicas(ReplicaRule(has_replica=lambda log_end: False))
    peer = await connect()
    before = end(broker)
    peer.send(1, properties=properties)
    reply = await peer.reply(1)
    assert (reply.code, end(broker) > before) == (11, True)


async def test_other_requests_are_carried_out_without_a_replica(broker, confirmation, caller_to):
    confirmation.require_replicas(ReplicaRule(has_replica=lambda log_end: False))
    caller = await caller_to(broker)
    half = send_header("TRAN_MSG\x01true\x02PGROUP\x01p", sys_flag=4)
    sent = (await caller.ask(half, b"x", code=11)).header(SendMessageResponse)
    log_offset = int(sent.message_id[-16:], 16)
    decision = {"producer_group": "p", "half_queue_offset": sent.queue_offset, "log_offset": log_offset}
    await caller.ask(EndTransaction(**decision, decision=COMMIT, message_id="x"))
    assert broker.store.max_offset("orders", 0) == 2
    await caller.ask(SendMessageBack(offset=log_offset, group="g", delay_level=1))


@BOTH_WAYS
async def test_a_refusal_stores_nothing(broker, confirmation, connect, properties):
    rule = ReplicaRule(refusal="in sync: 1, asked for: 2")
    confirmation.require_replicas(rule)
    peer = await connect()
    before = end(broker)
    peer.send(1, properties=properties)
    reply = await peer.reply(1)
    assert (reply.code, reply.remark, end(broker)) == (14, "in sync: 1, asked for: 2", before)
    rule.refusal = ""
    peer.send(2, properties=properties)
    await peer.seen()
    confirmation.replicated(end(broker))
    assert (await peer.reply(2)).code == 0


@BOTH_WAYS
@pytest.mark.parametrize("serialization", [JSON, BINARY])
async def test_a_master_that_steps_down_names_the_new_one(broker, confirmation, connect, serialization, properties):
    confirmation.require_replicas(ReplicaRule())
    peer = await connect(serialization)
    peer.send(1, 2, properties=properties)
    await peer.seen()
    before = end(broker)
    confirmation.step_down("not the master: 127.0.0.2:10911")
    peer.send(3, properties=properties)
    for opaque in (1, 2, 3):
        reply = await peer.reply(opaque)
        assert (reply.code, reply.remark) == (14, "not the master: 127.0.0.2:10911")
    assert end(broker) == before
    assert len(confirmation) == 0


@BOTH_WAYS
async def test_replies_are_released_when_replicas_are_not_required_any_more(broker, confirmation, connect, properties):
    confirmation.require_replicas(ReplicaRule())
    peer = await connect()
    peer.send(1, properties=properties)
    await peer.seen()
    confirmation.require_replicas(None)
    assert (await peer.reply(1)).code == 0
    peer.send(2, properties=properties)
    assert (await peer.reply(2)).code == 0


@BOTH_WAYS
@pytest.mark.parametrize(("holds_all", "waits"), [(False, False), (True, True)])
async def test_the_rule_says_whether_senders_that_do_not_wait_are_held(
    broker, confirmation, connect, properties, holds_all, waits
):
    confirmation.require_replicas(ReplicaRule(holds_all=holds_all))
    peer = await connect()
    peer.send(1, properties="WAIT\x01false\x02" + properties)
    assert (1 not in await peer.seen()) == waits
    confirmation.replicated(end(broker))
    assert (await peer.reply(1)).code == 0


class TestSyncFlush:
    @pytest.fixture
    def flush(self):
        return FlushMode.SYNC

    @BOTH_WAYS
    @pytest.mark.parametrize("disk_first", [True, False])
    async def test_replies_wait_for_disk_and_replicas(self, broker, confirmation, connect, properties, disk_first):
        confirmation.require_replicas(ReplicaRule())
        peer = await connect()
        peer.send(1, properties=properties)
        await peer.seen()
        for each in (True, False):
            assert await peer.seen() == {}
            if each is disk_first:
                broker.store.flush_due()
            else:
                confirmation.replicated(end(broker))
        assert (await peer.reply(1)).code == 0

    @BOTH_WAYS
    async def test_replies_after_a_finished_flush_get_a_flush_of_their_own(
        self, broker, confirmation, connect, properties
    ):
        confirmation.require_replicas(ReplicaRule())
        peer = await connect()
        peer.send(1, properties=properties)
        await peer.seen()
        broker.store.flush_due()
        await peer.seen()
        peer.send(2, properties=properties)
        await peer.seen()
        confirmation.replicated(end(broker))
        assert set(await peer.seen()) == {1}
        broker.store.flush_due()
        assert (await peer.reply(2)).code == 0

    @BOTH_WAYS
    @pytest.mark.parametrize(("has_replicas", "code"), [(True, 10), (False, 12)])
    async def test_a_lack_of_replicas_is_named_before_a_lack_of_a_flush(
        self, broker, confirmation, connect, clock, properties, has_replicas, code
    ):
        confirmation.require_replicas(ReplicaRule())
        peer = await connect()
        peer.send(1, properties=properties)
        await peer.seen()
        if has_replicas:
            confirmation.replicated(end(broker))
        await clock.advance(5.5)
        await clock.advance(0.5)
        assert (await peer.reply(1)).code == code

    @BOTH_WAYS
    async def test_without_a_replica_the_reply_waits_for_the_disk(self, broker, confirmation, connect, properties):
        confirmation.require_replicas(ReplicaRule(has_replica=lambda log_end: False))
        peer = await connect()
        peer.send(1, properties=properties)
        assert await peer.seen() == {}
        broker.store.flush_due()
        assert (await peer.reply(1)).code == 11

    @BOTH_WAYS
    async def test_a_master_that_steps_down_does_not_wait_for_its_disk(self, broker, confirmation, connect, properties):
        confirmation.require_replicas(ReplicaRule())
        peer = await connect()
        peer.send(1, properties=properties)
        await peer.seen()
        confirmation.step_down("not the master: 127.0.0.2:10911")
        assert (await peer.reply(1)).code == 14

    @BOTH_WAYS
    @pytest.mark.parametrize("disk_first", [True, False])
    async def test_consumers_read_what_disk_and_replicas_have(
        self, broker, confirmation, connect, properties, disk_first
    ):
        broker.store.bound_reads()
        confirmation.require_replicas(ReplicaRule())
        peer = await connect()
        peer.send(1, properties=properties)
        await peer.seen()
        for each in (True, False):
            assert broker.store.confirmed_end < end(broker)
            if each is disk_first:
                broker.store.flush_due()
            else:
                confirmation.replicated(end(broker))
            await peer.seen()
        assert broker.store.confirmed_end == end(broker)

    @BOTH_WAYS
    async def test_a_disk_that_stands_still_refuses_sends_while_replicas_confirm(
        self, broker, confirmation, connect, clock, properties
    ):
        confirmation.require_replicas(ReplicaRule())
        peer = await connect()
        peer.send(1, properties=properties)
        await peer.seen()
        confirmation.replicated(end(broker))
        await clock.advance(1.5)
        peer.send(2, properties=properties)
        assert (await peer.reply(2)).remark.startswith("[REJECTREQUEST]")


@BOTH_WAYS
def test_a_loop_that_serves_sends_the_log_at_once(config, clock, properties):
    async def main():
        loop = asyncio.get_running_loop()
        woken = asyncio.Event()
        async with Broker(config, clock, disk=SimulatedDisk()) as broker, connecting(broker) as connect:
            peer = await connect(JSON)
            peer.send(1)
            await peer.reply(1)
            confirmation = broker._state.confirmation
            confirmation.require_replicas(ReplicaRule(wake=lambda: loop.call_soon(woken.set)))
            for opaque in range(2, 5):
                woken.clear()
                peer.send(opaque, properties=properties)
                async with asyncio.timeout(PATIENCE_SECONDS):  # nothing else would end the loop's wait meanwhile
                    await woken.wait()
                confirmation.replicated(end(broker))
                await peer.reply(opaque)
            confirmation.require_replicas(None)

    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        runner.run(main())


async def test_a_table_that_the_disk_here_refuses_is_not_kept_by_replicas(confirmation):
    stored, saved = Future(), Future()
    stored.set_result(None)
    confirmation.require_replicas(ReplicaRule(when_stored=lambda: stored))
    kept = confirmation.when_kept(saved)
    saved.set_exception(StoreNotWritable("the disk is full"))
    with pytest.raises(StoreNotWritable):
        await asyncio.wrap_future(kept)
