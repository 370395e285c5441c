"""Times of delivery as programs ask for them: sending, cancelling, counting, listing; and what is refused before."""

import math
from datetime import UTC, datetime, timedelta, timezone

import pytest

from pyromq import (
    AsyncTransactionProducer,
    Decision,
    IllegalMessage,
    Message,
    NotRunning,
    Producer,
    Unavailable,
    UsageError,
)
from pyromq.client.admin.messages.delayed_messages import AsyncDelayedMessages
from pyromq.errors import CodeNotSupported, MessageRefused, RecallRefused, TopicNotFound
from pyromq.remoting.recall_handle import decode_handle
from pyromq.testing import Cluster

DAY_MS = 86_400_000


@pytest.fixture
async def producer(cluster):
    return await cluster.producer()


@pytest.fixture
async def delayed_messages(cluster):
    async with AsyncDelayedMessages(cluster.namesrv) as delayed_messages:
        yield delayed_messages


async def bodies(cluster, topic="orders"):
    consumer = await cluster.consumer()
    results = [await consumer.pull(queue, 0) for queue in await consumer.queues(topic)]
    return sorted(message.body for result in results for message in result.messages)


async def waiting(delayed_messages, topic="orders", **choice):
    return [message async for message in delayed_messages.waiting(topic, **choice)]


# -- when


@pytest.mark.parametrize("delay", [5, 5.0, 4.9999, timedelta(seconds=5), timedelta(seconds=4, microseconds=999_001)])
async def test_a_delay_is_seconds_or_a_timedelta_and_never_shortened(cluster, producer, delay):
    await producer.send(Message("orders", b"hello", delay=delay))
    await cluster.clock.advance(4.999)
    assert await bodies(cluster) == []
    await cluster.clock.advance(0.001)
    assert await bodies(cluster) == [b"hello"]


def moments(ms):
    """The same moment, 5 s after `ms`, in all forms."""
    moment = datetime.fromtimestamp(ms / 1000, UTC) + timedelta(seconds=5)
    return [
        ms + 5000,
        moment,
        moment.astimezone(timezone(timedelta(hours=-9))),
        moment.astimezone().replace(tzinfo=None),
    ]


@pytest.mark.parametrize("form", range(4), ids=["ms", "utc", "other zone", "local without zone"])
async def test_a_moment_is_a_datetime_or_ms(cluster, producer, form):
    await producer.send(Message("orders", b"hello", deliver_at=moments(cluster.clock.now_ms())[form]))
    await cluster.clock.advance(4.999)
    assert await bodies(cluster) == []
    await cluster.clock.advance(0.001)
    assert await bodies(cluster) == [b"hello"]


def test_parts_of_a_millisecond_are_rounded_up():
    moment = datetime(2026, 1, 31, 12, 0, 0, 1, tzinfo=UTC)
    properties = Message("orders", b"x", deliver_at=moment).all_properties()
    assert properties["TIMER_DELIVER_MS"] == str(round(moment.replace(microsecond=0).timestamp()) * 1000 + 1)
    assert Message("orders", b"x", delay=0.0001).all_properties()["TIMER_DELAY_MS"] == "1"


@pytest.mark.parametrize("wish", [{"delay": 0}, {"deliver_at": 0}, {"deliver_at": datetime(2001, 1, 1)}])
async def test_a_time_in_the_past_is_now(cluster, producer, wish):
    result = await producer.send(Message("orders", b"hello", **wish))
    assert result.recall_handle is None
    assert await bodies(cluster) == [b"hello"]


# -- refused


@pytest.mark.parametrize(
    "wish",
    [
        {"delay": "5"},
        {"delay": math.nan},
        {"delay": math.inf},
        {"delay": b"5"},
        {"delay": [5]},
        {"delay": True},
        {"deliver_at": "2026-01-31"},
        {"deliver_at": 1.5},
        {"deliver_at": timedelta(1)},
        {"deliver_at": True},
        {"deliver_at": datetime.min},
    ],
)
async def test_what_is_no_time_is_refused_naming_it(producer, wish):
    (name,) = wish
    with pytest.raises(IllegalMessage, match=name):
        await producer.send(Message("orders", b"hello", **wish))


@pytest.mark.parametrize(
    "wishes",
    [{"delay": 1, "deliver_at": 5}, {"delay": 1, "delay_level": 3}, {"deliver_at": 5, "delay_level": 3}],
)
async def test_two_wishes_at_once_are_refused(producer, wishes):
    with pytest.raises(IllegalMessage, match="not several"):
        await producer.send(Message("orders", b"hello", **wishes))


async def test_beyond_the_limit_the_error_names_limit_and_setting(producer):
    with pytest.raises(MessageRefused, match="the limit is 2592000 s, broker setting timerMaxDelaySec"):
        await producer.send(Message("orders", b"hello", delay=timedelta(days=30, milliseconds=1)))
    with pytest.raises(MessageRefused, match="timerMaxDelaySec"):
        await producer.send(Message("orders", b"hello", delay=1e30))


@pytest.mark.parametrize("wish", [{"delay": 5}, {"deliver_at": 5}])
async def test_a_batch_cannot_wait(producer, wish):
    with pytest.raises(IllegalMessage, match="cannot be sent in a batch"):
        await producer.send_batch([Message("orders", b"1"), Message("orders", b"2", **wish)])


async def test_a_half_message_cannot_wait_for_a_time(cluster):
    async with AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
        with pytest.raises(IllegalMessage, match=r"half message .*deliver_at or delay"):
            await producer.send_half(Message("orders", b"1", delay=5))


# -- cancelling


async def test_the_handle_of_the_result_cancels(cluster, producer):
    result = await producer.send(Message("orders", b"no", delay=5))
    await producer.send(Message("orders", b"yes", delay=5))
    assert await producer.cancel(result.recall_handle) == result.message_id
    await cluster.clock.advance(10)
    assert await bodies(cluster) == [b"yes"]


async def test_messages_sent_at_once_have_handles_of_their_own(cluster, producer):
    futures = [producer.send_soon(Message("orders", b"%d" % number, delay=5)) for number in range(20)]
    results = [await future for future in futures]
    assert len({result.recall_handle for result in results}) == 20
    for result in results[::2]:
        await producer.cancel(result.recall_handle)
    await cluster.clock.advance(10)
    assert await bodies(cluster) == sorted(b"%d" % number for number in range(1, 20, 2))


async def test_without_waiting_there_is_no_handle(producer):
    assert (await producer.send(Message("orders", b"hello"))).recall_handle is None
    assert (await producer.send(Message("orders", b"hello", delay_level=3))).recall_handle is None


async def test_what_was_delivered_cancelled_or_never_sent_is_refused(cluster, producer):
    delivered = (await producer.send(Message("orders", b"hello", delay=1))).recall_handle
    cancelled = (await producer.send(Message("orders", b"hello", delay=60))).recall_handle
    await cluster.clock.advance(1)
    await producer.cancel(cancelled)
    unknown = decode_handle(cancelled)._replace(unique_key="F" * 32).encode()
    for handle in (delivered, cancelled, unknown):
        with pytest.raises(RecallRefused, match="it was delivered, or cancelled before"):
            await producer.cancel(handle)


@pytest.mark.parametrize("handle", ["", "nonsense", "%%%", "djE="])
async def test_what_is_no_handle_is_refused(producer, handle):
    with pytest.raises(RecallRefused, match="recall handle is invalid"):
        await producer.cancel(handle)


@pytest.mark.parametrize("handle", [None, b"djE=", 5])
async def test_a_result_without_a_handle_cancels_nothing(producer, handle):
    with pytest.raises(UsageError, match="only messages that wait"):
        await producer.cancel(handle)


async def test_handles_of_other_topics_and_brokers_are_refused(cluster, producer):
    handle = decode_handle((await producer.send(Message("orders", b"hello", delay=60))).recall_handle)
    with pytest.raises(TopicNotFound, match="unknown"):
        await producer.cancel(handle._replace(topic="unknown").encode())
    with pytest.raises(Unavailable, match="broker 'broker-z' is not in the route of topic 'orders'"):
        await producer.cancel(handle._replace(broker_name="broker-z").encode())
    await producer.send(Message("foreign", b"hello"))
    with pytest.raises(RecallRefused, match="waits in topic foreign"):
        await producer.cancel(handle._replace(topic="foreign").encode())
    await producer.cancel(handle.encode())


async def test_a_broker_that_does_not_cancel_says_so(cluster, producer):
    handle = (await producer.send(Message("orders", b"hello", delay=60))).recall_handle
    cluster.broker.config.recall = False
    with pytest.raises(Exception, match="recallMessageEnable"):
        await producer.cancel(handle)


async def test_a_producer_cancels_only_while_it_runs(cluster):
    producer = await cluster.producer()
    handle = (await producer.send(Message("orders", b"hello", delay=60))).recall_handle
    await producer.close()
    with pytest.raises(NotRunning):
        await producer.cancel(handle)


def test_the_blocking_producer_cancels_too(served):
    with Producer("p", served.namesrv) as producer:
        result = producer.send(Message("blocking", b"no", delay=timedelta(seconds=5)))
        soon = producer.send_soon(Message("blocking", b"no", deliver_at=served.cluster.clock.now_ms() + 5000)).result()
        producer.send(Message("blocking", b"yes", delay=5))
        assert producer.cancel(result.recall_handle) == result.message_id
        assert producer.cancel(soon.recall_handle) == soon.message_id
        with pytest.raises(RecallRefused):
            producer.cancel(soon.recall_handle)
        with pytest.raises(UsageError):
            producer.cancel(None)
    served.do(served.cluster.clock.advance(10))
    assert served.do(bodies(served.cluster, "blocking")) == [b"yes"]


# -- counting and listing


async def test_counts_are_by_topic_and_over_all_brokers():
    async with Cluster(brokers=2) as cluster, AsyncDelayedMessages(cluster.namesrv) as delayed_messages:
        producer = await cluster.producer()
        assert await delayed_messages.counts() == {}
        for number in range(8):
            await producer.send(Message("orders", b"%d" % number, delay=60 + number))
        await producer.send(Message("payments", b"x", delay=5))
        assert await delayed_messages.counts() == {"orders": 8, "payments": 1}
        found = await waiting(delayed_messages)
        assert {message.broker_name for message in found} == {"broker-a", "broker-b"}
        assert [message.due_ms for message in found] == sorted(message.due_ms for message in found)
        await cluster.clock.advance(5)
        assert await delayed_messages.counts() == {"orders": 8}


async def test_one_that_waits_is_listed_with_all_that_is_known(cluster, producer, delayed_messages):
    now = cluster.clock.now_ms()
    result = await producer.send(Message("orders", b"hello", tags="red", keys=["a", "b"], deliver_at=now + DAY_MS))
    (message,) = await waiting(delayed_messages)
    assert (message.topic, message.broker_name, message.queue_id) == result.queue
    assert (message.due_ms, message.sent_ms, message.size) == (now + DAY_MS, now, 5)
    assert (message.message_id, message.recall_handle) == (result.message_id, result.recall_handle)
    assert (message.tags, message.keys) == ("red", ["a", "b"])


async def test_pages_follow_each_other_in_order_of_delivery(producer, delayed_messages, monkeypatch):
    monkeypatch.setattr("pyromq.client.admin.messages.delayed_messages.PAGE", 3)
    for number in range(10):
        await producer.send(Message("orders", b"%d" % number, delay=1000 - (number % 5) * 100, keys=str(number)))
    found = await waiting(delayed_messages)
    assert [message.keys for message in found] == [[each] for each in "4938271605"]


async def test_a_list_may_begin_at_a_time(cluster, producer, delayed_messages):
    now = cluster.clock.now_ms()
    for days in (1, 2, 3):
        await producer.send(Message("orders", b"x", deliver_at=now + days * DAY_MS))
    found = await waiting(delayed_messages, begin_ms=now + 2 * DAY_MS)
    assert [message.due_ms for message in found] == [now + 2 * DAY_MS, now + 3 * DAY_MS]


async def test_what_is_listed_can_be_cancelled(producer, delayed_messages):
    await producer.send(Message("orders", b"x", delay=60))
    (message,) = await waiting(delayed_messages)
    assert await delayed_messages.cancel(message.recall_handle) == message.message_id
    assert await waiting(delayed_messages) == []
    with pytest.raises(RecallRefused):
        await delayed_messages.cancel(message.recall_handle)


async def test_nothing_waits_in_an_unknown_topic(delayed_messages):
    assert await waiting(delayed_messages, "unknown") == []


async def test_a_broker_that_knows_no_delays_is_named(java_broker):
    async with AsyncDelayedMessages(java_broker) as delayed_messages:
        with pytest.raises(CodeNotSupported, match=r"^broker java at 127"):
            await delayed_messages.counts()
        with pytest.raises(CodeNotSupported, match=r"^broker java at 127"):
            await waiting(delayed_messages)
