"""The simple consumer at a real broker: receipt, acknowledgement, invisible times, dead letters, hooks and types."""

import asyncio
import time
from dataclasses import dataclass

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq import (
    AsyncSimpleConsumer,
    BrokerError,
    ConsumeFrom,
    ConsumerConfig,
    ConsumeStatus,
    Message,
    NotRunning,
    ReceiptHandleExpired,
    StoredMessage,
    TopicNotFound,
    UsageError,
)
from pyromq.remoting.bodies import GroupConfig
from pyromq.testing import BlockingCluster

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@dataclass
class Order:
    number: int


class Watching:
    def __init__(self):
        self.statuses = []

    def before_consume(self, delivery):
        assert not delivery.encloses

    def after_consume(self, delivery, outcome):
        self.statuses += [(message.body, outcome.status) for message in delivery.messages]


@pytest.fixture
async def producer(cluster):
    admin = await cluster.admin()
    for topic in ("orders", "returns"):
        await admin.create_topic(topic, 4)
    return await cluster.producer()


@pytest.fixture
async def consumer(cluster, producer):
    consumer = await cluster.simple_consumer("workers", config=FIRST)
    consumer.subscribe("orders")
    return consumer


async def send(producer, *bodies, topic="orders", ordering_key=None, **more):
    for body in bodies:
        await producer.send(Message(topic, body, **more), ordering_key=ordering_key)


async def received(consumer, count, **how):
    found = []
    while len(found) < count:
        found += await consumer.receive(wait_seconds=30, **how)
    return found


async def lag(cluster, group="workers"):
    return sum(each.lag for each in await (await cluster.admin()).group_progress(group))


async def test_an_acknowledged_message_is_not_received_again(cluster, producer, consumer):
    await send(producer, b"1", b"2", b"3")
    messages = await received(consumer, 3)
    assert sorted(message.body for message in messages) == [b"1", b"2", b"3"]
    assert sum(each.in_flight for each in await (await cluster.admin()).group_progress("workers")) == 3
    await consumer.ack(messages[0])
    await consumer.ack(messages[1:])
    await consumer.ack(messages[0])
    await cluster.clock.advance(60)
    assert await consumer.receive(wait_seconds=0) == []
    assert await lag(cluster) == 0


@pytest.mark.parametrize("consume_from", [None, ConsumeFrom.LAST])
async def test_a_new_group_begins_at_the_first_message_of_a_young_queue(cluster, producer, consume_from):
    await send(producer, b"1", b"2")
    consumer = await cluster.simple_consumer("new", config=ConsumerConfig(consume_from=consume_from))
    consumer.subscribe("orders")
    assert sorted(message.body for message in await received(consumer, 2)) == [b"1", b"2"]


async def test_what_one_member_has_is_invisible_to_others_until_its_time_is_over(cluster, producer, consumer):
    other = await cluster.simple_consumer("workers", config=FIRST)
    other.subscribe("orders")
    await send(producer, b"1")
    [message] = await received(consumer, 1, invisible_seconds=10)
    assert await other.receive(wait_seconds=0) == []
    waiting = asyncio.ensure_future(received(other, 1))
    await cluster.clock.advance(11)
    [again] = await waiting
    assert (again.body, again.topic, again.reconsume_times, again.message_id) == (
        *(b"1", "orders", 1),
        message.message_id,
    )
    with pytest.raises(ReceiptHandleExpired):
        await consumer.ack(message)
    await other.ack(again)


async def test_a_waiting_receive_gets_a_message_of_any_of_its_topics_as_it_arrives(producer, consumer):
    consumer.subscribe("returns")
    waiting = asyncio.ensure_future(consumer.receive(wait_seconds=30))
    await asyncio.sleep(0)
    await send(producer, b"back", topic="returns")
    [message] = await waiting
    assert (message.topic, message.body) == ("returns", b"back")


async def test_topics_are_received_in_the_order_of_the_argument(producer, consumer):
    consumer.subscribe("returns")
    await send(producer, b"later")
    await send(producer, b"first", topic="returns")
    for _ in range(2):
        [message] = await consumer.receive(topics=("returns", "orders"), invisible_seconds=60)
        if message.body == b"later":
            break
        assert message.body == b"first"
    assert message.body == b"later"
    with pytest.raises(UsageError, match="topic 'invoices' is not subscribed to; subscribed topics"):
        await consumer.receive(topics=["invoices"])


async def test_a_changed_time_gives_a_new_handle_and_zero_means_now(producer, consumer):
    await send(producer, b"1")
    [message] = await received(consumer, 1)
    before = message.receipt_handle
    await consumer.change_invisible_duration(message, 60)
    assert message.receipt_handle != before
    await consumer.change_invisible_duration(message, 0)
    [again] = await received(consumer, 1)
    assert again.reconsume_times == 1


async def test_a_renewed_message_stays_invisible_until_the_consumer_is_closed(cluster, producer):
    async with AsyncSimpleConsumer("workers", cluster.namesrv, config=FIRST) as worker:
        worker.subscribe("orders")
        await send(producer, b"1")
        [message] = await received(worker, 1, invisible_seconds=1, renew=True)
        handle = message.receipt_handle
        await until(lambda: message.receipt_handle != handle)
        await cluster.clock.advance(0.5)
    other = await cluster.simple_consumer("workers", config=FIRST)
    other.subscribe("orders")
    [again] = await received(other, 1)
    await other.ack(again)


async def test_a_cancelled_receive_leaves_no_message_invisible(producer, consumer):
    for _ in range(5):
        waiting = asyncio.ensure_future(consumer.receive(wait_seconds=30))
        await asyncio.sleep(0.002)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    await send(producer, b"1")
    popping = asyncio.ensure_future(consumer.receive(wait_seconds=30))
    await asyncio.sleep(0)  # the pop is sent
    popping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await popping
    [message] = await received(consumer, 1)
    assert message.body == b"1"


class Picky:
    def filter_messages(self, group, messages):
        return [message for message in messages if message.body != b"unwanted"]


async def test_a_receive_cancelled_while_it_acknowledges_leaves_no_message_invisible(cluster, producer):
    consumer = await cluster.simple_consumer("workers", config=ConsumerConfig(hooks=(Picky(),)))
    consumer.subscribe("orders")
    await send(producer, b"wanted", b"unwanted", ordering_key="k")
    acknowledging = asyncio.Event()

    async def hanging(messages):
        acknowledging.set()
        await asyncio.Event().wait()

    consumer._requests.ack, ack = hanging, consumer._requests.ack
    receiving = asyncio.ensure_future(consumer.receive(wait_seconds=30))
    await until(acknowledging.is_set)
    receiving.cancel()
    await asyncio.wait([receiving])
    consumer._requests.ack = ack
    assert [message.body for message in await consumer.receive(wait_seconds=30)] == [b"wanted"]


async def test_attempts_end_with_a_dead_letter(cluster, producer, consumer):
    await (await cluster.admin()).create_group(GroupConfig("workers", retry_max_times=1), replace=True)
    await send(producer, b"poison")
    for attempt in range(2):
        [message] = await received(consumer, 1)
        assert message.reconsume_times == attempt
        await consumer.change_invisible_duration(message, 0)
    reader = await cluster.simple_consumer("readers", config=FIRST)
    reader.subscribe("%DLQ%workers")
    await until_topic(cluster, "%DLQ%workers")
    [dead] = await received(reader, 1)
    assert (dead.body, dead.message_id) == (b"poison", message.message_id)


async def until_topic(cluster, topic):
    await until(lambda: cluster.broker.topics.find(topic) is not None)
    await cluster.clock.advance(1)


async def test_a_message_can_be_made_a_dead_letter_at_once(cluster, producer, consumer):
    await send(producer, b"bad")
    [message] = await received(consumer, 1)
    await consumer.dead_letter(message, "no such customer")
    await cluster.clock.advance(60)
    assert await consumer.receive(wait_seconds=0) == []
    reader = await cluster.simple_consumer("readers", config=FIRST)
    reader.subscribe("%DLQ%workers")
    [dead] = await received(reader, 1)
    assert (dead.body, dead.properties["RETRY_REASON"]) == (b"bad", "no such customer")


async def test_values_have_the_type_of_the_subscription_and_others_become_dead_letters(cluster, producer):
    consumer = await cluster.simple_consumer("workers", config=FIRST)
    consumer.subscribe("orders", type=Order)
    await send(producer, b'{"number":"x"}', b'{"number":7}')
    [message] = await received(consumer, 1)
    assert message.value == Order(7)
    await consumer.ack(message)
    while await consumer.receive(wait_seconds=0):
        pass
    reader = await cluster.simple_consumer("readers", config=FIRST)
    reader.subscribe("%DLQ%workers")
    await until_topic(cluster, "%DLQ%workers")
    [dead] = await received(reader, 1)
    assert "number" in dead.properties["RETRY_REASON"]


async def test_a_message_that_cannot_be_made_a_dead_letter_now_holds_up_no_other(cluster, consumer, producer, caplog):
    consumer.subscribe("orders", type=Order)
    await send(producer, b"no order", b'{"number": 1}', ordering_key="k")
    cluster.broker.store._log.suspend("the disk is full")
    (message,) = await consumer.receive()
    assert message.value == Order(1)
    assert "is not a dead letter yet, and is redelivered: " in caplog.text


async def test_tags_and_sql_choose_messages(cluster, producer):
    by_tag = await cluster.simple_consumer("tags", config=FIRST)
    by_tag.subscribe("orders", tags="paid || sent")
    by_sql = await cluster.simple_consumer("sql", config=FIRST)
    by_sql.subscribe("orders", sql="price > 5")
    await send(producer, b"1", tags="paid", properties={"price": "3"})
    await send(producer, b"2", tags="open", properties={"price": "7"})
    assert [message.body for message in await received(by_tag, 1)] == [b"1"]
    assert [message.body for message in await received(by_sql, 1)] == [b"2"]


async def test_hooks_are_called_for_each_message(cluster, producer):
    watching = Watching()
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, hooks=(watching,))
    consumer = await cluster.simple_consumer("workers", config=config)
    consumer.subscribe("orders")
    await send(producer, b"1", b"2", b"3")
    for message in await received(consumer, 3):
        if message.body == b"1":
            await consumer.ack(message)
        elif message.body == b"2":
            await consumer.change_invisible_duration(message, 0)
        else:
            await consumer.dead_letter(message)
    assert set(watching.statuses) == {
        (b"1", ConsumeStatus.CONSUMED),
        (b"2", ConsumeStatus.RETRIED),
        (b"3", ConsumeStatus.DEAD_LETTERED),
    }


async def test_messages_of_both_brokers_are_received(pair):
    await (await pair.admin()).create_topic("orders", 1)
    producer, consumer = await pair.producer(), await pair.simple_consumer("workers", config=FIRST)
    consumer.subscribe("orders")
    for number in range(6):
        await producer.send(Message("orders", b"%d" % number))
    found = await received(consumer, 6)
    assert {message.broker_name for message in found} == {"broker-a", "broker-b"}
    await consumer.ack(found)
    assert await consumer.receive(wait_seconds=0) == []


async def test_names_in_a_namespace_are_those_of_the_application(cluster, producer):
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, namespace="shop")
    await (await cluster.admin()).create_topic("shop%orders", 1)
    consumer = await cluster.simple_consumer("workers", config=config)
    consumer.subscribe("orders")
    await send(producer, b"1", topic="shop%orders")
    [message] = await received(consumer, 1)
    assert message.topic == "orders"
    await consumer.change_invisible_duration(message, 0)
    [message] = await received(consumer, 1)
    await consumer.ack(message)
    assert (message.topic, message.reconsume_times) == ("orders", 1)


async def test_wrong_use_says_what_is_wrong(cluster, producer, consumer):
    with pytest.raises(UsageError, match="max_count=0 is out of range: 1 to"):
        await consumer.receive(0)
    with pytest.raises(UsageError, match=r"invisible_seconds=0\.5 is out of range: 1 to 43200"):
        await consumer.receive(invisible_seconds=0.5)
    with pytest.raises(UsageError, match="wait_seconds=-1 is out of range"):
        await consumer.receive(wait_seconds=-1)
    with pytest.raises(UsageError, match="has no receipt handle"):
        await consumer.ack(StoredMessage("orders", b"1"))
    with pytest.raises(UsageError, match=r"ConsumeFrom\.TIME is not for a simple consumer"):
        AsyncSimpleConsumer("workers", config=ConsumerConfig(consume_from=ConsumeFrom.TIME))
    with pytest.raises(UsageError, match="subscribe to one first"):
        await (await cluster.simple_consumer("none")).receive()
    lost = await cluster.simple_consumer("lost")
    lost.subscribe("invoices")
    with pytest.raises(TopicNotFound):
        await lost.receive()
    with pytest.raises(NotRunning):
        await AsyncSimpleConsumer("workers", cluster.namesrv).receive()


async def test_a_receive_without_messages_ends_after_its_time(consumer):
    began = time.monotonic()
    assert await consumer.receive(wait_seconds=0.05) == []
    assert time.monotonic() - began >= 0.05


async def test_members_are_seen_by_administrators(cluster, consumer):
    await consumer.receive(wait_seconds=0)
    members = await (await cluster.admin()).consumer_connection("workers")
    assert [each.client_id for each in members.connections] == [consumer.client_id]
    running = await (await cluster.admin()).members.running("workers", consumer.client_id)
    assert [each.topic for each in running.subscriptions] == ["orders"]


async def test_a_refusal_for_too_many_pops_in_flight_is_logged_once(cluster, producer, consumer, caplog):
    cluster.broker.pops.in_flight.pops.limit = 2
    await send(producer, b"a", b"b", b"c")
    [message] = await consumer.receive(1, wait_seconds=30)
    assert await consumer.receive(wait_seconds=0.3) == []
    assert [each.message.partition(":")[0] for each in caplog.records if "simple" in each.name] == [
        "group workers receives nothing of topic orders from broker broker-a"
    ]
    assert "group workers has 1 unfinished pops, of 1 of all groups: acknowledge messages" in caplog.text
    await consumer.ack(message)
    assert len(await consumer.receive(1, wait_seconds=30)) == 1


LONG = "l" * 120  # a topic that groups cannot pop: the name of their retry topic would be too long


def warnings_of(caplog):
    return [each.getMessage() for each in caplog.records if "simple" in each.name and each.levelname == "WARNING"]


async def test_a_refused_topic_does_not_keep_back_messages_of_other_topics(cluster, producer, consumer, caplog):
    await (await cluster.admin()).create_topic(LONG, 1)
    for topic in (LONG, "absent", "returns"):
        consumer.subscribe(topic)
    await send(producer, b"1", b"2")
    await send(producer, b"3", topic="returns")
    assert sorted([each.body for each in await received(consumer, 3)]) == [b"1", b"2", b"3"]
    assert await consumer.receive(wait_seconds=0.05) == []
    waiting = asyncio.ensure_future(consumer.receive(wait_seconds=30))
    await asyncio.sleep(0)
    await send(producer, b"4", topic="returns")
    assert [each.body for each in await waiting] == [b"4"]
    absent, refused = sorted(warnings_of(caplog))
    assert absent.startswith("group workers receives nothing of topic absent")
    assert f"topic {LONG} from broker broker-a: group workers cannot pop topic" in refused


async def test_refusals_of_an_unsubscribed_topic_are_forgotten(cluster, producer, consumer, caplog):
    consumer.subscribe("orders")
    await producer.send(Message("orders", b"one"))
    for _ in range(2):  # without `unsubscribe` the second refusal would not be logged
        consumer.subscribe("absent")
        for _ in range(2):
            await consumer.receive(1, wait_seconds=0)
        consumer.unsubscribe("absent")
    assert len(warnings_of(caplog)) == 2


async def test_a_receive_of_only_refused_topics_raises_the_refusal(cluster, consumer):
    await (await cluster.admin()).create_topic(LONG, 1)
    consumer.subscribe(LONG)
    with pytest.raises(BrokerError, match="cannot pop topic"):
        await consumer.receive(topics=[LONG])
    consumer.subscribe("absent")
    with pytest.raises(TopicNotFound, match="absent"):
        await consumer.receive(topics=["absent"])
    with pytest.raises(BrokerError):
        await consumer.receive(topics=["absent", LONG])


async def test_a_topic_is_received_again_after_its_refusal(cluster, producer, caplog):
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, route_refresh_seconds=0.05)
    consumer = await cluster.simple_consumer("workers", config=config)
    for topic in ("orders", "returns"):
        consumer.subscribe(topic)
    await send(producer, b"1", topic="returns")
    admin = await cluster.admin()
    assert await consumer.receive(wait_seconds=0, topics=["orders"]) == []  # the consumer has both routes
    await admin.alter_topic("returns", permission="w")
    waiting = asyncio.ensure_future(received(consumer, 1))
    await until(lambda: warnings_of(caplog))
    await admin.alter_topic("returns", permission="rw")
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not waiting.done():  # the consumer waits at the broker for the other topic
            await cluster.clock.advance(10)
    assert [each.body for each in await waiting] == [b"1"]


def test_a_blocking_consumer_receives_beside_a_refused_topic():
    with BlockingCluster() as cluster:
        cluster.admin().create_topic(LONG, 1)
        cluster.admin().create_topic("orders", 1)
        consumer = cluster.simple_consumer("workers", config=FIRST)
        consumer.subscribe(LONG)
        consumer.subscribe("orders")
        cluster.producer().send(Message("orders", b"1"))
        for _ in range(2):
            [message] = consumer.receive(wait_seconds=30)
            consumer.change_invisible_duration(message, 0)
