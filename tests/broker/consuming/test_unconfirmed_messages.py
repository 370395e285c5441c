"""Pulls in a replica set: consumers see a message once it is confirmed, and not before."""

import asyncio
from dataclasses import replace

import pytest
from tests.broker.headers import batch_header, pull_header, send_header
from tests.broker.transactions.transactions import COMMIT

from pyromq.broker.broker import Broker
from pyromq.broker.confirmation import ReplicaRule
from pyromq.names import HALF_TOPIC
from pyromq.record import BatchMember, decode_all, encode_batch
from pyromq.remoting.headers import (
    ConsumeDirectly,
    EndTransaction,
    MaxOffset,
    OffsetResponse,
    PullMessageResponse,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
    ViewMessage,
)

SENT = "TAGS\x01A"


@pytest.fixture
async def broker(config, clock, caller_to):
    """The master of a set, with a confirmed message in queue 0 of its topic."""
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await caller.send("orders", b"0", properties=SENT)
        broker.store.bound_reads()
        broker._state.confirmation.require_replicas(ReplicaRule(holds_all=True))
        confirm(broker)
        yield broker
        broker._state.confirmation.require_replicas(None)


@pytest.fixture
async def caller(broker, caller_to):
    return await caller_to(broker)


def confirm(broker, end=None):
    broker._state.confirmation.replicated(broker.store.max_log_offset if end is None else end)


async def store(caller, *bodies, queue_id=0, properties=SENT):
    """Send messages; return the futures of their replies, which wait."""
    futures = [
        caller.channel.call_soon(send_header(properties, queue_id=queue_id), body, timeout=30) for body in bodies
    ]
    await caller.ask(MaxOffset(topic="orders", queue_id=0))
    return futures


async def waiting_pull(caller, offset, **changes):
    fields = {"queue_offset": offset, "sys_flag": 6, "suspend_ms": 15_000} | changes
    waiting = caller.channel.call_soon(pull_header(**fields), timeout=30)
    await caller.ask(MaxOffset(topic="orders", queue_id=0))
    return waiting


def position(response):
    answer = response.header(PullMessageResponse)
    return response.code, answer.next_offset, answer.max_offset


def bodies(response):
    return [message.body for message in decode_all(response.body)]


async def offset(caller, header):
    return (await caller.ask(header)).header(OffsetResponse).offset


async def test_a_group_never_reads_what_another_master_may_lack(broker, caller, caller_to, config, clock, tmp_path):
    """The accident: a group reads up to offset 2; the master dies; the next one has offset 0 and takes others there."""
    await store(caller, b"lost 1", b"lost 2")
    consumer = await caller_to(broker)
    found = await consumer.pull("orders")
    assert (bodies(found), position(found)) == ([b"0"], (0, 1, 1))
    assert position(await consumer.pull("orders", offset=1))[0] == 19
    group = {"consumer_group": "g", "topic": "orders", "queue_id": 0}
    read_to = position(found)[1]
    await consumer.ask(UpdateConsumerOffset(**group, commit_offset=read_to))

    follower = replace(config, data=tmp_path / "follower", port=0, store=replace(config.store, root=tmp_path / "f"))
    async with Broker(follower, clock) as new_master:
        producer = await caller_to(new_master)
        await producer.create_topic("orders")
        for body in (b"0", b"new 1", b"new 2"):
            await producer.send("orders", body)
        rest = await producer.pull("orders", offset=read_to)
        assert bodies(rest) == [b"new 1", b"new 2"]  # the group misses none of the messages that were confirmed


@pytest.mark.parametrize("ahead", [1, 2])
async def test_a_pull_behind_the_confirmed_messages_is_held_and_answered_by_their_confirmation(broker, caller, ahead):
    await store(caller, b"1", b"2")
    pulling = await waiting_pull(caller, ahead)
    assert not pulling.done()
    confirm(broker)
    found = await pulling
    assert (bodies(found), position(found)) == ([b"1", b"2"][ahead - 1 :], (0, 3, 3))


async def test_a_pull_that_does_not_wait_is_told_to_stay_there(broker, caller):
    await store(caller, b"1", b"2")
    for place in (1, 2, 3):
        assert position(await caller.pull("orders", offset=place)) == (19, place, 1)
    assert position(await caller.pull("orders", offset=4)) == (21, 1, 1)


async def test_a_held_pull_is_woken_by_confirmation_and_not_by_the_append(broker, caller):
    pulling = await waiting_pull(caller, 1)
    sending = await store(caller, b"1")
    assert not pulling.done()
    end = broker.store.max_log_offset
    await store(caller, b"2")
    confirm(broker, end - 1)
    await caller.ask(MaxOffset(topic="orders", queue_id=0))
    assert not pulling.done()
    confirm(broker, end)
    assert bodies(await pulling) == [b"1"]
    assert (await sending[0]).code == 0


async def test_a_held_pull_that_expires_meanwhile_finds_nothing_and_is_answered_once(broker, caller, clock):
    pulling = await waiting_pull(caller, 1, suspend_ms=1000)
    await store(caller, b"1")
    await clock.advance(1.1)
    assert position(await pulling) == (19, 1, 1)
    confirm(broker)
    assert bodies(await caller.pull("orders", offset=1)) == [b"1"]


@pytest.mark.parametrize(("tags", "is_woken"), [("A", True), ("B", False)])
async def test_only_messages_that_the_filter_accepts_wake_a_pull_that_comes_after_them(broker, caller, tags, is_woken):
    await store(caller, b"1")
    pulling = await waiting_pull(caller, 1, subscription=tags)
    confirm(broker)
    await caller.ask(MaxOffset(topic="orders", queue_id=0))
    assert pulling.done() == is_woken


async def test_a_pull_behind_very_many_unconfirmed_messages_is_answered_after_them(broker, caller):
    await store(caller, *[b"x"] * 900)
    pulling = await waiting_pull(caller, 1, subscription="B")
    confirm(broker)
    code, next_offset, _ = position(await pulling)
    assert (code, next_offset) == (20, 801)


async def test_a_batch_wakes_by_its_confirmation(broker, caller):
    pulling = await waiting_pull(caller, 1)
    batch = encode_batch([BatchMember(0, body, SENT) for body in (b"1", b"2")])
    caller.channel.call_soon(batch_header(), batch, timeout=30)
    await caller.ask(MaxOffset(topic="orders", queue_id=0))
    assert not pulling.done()
    confirm(broker)
    assert bodies(await pulling) == [b"1", b"2"]


async def test_pulls_by_sql_and_by_tags_end_at_the_same_message(broker, caller):
    await store(caller, b"1")
    end = broker.store.max_log_offset
    await store(caller, b"2")
    confirm(broker, end)
    for fields in ({}, {"subscription": "A"}, {"subscription": "TAGS = 'A'", "expression_type": "SQL92"}):
        found = await caller.channel.call(pull_header(sys_flag=4, **fields), timeout=30)
        assert (bodies(found), position(found)) == ([b"0", b"1"], (0, 2, 2))


async def test_pulls_end_at_the_same_message_whatever_file_of_the_queue_has_it(config, clock, caller_to):
    config = replace(config, store=replace(config.store, consume_queue_entries=8))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        broker.store.bound_reads()
        ends = []
        for number in range(20):
            await caller.send("orders", b"%d" % number, queue_id=number % 2, properties=SENT)
            ends.append(broker.store.max_log_offset)
        for number, end in enumerate(ends):
            for confirmed, count in ((end - 1, number), (end, number + 1)):
                broker.store.confirm(confirmed)
                for queue_id, seen in ((0, (count + 1) // 2), (1, count // 2)):
                    for begin in {0, max(seen - 1, 0)}:
                        fields = {"queue_id": queue_id, "queue_offset": begin, "sys_flag": 4}
                        found = await caller.channel.call(pull_header(**fields), timeout=30)
                        assert found.header(PullMessageResponse).max_offset == seen
                        if seen:
                            read_to = min(seen, begin + 8 - begin % 8)
                            assert position(found) == (0, read_to, seen)
                            wanted = [b"%d" % (2 * place + queue_id) for place in range(begin, read_to)]
                            assert bodies(found) == wanted


async def test_offsets_end_with_the_confirmed_messages(broker, caller, clock):
    await store(caller, b"1")
    assert await offset(caller, MaxOffset(topic="orders", queue_id=0)) == 1
    later = SearchOffset(topic="orders", queue_id=0, timestamp=clock.now_ms() + 10_000)
    assert await offset(caller, later) == 0
    assert await offset(caller, QueryConsumerOffset(consumer_group="new", topic="orders", queue_id=0)) == 0
    confirm(broker)
    assert await offset(caller, MaxOffset(topic="orders", queue_id=0)) == 2
    assert await offset(caller, later) == 1


async def test_a_message_is_viewed_once_it_is_confirmed(broker, caller):
    at = broker.store.max_log_offset
    await store(caller, b"1")
    await caller.ask(ViewMessage(offset=at), code=1)
    message_id = f"7F00000100002A9F{at:016X}"
    directly = ConsumeDirectly(consumer_group="g", client_id="c", message_id=message_id, broker_name="b")
    refused = await caller.ask(directly, code=1)
    assert "can not find message" in refused.remark
    confirm(broker)
    assert bodies(await caller.ask(ViewMessage(offset=at))) == [b"1"]


async def test_progress_of_delay_levels_is_saved_once_the_deliveries_are_confirmed(broker, caller, clock):
    await store(caller, b"late", properties="DELAY\x011")
    confirm(broker)
    await clock.advance(2)
    assert broker.store.next_offset("orders", 0) == 2  # delivered, and not confirmed
    levels = broker.delay_levels
    await asyncio.wrap_future(broker.store.wait_flushed(broker.store.max_log_offset))
    levels.unsaved()  # holds the present progress
    assert levels.unsaved() is None
    confirm(broker)
    await asyncio.wrap_future(broker.store.wait_flushed(broker.store.max_log_offset))
    save = levels.unsaved()
    assert save is not None
    save()
    assert levels._saved.offsets == {1: 1}


@pytest.mark.parametrize("is_confirmed", [True, False])
async def test_a_broker_that_stops_saves_only_progress_whose_log_is_confirmed(config, clock, caller_to, is_confirmed):
    def progress():
        """What is saved: of delay level 1, of scheduled messages, of half messages."""
        levels = broker.delay_levels._saved.offsets.get(1, 0)
        halves = broker.offsets.find("CID_RMQ_SYS_TRANS", HALF_TOPIC, 0)
        return levels, broker.timers.index._files.saved.moved, halves

    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        broker.store.bound_reads()
        due = clock.now_ms() + 3_600_000
        for properties in ("DELAY\x011", f"TIMER_DELIVER_MS\x01{due}", "TRAN_MSG\x01true\x02PGROUP\x01p"):
            sent = await caller.send("orders", b"x", properties=properties)
        end_it = EndTransaction(
            producer_group="p",
            half_queue_offset=sent.queue_offset,
            log_offset=int(sent.message_id[-16:], 16),
            decision=COMMIT,
            message_id="x",
        )
        await caller.ask(end_it)
        await clock.advance(2)
        if is_confirmed:
            broker.store.confirm(broker.store.max_log_offset + 10_000)
    assert progress() == ((1, 1, 1) if is_confirmed else (0, 0, None))
