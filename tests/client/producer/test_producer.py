"""The async producer at a real broker: where messages go, what they carry, what is refused."""

import asyncio
import zlib

import pytest

from pyromq.client.client_config import ProducerConfig
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.client.producer.pending_send import queue_for_key
from pyromq.errors import (
    BrokerError,
    IllegalMessage,
    IllegalName,
    NotRunning,
    TopicNotFound,
    Unavailable,
    UsageError,
)
from pyromq.message import Message, MessageQueue, SendStatus, SysFlag
from pyromq.testing.cluster import Cluster


async def stored(cluster, result):
    admin = await cluster.admin()
    return await admin.view(result.offset_message_id)


async def test_a_message_arrives_with_everything_it_carries(cluster):
    producer = await cluster.producer()
    message = Message("orders", "ü".encode(), tags="new", keys=["k1", "k2"], properties={"größe": "1"}, flag=7)
    result = await producer.send(message)
    found = await stored(cluster, result)
    assert (found.body, found.tags, found.keys, found.flag) == ("ü".encode(), "new", ["k1", "k2"], 7)
    assert found.properties["größe"] == "1"
    assert found.message_id == result.message_id == message.message_id
    assert result.status is SendStatus.OK
    assert found.queue_offset == result.queue_offset == 0


async def test_an_unknown_topic_is_created_with_four_queues(cluster):
    producer = await cluster.producer()
    await producer.send(Message("new", b"1"))
    assert cluster.broker.topics.find("new").write_queues == 4


async def test_queues_take_turns(cluster):
    producer = await cluster.producer()
    results = [await producer.send(Message("orders", b"1")) for _ in range(8)]
    assert sorted(r.queue.queue_id for r in results) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [r.queue_offset for r in results] == [0, 0, 0, 0, 1, 1, 1, 1]


async def test_an_ordering_key_always_goes_to_the_same_queue(cluster):
    producer = await cluster.producer()
    queues = await producer.queues("orders")
    for key in ("a", "b", "N12345"):
        results = [await producer.send(Message("orders", b"1"), ordering_key=key) for _ in range(3)]
        assert {r.queue for r in results} == {queue_for_key(queues, key)}


async def test_a_selector_sees_the_queues_and_the_message(cluster):
    producer = await cluster.producer()
    result = await producer.send(Message("orders", b"2"), selector=lambda queues, m: queues[int(m.body)])
    assert result.queue.queue_id == 2


async def test_a_given_queue_is_used(cluster):
    producer = await cluster.producer()
    queue = (await producer.queues("orders"))[3]
    assert (await producer.send(Message("orders", b"1"), queue=queue)).queue == queue


@pytest.mark.parametrize(
    ("wish", "text"),
    [
        ({"queue": MessageQueue("other", "b", 0)}, "queue of topic 'other'"),
        ({"selector": lambda queues, message: None}, "selector returned None"),
        (
            {"selector": lambda queues, message: queues[0]._replace(queue_id=99)},
            "selector returned .*99.*; it must return one of",
        ),
        ({"selector": lambda queues, message: queues[0], "ordering_key": "k"}, "not several"),
    ],
)
async def test_wishes_that_cannot_be_are_refused(cluster, wish, text):
    producer = await cluster.producer()
    with pytest.raises(UsageError, match=text):
        await producer.send(Message("orders", b"1"), **wish)
    assert producer.in_flight == 0


@pytest.mark.parametrize(
    ("message", "error", "text"),
    [
        (Message("", b"1"), IllegalName, "blank"),
        (Message("no spaces", b"1"), IllegalName, "illegal characters"),
        (Message("x" * 128, b"1"), IllegalName, "longer than topic max length 127"),
        (Message("SCHEDULE_TOPIC_XXXX", b"1"), IllegalName, "forbidden"),
        (Message("t", b""), IllegalMessage, "length is zero"),
        (Message("t", bytes((4 << 20) + 1)), IllegalMessage, "over max value, MAX: 4194304"),
        (Message("t", "text"), IllegalMessage, "not str"),
        (Message("t", b"1", properties={"TAGS": "x"}), IllegalMessage, "used by the system"),
        (Message("t", b"1", properties={"a": "x" * 32768}), IllegalMessage, "limit is 32767"),
    ],
)
async def test_what_cannot_be_sent_is_refused_before_the_network(cluster, message, error, text):
    producer = await cluster.producer()
    with pytest.raises(error, match=text):
        await producer.send(message)
    with pytest.raises(error, match=text):
        producer.send_soon(message)


@pytest.mark.parametrize("group", ["", "DEFAULT_PRODUCER", "a b", "x" * 256])
def test_an_illegal_group_is_refused(group):
    with pytest.raises(IllegalName):
        AsyncProducer(group)


async def test_bodies_from_4096_bytes_on_are_compressed(cluster):
    producer = await cluster.producer()
    small, large = [await stored(cluster, await producer.send(Message("t", b"x" * n))) for n in (4095, 4096)]
    assert small.stored_body == small.body == b"x" * 4095
    assert large.sys_flag == SysFlag.COMPRESSED | SysFlag.ZLIB
    assert zlib.decompress(large.stored_body) == large.body == b"x" * 4096


async def test_messages_sent_soon_reach_their_queue_in_order(cluster):
    producer = await cluster.producer()
    futures = [producer.send_soon(Message("orders", b"%d" % n), ordering_key="k") for n in range(100)]
    results = await asyncio.gather(*futures)
    assert [r.queue_offset for r in results] == list(range(100))
    assert producer.in_flight == 0


async def test_sending_soon_is_bounded(cluster):
    producer = await cluster.producer(config=ProducerConfig(max_in_flight=3))
    for _ in range(3):
        producer.send_soon(Message("orders", b"1"))
    with pytest.raises(UsageError, match=r"3 messages .*max_in_flight"):
        producer.send_soon(Message("orders", b"1"))
    await producer.send(Message("orders", b"waits for room"))
    await producer.flush()
    producer.send_soon(Message("orders", b"1"))


async def test_closing_waits_for_what_was_sent_soon(cluster):
    async with AsyncProducer("p", cluster.namesrv) as producer:
        future = producer.send_soon(Message("orders", b"1"))
    assert future.result().status is SendStatus.OK


async def test_a_batch_gets_consecutive_offsets_in_one_queue(cluster):
    producer = await cluster.producer()
    members = [Message("orders", b"%d" % n, tags=f"t{n}", keys=f"k{n}") for n in range(3)]
    result = await producer.send_batch(members)
    assert result.message_id == ",".join(m.message_id for m in members)
    consumer = await cluster.consumer()
    found = (await consumer.pull(result.queue, result.queue_offset)).messages
    assert [(m.body, m.tags, m.keys, m.message_id) for m in found] == [
        (m.body, m.tags, list(m.keys), m.message_id) for m in members
    ]


@pytest.mark.parametrize(
    ("messages", "text"),
    [
        ([], "at least one"),
        ([Message("a", b"1"), Message("b", b"1")], "one topic"),
        ([Message("a", b"1", delay_level=1)], "delayed"),
        ([Message("%RETRY%g", b"1")], "retry topic"),
        ([Message("a", b"1"), Message("a", b"1", wait_stored=False)], "wait_stored"),
        ([Message("a", bytes(3 << 20)), Message("a", bytes(3 << 20))], "over max value"),
    ],
)
async def test_messages_that_do_not_fit_together_are_no_batch(cluster, messages, text):
    producer = await cluster.producer()
    with pytest.raises(IllegalMessage, match=text):
        await producer.send_batch(messages)


async def test_one_way_messages_arrive(cluster):
    producer = await cluster.producer()
    for n in range(3):
        await producer.send_one_way(Message("orders", b"%d" % n), ordering_key="k")
    last = await producer.send(Message("orders", b"3"), ordering_key="k")
    assert last.queue_offset == 3


async def test_a_fault_of_ours_leaves_no_message_waiting(cluster, monkeypatch, caplog):
    producer = await cluster.producer()

    async def broken(*_):
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(producer._cluster, "channel", broken)
    with pytest.raises(Unavailable, match="topic 'orders' was not sent"):
        await producer.send(Message("orders", b"1"))
    waiting = producer.send_soon(Message("orders", b"2"))
    monkeypatch.setattr(producer._outbox, "destination", unavailable)
    monkeypatch.setattr(producer._cluster, "refresh", broken)
    with pytest.raises(Unavailable, match="topic 'orders' was not sent"):
        await waiting
    assert "a fault of ours" in caplog.text


async def unavailable(*_):
    raise Unavailable("nobody is there")


@pytest.mark.parametrize("wrong", ["hello", [Message("orders", b"1"), Message("orders", b"2")]], ids=["text", "list"])
async def test_what_is_no_message_is_refused(cluster, wrong):
    producer = await cluster.producer()
    for send in (producer.send, producer.request, producer.send_one_way):
        with pytest.raises(IllegalMessage, match=r"Message, not .*send_batch"):
            await send(wrong)


async def test_ids_are_unique_and_stay_with_the_message(cluster):
    producer = await cluster.producer()
    message = Message("orders", b"1")
    first, again = await producer.send(message), await producer.send(message)
    assert first.message_id == again.message_id
    other = await producer.send(Message("orders", b"1"))
    assert other.message_id != first.message_id
    assert len(other.message_id) == 32


async def test_an_answer_that_says_no_is_raised():
    async with Cluster(reject_transactions=False, auto_create_topic=False) as cluster:
        producer = await cluster.producer()
        with pytest.raises(TopicNotFound, match="no broker creates topics by itself"):
            await producer.send(Message("orders", b"1"))


async def test_a_queue_out_of_range_is_the_brokers_no(cluster):
    producer = await cluster.producer()
    queue = MessageQueue("orders", "broker-a", 99)
    with pytest.raises(BrokerError, match="99"):
        await producer.send(Message("orders", b"1"), queue=queue)


async def test_a_producer_that_is_not_running_says_so(cluster):
    producer = AsyncProducer("p", cluster.namesrv)
    with pytest.raises(NotRunning):
        await producer.send(Message("orders", b"1"))
    async with producer:
        pass
    with pytest.raises(NotRunning):
        producer.send_soon(Message("orders", b"1"))


async def all_bodies(cluster, topic="orders"):
    consumer = await cluster.consumer()
    found = [await consumer.pull(queue, 0) for queue in await consumer.queues(topic)]
    return sorted(message.body for result in found for message in result.messages)


async def test_a_send_cancelled_before_its_route_is_known_leaves_the_producer_usable(cluster):
    producer = await cluster.producer()
    sending = asyncio.ensure_future(producer.send(Message("orders", b"1")))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    await producer.send(Message("orders", b"2"))
    await producer.flush()
    assert producer.in_flight == 0
    assert await all_bodies(cluster) == [b"1", b"2"]  # who cancels stops waiting; the message goes its way, once


async def test_a_send_cancelled_while_its_answer_is_on_its_way_stays_in_flight_until_it_comes():
    async with Cluster(linked=True) as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        cluster.links[0].answers.pause()
        sending = asyncio.ensure_future(producer.send(Message("orders", b"2")))
        await asyncio.sleep(0)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert producer.in_flight == 1
        cluster.links[0].answers.resume()
        await producer.flush()
        assert producer.in_flight == 0
        assert await all_bodies(cluster) == [b"1", b"2"]


async def test_administrators_see_the_producer_until_it_closes(cluster):
    admin = await cluster.admin()
    async with AsyncProducer("shop", cluster.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        [connection] = (await admin.producer_connection("shop", "orders")).connections
        assert connection.language == "PYTHON"
    with pytest.raises(BrokerError):
        await admin.producer_connection("shop", "orders")
