"""Traces of messages, end to end: what clients tell, and the life that is put together from it and from the log."""

import asyncio
import os

import pytest
from tests.platforms.marks import not_windows
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.blocking.producers import Producer
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig, ProducerConfig
from pyromq.client.client_hooks import Decision
from pyromq.client.consumer.push.listener import GiveUp
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.client.producer.transaction_producer import AsyncTransactionProducer
from pyromq.client.tracing import message_trace
from pyromq.client.tracing.message_trace import MessageTrace
from pyromq.client.tracing.trace_records import Consumed, Decided, Delivered, MessageType, Sent, read_records
from pyromq.errors import IllegalMessage, QueryNotFound, TopicNotFound
from pyromq.message import Message
from pyromq.names import TRACE_TOPIC


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    monkeypatch.setattr(message_trace, "SEND_SECONDS", 0.02)


@pytest.fixture
async def trace(cluster):
    trace = MessageTrace(cluster.namesrv)
    yield trace
    await asyncio.to_thread(trace.close)
    assert trace.dropped == 0


async def traced(cluster, key, count):
    """Return the records about a message or key, once there are so many."""
    async with AsyncAdmin(cluster.namesrv) as admin, asyncio.timeout(PATIENCE_SECONDS):
        while True:
            try:
                found = await admin.query_by_key(TRACE_TOPIC, key)
            except TopicNotFound:
                found = []
            records = [record for message in found for record in read_records(message.body)]
            if len(records) >= count:
                return records
            await asyncio.sleep(0.02)


async def test_a_send_and_its_consumption_are_told(cluster, trace):
    async with AsyncProducer("shop", cluster.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
        sent = await producer.send(Message("orders", b"12345", tags="paid", keys="order-7"))
    done = asyncio.Event()

    async def listener(messages):
        done.set()

    config = ConsumerConfig(hooks=(trace,), consume_from=ConsumeFrom.FIRST)
    consumer = AsyncConsumer("billing", cluster.namesrv, config=config)
    consumer.subscribe("orders", listener)
    async with consumer:
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)
        records = await traced(cluster, "order-7", 3)
    (pub,) = [each for each in records if isinstance(each, Sent)]
    (before,) = [each for each in records if isinstance(each, Delivered)]
    (after,) = [each for each in records if isinstance(each, Consumed)]
    assert (pub.group, pub.topic, pub.message_id, pub.tags, pub.keys) == (
        "shop",
        "orders",
        sent.message_id,
        "paid",
        "order-7",
    )
    assert (pub.store_host, pub.body_bytes, pub.success) == (cluster.brokers[0].address, 5, True)
    assert pub.offset_message_id == sent.offset_message_id
    assert (before.group, before.message_id, before.retries) == ("billing", sent.message_id, 0)
    assert (after.request_id, after.success, after.group) == (before.request_id, True, "billing")


async def test_kinds_of_messages_are_told(cluster, trace):
    async with AsyncProducer("shop", cluster.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
        await producer.send(Message("orders", b"x", keys="k", delay_level=3))
        await producer.send_batch([Message("orders", b"1", keys="in-batch"), Message("orders", b"2")])
    records = await traced(cluster, "k", 1)
    assert [each.message_type for each in records if isinstance(each, Sent) and each.keys == "k"] == [MessageType.DELAY]
    assert any("," in each.message_id for each in records if isinstance(each, Sent))


async def test_decisions_on_transactions_are_told(cluster, trace):
    config = ProducerConfig(hooks=(trace,))
    check = lambda message: Decision.UNKNOWN  # noqa: E731
    producer = AsyncTransactionProducer("shop", cluster.namesrv, check=check, config=config)
    async with producer, producer.transaction(Message("orders", b"x", keys="k")) as transaction:
        transaction.rollback()
    records = await traced(cluster, transaction.transaction_id, 2)
    assert [each.message_type for each in records if isinstance(each, Sent)] == [MessageType.HALF]
    (decided,) = [each for each in records if isinstance(each, Decided)]
    assert (decided.state, decided.topic, decided.from_check) == ("ROLLBACK_MESSAGE", "orders", False)
    async with AsyncAdmin(cluster.namesrv) as admin:
        life = await admin.message_life(transaction.transaction_id)
    assert sorted(event.what for event in life) == ["rolled back", "sent", "waits"]  # clocks differ here


async def test_a_life_is_told_without_traces(cluster):
    producer = await cluster.producer()
    sent = await producer.send(Message("orders", b"x"))
    given = asyncio.Event()

    async def listener(messages):
        given.set()
        raise GiveUp("no such customer")

    consumer = AsyncConsumer("billing", cluster.namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    consumer.subscribe("orders", listener)
    async with AsyncAdmin(cluster.namesrv) as admin, consumer, asyncio.timeout(PATIENCE_SECONDS):
        await given.wait()
        life = []
        while not any(event.what == "dead letter" for event in life):
            life = await admin.message_life(sent.message_id, "orders")
        assert await admin.message_life(sent.message_id) == life  # found in all topics
        with pytest.raises(QueryNotFound, match="in topic orders"):
            await admin.message_life("7F" * 16, "orders")
    assert [(event.what, event.who) for event in life][:2] == [("stored", "broker-a"), ("dead letter", "billing")]
    assert life[1].detail == "after 1 attempt: GiveUp: no such customer"


async def test_retries_wait_and_come(cluster):
    producer = await cluster.producer()
    sent = await producer.send(Message("orders", b"x"))
    calls = []

    async def listener(messages):
        calls.append(messages[0].reconsume_times)
        if len(calls) == 1:
            raise ValueError("not now")

    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, commit_seconds=0.02)
    consumer = AsyncConsumer("billing", cluster.namesrv, config=config)
    consumer.subscribe("orders", listener)
    async with AsyncAdmin(cluster.namesrv) as admin, consumer, asyncio.timeout(PATIENCE_SECONDS):
        while len(calls) < 2:
            await cluster.clock.advance(1)
        life = []
        while not any(event.what == "passed" for event in life):
            life = await admin.message_life(sent.message_id, "orders")
    assert [event.what for event in life] == ["stored", "waits", "sent back", "passed"]
    assert life[1].detail == "in delay level 3: ValueError: not now"
    assert life[2].detail == "attempt 2 to come: ValueError: not now"


async def test_records_that_cannot_be_sent_are_dropped_and_counted(cluster, monkeypatch):
    monkeypatch.setattr(message_trace, "MAX_WAITING", 3)
    monkeypatch.setattr(message_trace, "SEND_SECONDS", 60)
    trace = MessageTrace(cluster.namesrv)
    async with AsyncProducer("shop", cluster.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
        for _ in range(5):
            await producer.send(Message("orders", b"x", keys="k"))
    assert trace.dropped == 2
    await asyncio.to_thread(trace.close)
    assert len([each for each in await traced(cluster, "k", 3) if isinstance(each, Sent)]) == 3


@pytest.mark.parametrize(
    ("batches", "count", "keys"),
    [
        (1, 500, ()),
        (2, 500, ()),  # the ids of both together are beyond the limit of a message's keys
        (1, 1500, ()),  # those of one alone are
        (300, 1, ("\u5b57" * 100,)),  # wide glyphs have three bytes
        (1, 1, ("x" * 29_000,)),  # no room for this key, but for the message's id
    ],
)
async def test_no_record_is_dropped_whatever_the_number_and_size_of_keys(cluster, trace, batches, count, keys):
    ids = []
    async with AsyncProducer("shop", cluster.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
        for number in range(batches):
            messages = [Message("orders", b"x", keys=[f"{each}{number}" for each in keys]) for _ in range(count)]
            result = await (producer.send_batch(messages) if count > 1 else producer.send(messages[0]))
            ids += result.message_id.split(",")
    assert len(ids) == batches * count
    for each in {ids[0], ids[len(ids) // 2], ids[-1]}:
        [_] = [record for record in await traced(cluster, each, 1) if each in record.message_id.split(",")]


async def test_drops_are_logged_once_until_records_are_sent_again(caplog):
    trace = MessageTrace("127.0.0.1:1")
    for number in range(5):
        trace._sender._count_dropped(1, f"reason {number}")
    assert trace.dropped == 5
    assert [record.getMessage() for record in caplog.records] == [
        "trace records are dropped, and counted in `dropped`: reason 0"
    ]


async def test_without_a_cluster_traces_are_dropped(monkeypatch):
    trace = MessageTrace("127.0.0.1:1")
    trace._sender.add(Delivered(1, None, "g", "r", "ID", 0, None))
    await asyncio.to_thread(trace.close)
    assert trace.dropped == 1


async def test_a_refused_message_is_not_traced_and_later_ones_are(cluster, trace):
    async with AsyncProducer("shop", cluster.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
        with pytest.raises(IllegalMessage, match="UTF-8"):
            await producer.send(Message("orders", b"1", keys="\udc80"))
        await producer.send(Message("orders", b"2", keys="k"))
        (sent,) = await traced(cluster, "k", 1)
    assert sent.success


@not_windows
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_sends_its_own_records(served):
    with MessageTrace(served.namesrv) as trace:
        with Producer("shop", served.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
            producer.send(Message("orders", b"1", keys="parent"))
        child = os.fork()
        if child == 0:
            try:
                with Producer("shop", served.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
                    producer.send(Message("orders", b"2", keys="child"))
                trace.close()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
    assert len(served.do(traced(served, "parent", 1))) == 1
    assert len(served.do(traced(served, "child", 1))) == 1
