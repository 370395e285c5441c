"""Requests and replies over a real cluster: who gets what, and what is raised when nobody replies."""

import asyncio
import threading

import pytest
from tests.waiting import until

from pyromq import (
    AsyncProducer,
    AsyncTransactionProducer,
    BrokerError,
    Consumer,
    Decision,
    IllegalMessage,
    Message,
    NoReply,
    Producer,
    ProducerConfig,
    StoredMessage,
    TopicNotFound,
    UsageError,
)
from pyromq.testing import Cluster, FakeClock


@pytest.fixture
def replying(cluster):
    """A started consumer that replies what a function makes of a body."""

    async def start(answer=lambda body: b"re: " + body, *, cluster=cluster, topic="questions"):
        consumer = await cluster.push_consumer("repliers")

        async def work(messages):
            for message in messages:
                await consumer.reply(message, answer(message.body))

        consumer.subscribe(topic, work)
        return consumer

    return start


async def stored(cluster, topic):
    """Return the one message of a topic."""
    consumer = await cluster.consumer()
    results = [await consumer.pull(queue, 0) for queue in await consumer.queues(topic)]
    (message,) = [message for result in results for message in result.messages]
    return message


async def test_a_request_returns_the_reply(cluster, replying):
    await replying()
    producer = await cluster.producer()

    reply = await producer.request(Message("questions", b"1 + 1?"), timeout=30)

    assert reply.body == b"re: 1 + 1?"
    assert reply.topic == "DefaultCluster_REPLY_TOPIC"
    assert reply.properties["MSG_TYPE"] == "reply"
    assert reply.properties["REPLY_TO_CLIENT"].startswith("127.0.0.1@")
    assert reply.store_host == cluster.broker.address
    assert int(reply.properties["ARRIVE_TIME"]) > 0


async def test_each_request_gets_its_own_reply(cluster, replying):
    await replying()
    producers = [await cluster.producer("a"), await cluster.producer("b")]
    bodies = [b"%d" % number for number in range(50)]

    replies = await asyncio.gather(
        *(producers[number % 2].request(Message("questions", body), timeout=30) for number, body in enumerate(bodies))
    )

    assert [reply.body for reply in replies] == [b"re: " + body for body in bodies]


async def test_the_message_itself_stays_as_it_was(cluster, replying):
    await replying()
    producer = await cluster.producer()
    message = Message("questions", b"1", properties={"a": "b"})
    first = await producer.request(message, timeout=30)
    second = await producer.request(message, timeout=30)
    assert first.properties["CORRELATION_ID"] != second.properties["CORRELATION_ID"]
    assert message.properties == {"a": "b"}


async def test_without_a_replier_the_request_fails_in_time_and_is_stored(cluster):
    async with AsyncProducer("p", cluster.namesrv, clock=FakeClock()) as producer:  # only the wait ends by itself
        with pytest.raises(NoReply, match="send request message to <questions> OK") as failed:
            await producer.request(Message("questions", b"1"), timeout=1.0)
    assert (failed.value.code, failed.value.retriable) == (10006, False)
    message = await stored(cluster, "questions")
    assert message.properties["TTL"] == "1000"


async def given_up(cluster, producer):
    """Let a producer ask, and give up when the question is stored."""
    asking = asyncio.create_task(producer.request(Message("questions", b"1"), timeout=30))
    await until(lambda: any(cluster.broker.store.max_offset("questions", queue_id) for queue_id in range(4)))
    asking.cancel()
    await asyncio.wait([asking])


async def test_a_reply_that_comes_too_late_is_logged(cluster, caplog):
    await given_up(cluster, await cluster.producer())
    replier = await cluster.push_consumer("repliers")
    await replier.reply(await stored(cluster, "questions"), b"late")
    assert "a reply of 127.0.0.1" in caplog.text


async def test_a_reply_to_a_requester_that_is_gone_is_refused(cluster):
    async with AsyncProducer("p", cluster.namesrv) as producer:
        await given_up(cluster, producer)
    request = await stored(cluster, "questions")
    replier = await cluster.push_consumer("repliers")
    with pytest.raises(BrokerError, match=r"push reply message fail, channel of <.*> not found"):
        await replier.reply(request, b"hello?")


async def test_only_requests_can_be_replied_to(cluster, send):
    await send([1])
    message = await stored(cluster, "orders")
    replier = await cluster.push_consumer("repliers")
    with pytest.raises(UsageError, match="is not a request and cannot be replied to"):
        await replier.reply(message, b"hello?")


async def test_a_reply_needs_a_body(cluster):
    replier = await cluster.push_consumer("repliers")
    with pytest.raises(IllegalMessage, match="body length is zero"):
        await replier.reply(StoredMessage("orders", b"1"), b"")


async def test_what_cannot_be_sent_is_refused_as_by_send():
    async with Cluster(auto_create_topic=False) as cluster:
        producer = await cluster.producer()
        with pytest.raises(TopicNotFound):
            await producer.request(Message("nowhere", b"1"), timeout=30)
        with pytest.raises(IllegalMessage):
            await producer.request(Message("BenchmarkTest", b""), timeout=30)


async def test_a_reply_comes_by_another_broker_when_the_requests_own_is_gone(pair):
    await (await pair.admin()).create_topic("questions", queues=1)
    producer = await pair.producer()
    replier = await pair.push_consumer("repliers")
    queue = (await producer.queues("questions"))[0]
    asking = asyncio.create_task(producer.request(Message("questions", b"1"), queue=queue, timeout=30))
    await until(lambda: pair.broker.store.max_offset("questions", 0) == 1)
    request = await stored(pair, "questions")
    assert request.broker_name == "broker-a"

    await pair.kill_broker(0)
    await replier.reply(request, b"by b")

    assert (await asking).store_host == pair.brokers[1].address


async def test_clients_that_share_an_instance_get_their_own_replies(cluster, replying):
    await replying()
    config = ProducerConfig(instance="shared")
    producers = [await cluster.producer(group, config=config) for group in "ab"]
    replies = await asyncio.gather(
        *(each.request(Message("questions", each.group.encode()), timeout=30) for each in producers)
    )
    assert [reply.body for reply in replies] == [b"re: a", b"re: b"]


async def test_transaction_producers_can_ask_too(cluster, replying):
    await replying()
    async with AsyncTransactionProducer("t", cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
        assert (await producer.request(Message("questions", b"1"), timeout=30)).body == b"re: 1"


def test_blocking_clients_ask_and_reply(served):
    with Producer("p", served.namesrv) as producer, Consumer("blocking-repliers", served.namesrv) as consumer:
        threads = []

        def work(messages):
            threads.append(threading.current_thread())
            consumer.reply(messages[0], messages[0].body.upper())

        consumer.subscribe("blocking-questions", work)
        for body in (b"a", b"b"):
            assert producer.request(Message("blocking-questions", body), timeout=30).body == body.upper()
        assert threading.main_thread() not in threads
