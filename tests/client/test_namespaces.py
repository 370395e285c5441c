"""Clients of namespaces at one real broker: each sees its own names, the broker those with the namespace."""

import asyncio
import threading

import pytest
from tests.client.consumer.test_damaged_messages import flip
from tests.waiting import PATIENCE_SECONDS

from pyromq import (
    AsyncConsumer,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncTransactionProducer,
    ConsumeFrom,
    ConsumerConfig,
    Decision,
    GiveUp,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
)
from pyromq.client.blocking.consumers import QueueReader
from pyromq.client.consumer.group_offsets import OffsetFile
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.errors import Unavailable
from pyromq.testing import Cluster

SHOP = ProducerConfig(namespace="shop")


def consuming(**settings):
    return ConsumerConfig(namespace="shop", consume_from=ConsumeFrom.FIRST, **settings)


@pytest.fixture
async def producer(cluster):
    async with AsyncProducer("sellers", cluster.namesrv, config=SHOP) as producer:
        yield producer


class Seen:
    """A listener that keeps what it gets, as far as `fail` lets it."""

    def __init__(self, fail=lambda message: None):
        self.messages = []
        self.fail = fail

    async def __call__(self, messages):
        for message in messages:
            self.messages.append((message.topic, message.body, message.reconsume_times))
            self.fail(message)


async def pulled(cluster, topic):
    """Return the messages of a topic, by brokers' name."""
    consumer = await cluster.consumer("reader")
    results = [await consumer.pull(queue, 0) for queue in await consumer.queues(topic)]
    return sorted((message for result in results for message in result.messages), key=lambda m: m.body)


async def test_every_way_of_sending_writes_the_namespace_and_tells_the_application_its_own_name(cluster, producer):
    one = await producer.send(Message("orders", b"0"))
    (queue, *_) = queues = await producer.queues("orders")
    assert one.queue in queues
    assert {each.topic for each in queues} == {"orders"}
    results = [
        await producer.send(Message("orders", b"1"), queue=queue),
        await producer.send(Message("shop%orders", b"2"), ordering_key="k"),
        await producer.send(Message("orders", b"3"), selector=lambda queues, message: queues[-1]),
        await producer.send_soon(Message("orders", b"4")),
        await producer.send_batch([Message("orders", b"5"), Message("orders", b"6")], queue=queue),
    ]
    await producer.send_one_way(Message("orders", b"7"))
    await producer.flush()
    assert {result.queue.topic for result in results} == {"orders"}
    assert results[2].queue == (await producer.queues("orders"))[-1]
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found := await pulled(cluster, "shop%orders")) < 8:
            await asyncio.sleep(0.005)
    assert [message.body for message in found] == [b"%d" % n for n in range(8)]
    assert {message.properties["INSTANCE_ID"] for message in found} == {"shop"}
    admin = await cluster.admin()
    assert "orders" not in await admin.topics()
    assert [c.client_id for c in (await admin.producer_connection("shop%sellers", "shop%orders")).connections]


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_group_and_a_topic_of_two_namespaces_do_not_meet(cluster, producer, until, orderly):
    plain = await cluster.producer("sellers")
    await producer.send(Message("orders", b"of the shop"))
    await plain.send(Message("orders", b"of nobody"))
    mine, others = Seen(), Seen()
    first = AsyncConsumer("billing", cluster.namesrv, config=consuming(orderly=orderly))
    second = await cluster.push_consumer("billing", config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    first.subscribe("orders", mine)
    second.subscribe("orders", others)
    async with first:
        await until(lambda: mine.messages and others.messages and first.assignment)  # told when all are begun
        assert {queue.topic for queue in first.assignment} == {"orders"}
        admin = await cluster.admin()
        assert {s.topic for s in (await admin.consumer_connection("shop%billing")).subscriptions.values()} == {
            "shop%orders",
            "%RETRY%shop%billing",
        }
    assert mine.messages == [("orders", b"of the shop", 0)]
    assert others.messages == [("orders", b"of nobody", 0)]
    progress = await admin.group_progress("shop%billing", "shop%orders")
    assert sum(each.consumer_offset for each in progress) == 1


async def test_retries_come_back_under_the_applications_name_and_end_in_the_namespaces_dead_letters(
    cluster, producer, until
):
    def fail(message):
        if message.reconsume_times:
            raise GiveUp("enough")
        raise ValueError("no")

    seen = Seen(fail)
    consumer = AsyncConsumer("billing", cluster.namesrv, config=consuming())
    consumer.subscribe("orders", seen)
    await producer.send(Message("orders", b"1"))
    async with consumer:
        await until(lambda: seen.messages)
        for _ in range(40):
            await cluster.clock.advance(1)
            await asyncio.sleep(0.005)
            if len(seen.messages) > 1:
                break
        await until(lambda: len(seen.messages) == 2)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "%DLQ%shop%billing" not in await (await cluster.admin()).topics():
                await asyncio.sleep(0.005)
    assert seen.messages == [("orders", b"1", 0), ("orders", b"1", 1)]
    (dead,) = await pulled(cluster, "%DLQ%shop%billing")
    assert dead.properties["RETRY_TOPIC"] == "shop%orders"


async def test_copies_for_a_retry_name_topics_as_brokers_do(cluster, producer, until, monkeypatch):
    async def refused(*_):
        raise Unavailable("no")

    monkeypatch.setattr(SendBack, "_ask_broker", refused)
    seen = Seen(lambda message: (_ for _ in ()).throw(GiveUp("enough")))
    consumer = AsyncConsumer("billing", cluster.namesrv, config=consuming())
    consumer.subscribe("orders", seen)
    await producer.send(Message("orders", b"1"))
    async with consumer:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while "%DLQ%shop%billing" not in await (await cluster.admin()).topics():
                await asyncio.sleep(0.005)
    (dead,) = await pulled(cluster, "%DLQ%shop%billing")
    assert dead.properties["RETRY_TOPIC"] == "shop%orders"


async def test_a_pull_consumer_says_and_hears_its_own_names(cluster, producer, until):
    sent = [await producer.send(Message("orders", b"%d" % n), ordering_key="k") for n in range(6)]
    queue = sent[0].queue
    async with AsyncPullConsumer("billing", cluster.namesrv, config=consuming(auto_commit=False)) as consumer:
        assert queue in await consumer.queues("orders")
        assert [m.topic for m in (await consumer.pull(queue, 0)).messages] == ["orders"] * 6
        await consumer.assign([queue])
        (message,) = [m for m in await consumer.poll(5) if m.body == b"0"]
        assert (message.topic, message.queue, consumer.assignment) == ("orders", queue, [queue])
        await consumer.seek(queue, 4)
        assert [m.body for m in await consumer.poll(5)] == [b"4", b"5"]
        await consumer.commit()
        assert await consumer.committed(queue) == consumer.position(queue) == 6
        assert (await consumer.min_offset(queue), await consumer.max_offset(queue)) == (0, 6)
        admin = await cluster.admin()
        wire = MessageQueue("shop%orders", queue.broker_name, queue.queue_id)
        assert {p.queue: p.consumer_offset for p in await admin.group_progress("shop%billing", "shop%orders")}[
            wire
        ] == 6


async def test_pull_consumers_share_a_topic_of_their_namespace(cluster, producer, until):
    await producer.send(Message("orders", b"1"))
    told = []
    consumer = AsyncPullConsumer("billing", cluster.namesrv, config=consuming())
    consumer.subscribe("orders", listener=lambda queues: told.append({queue.topic for queue in queues}))
    async with consumer:
        messages = []
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not messages:
                messages = await consumer.poll(0.05)
        assert ([m.topic for m in messages], told[-1]) == (["orders"], {"orders"})
        watched = await consumer.watch_queues("orders", lambda queues: None)
        assert set(watched) == set(consumer.assignment)
        consumer.unwatch_queues("orders")
        consumer.unsubscribe("orders")
        await until(lambda: not consumer.assignment)


async def test_administrators_reach_members_by_brokers_names(cluster, producer, until):
    sent = [await producer.send(Message("orders", b"%d" % n), ordering_key="k") for n in range(3)]
    seen = Seen()
    consumer = AsyncConsumer("billing", cluster.namesrv, config=consuming(commit_seconds=0.01))
    consumer.subscribe("orders", seen)
    admin = await cluster.admin()
    wire = MessageQueue("shop%orders", sent[0].queue.broker_name, sent[0].queue.queue_id)
    async with consumer:
        await until(lambda: len(seen.messages) == 3)
        state = await admin.members.running("shop%billing", consumer.client_id)
        assert state.queues[wire].last_pull_ms
        assert "shop%orders" in state.rates
        await admin.reset_offset("shop%billing", "shop%orders", 0)
        await until(lambda: len(seen.messages) == 6)
        assert wire in (await admin.members.offsets("shop%billing", "shop%orders"))[consumer.client_id]
        await admin.members.consume("shop%billing", consumer.client_id, sent[0].offset_message_id)
        await until(lambda: len(seen.messages) == 7)
    assert {topic for topic, _, _ in seen.messages} == {"orders"}


async def test_a_broadcast_consumers_file_has_brokers_names(cluster, producer, until, tmp_path):
    await producer.send(Message("orders", b"1"))
    seen = Seen()
    consumer = AsyncConsumer("billing", cluster.namesrv, config=consuming(broadcast=True, offsets_folder=tmp_path))
    consumer.subscribe("orders", seen)
    async with consumer:
        await until(lambda: seen.messages)
        client_id = consumer.client_id
    offsets = OffsetFile(tmp_path, client_id, "shop%billing").load()
    assert {queue.topic for queue in offsets} == {"shop%orders"}
    again = AsyncConsumer("billing", cluster.namesrv, config=consuming(broadcast=True, offsets_folder=tmp_path))
    again.subscribe("orders", seen)
    async with again:
        await until(lambda: again.assignment)
        await producer.send(Message("orders", b"2"))
        await until(lambda: len(seen.messages) > 1)
    assert [body for _, body, _ in seen.messages] == [b"1", b"2"]


async def test_checks_of_transactions_see_the_applications_topic_and_requests_get_their_replies(until):
    asked = []

    async def check(message):
        asked.append((message.topic, message.properties["PGROUP"]))
        return Decision.COMMIT

    async with (
        Cluster(transaction_check_interval_ms=500, transaction_timeout_ms=500) as cluster,
        AsyncTransactionProducer("sellers", cluster.namesrv, check=check, config=SHOP) as producer,
    ):
        sent = await producer.send_half(Message("orders", b"1"))
        assert sent.queue.topic == "orders"
        async with producer.transaction(Message("orders", b"2")):
            pass
        for _ in range(20):
            await cluster.clock.advance(1.1)
            if asked:
                break
        await until(lambda: asked)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(await pulled(cluster, "shop%orders")) < 2:
                await asyncio.sleep(0.005)
        assert asked[0] == ("orders", "shop%sellers")
        replier = AsyncConsumer("repliers", cluster.namesrv, config=consuming())

        async def work(messages):
            for message in messages:
                await replier.reply(message, b"re: " + message.body)

        replier.subscribe("questions", work)
        async with replier:
            reply = await producer.request(Message("questions", b"?"), timeout=30)
        assert reply.body == b"re: ?"


async def test_a_queue_reader_reads_a_namespace(cluster, producer):
    sent = [await producer.send(Message("orders", b"%d" % n), ordering_key="k") for n in range(3)]
    plain = await cluster.producer("p")
    await plain.send(Message("elsewhere", b"1"))
    queue = sent[0].queue
    async with AsyncQueueReader("reader", cluster.namesrv, namespace="shop") as reader:
        assert await reader.topics() == ["orders"]
        bounds = await reader.bounds(["orders"])
        assert bounds[queue] == (0, 3)
        assert await reader.live_bounds(bounds) == bounds
        assert (await reader.pull(queue, 1)).messages[0].topic == "orders"
        assert await reader.first_since(queue, 0, (0, 3)) == 0
        await reader.commit({queue: 2}, "lag")
        assert await reader.committed([queue], "lag") == {queue: 2}
        await reader.announce_group("lag")
    admin = await cluster.admin()
    assert "%RETRY%shop%lag" in await admin.topics()
    assert {p.queue.topic for p in await admin.group_progress("shop%lag")} == {"shop%orders"}


def test_blocking_clients_and_threads_have_namespaces_too(served):
    with Producer("sellers", served.namesrv, config=ProducerConfig(namespace="blocking")) as producer:
        results = []
        threads = [
            threading.Thread(target=lambda: results.append(producer.send(Message("orders", b"1")))) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with QueueReader("reader", served.namesrv, namespace="blocking") as reader:
        assert sum(end for _, end in reader.bounds(["orders"]).values()) == 3
    assert {result.queue.topic for result in results} == {"orders"}


async def test_damage_is_told_by_the_applications_names(cluster, producer):
    sent = [await producer.send(Message("orders", b"message %d" % n), ordering_key="k") for n in range(3)]
    flip(cluster, b"message 1", -84)  # the magic code: the record cannot be read
    async with AsyncQueueReader("reader", cluster.namesrv, namespace="shop") as reader:
        result = await reader.pull(sent[0].queue, 0)
    assert [message.body for message in result.messages] == [b"message 0", b"message 2"]
    assert [damaged.queue for damaged in result.damaged] == [sent[0].queue]
