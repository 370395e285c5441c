"""Undecided half messages, as an administrator sees them and decides on them."""

import pytest

from pyromq import AsyncTransactionProducer, Decision, Message
from pyromq.client.admin.messages.undecided_transactions import PAGE, AsyncHalfMessages
from pyromq.errors import BrokerError, CodeNotSupported, QueryNotFound, UsageError
from pyromq.testing import Cluster


@pytest.fixture
async def half_messages(cluster):
    async with AsyncHalfMessages(cluster.namesrv) as half_messages:
        yield half_messages


@pytest.fixture
async def send_half(cluster):
    """Send a half message of a group that is gone afterwards."""

    async def send(body, *, group="p", topic="orders", **fields):
        async with AsyncTransactionProducer(group, cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
            return await producer.send_half(Message(topic, body, **fields))

    return send


async def undecided(half_messages, *choice):
    return [half async for half in half_messages.undecided(*choice)]


async def visible(cluster, topic="orders"):
    consumer = await cluster.consumer("reader")
    results = [await consumer.pull(queue, 0) for queue in await consumer.queues(topic)]
    return sorted(message.body for result in results for message in result.messages)


async def test_nothing_is_undecided_at_first(half_messages):
    assert await undecided(half_messages) == []


async def test_an_undecided_one_is_listed_with_where_it_comes_from_and_goes_to(cluster, half_messages, send_half):
    sent = await send_half(b"hello", tags="paid", keys=["7", "8"])

    (half,) = await undecided(half_messages)

    assert (half.message_id, half.offset_message_id) == (sent.message_id, sent.offset_message_id)
    assert (half.producer_group, half.topic, half.queue_id) == ("p", "orders", sent.queue.queue_id)
    assert (half.broker_name, half.checks, half.size) == ("broker-a", 0, 5)
    assert (half.tags, half.keys) == ("paid", ["7", "8"])
    assert (await half_messages.content(half)).body == b"hello"


async def test_the_list_may_be_of_one_group_or_topic(half_messages, send_half):
    await send_half(b"1", group="p")
    await send_half(b"2", group="q")
    await send_half(b"3", group="q", topic="invoices")

    assert [half.producer_group for half in await undecided(half_messages, "p")] == ["p"]
    assert [half.topic for half in await undecided(half_messages, "q", "invoices")] == ["invoices"]


async def test_a_long_list_comes_in_pages(cluster, half_messages):
    async with AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
        sent = [await producer.send_half(Message("orders", b"%d" % number)) for number in range(PAGE + 1)]
    assert [half.message_id for half in await undecided(half_messages)] == [each.message_id for each in sent]


async def test_all_brokers_are_asked(send_half):
    async with Cluster(brokers=2) as cluster, AsyncHalfMessages(cluster.namesrv) as half_messages:
        async with AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
            for number in range(8):
                await producer.send_half(Message("orders", b"%d" % number))
        assert {half.broker_name for half in await undecided(half_messages)} == {"broker-a", "broker-b"}


async def test_a_committed_one_is_seen_and_a_rolled_back_one_is_not(cluster, half_messages, send_half):
    first, second = await send_half(b"1"), await send_half(b"2")

    await half_messages.decide(await half_messages.find(first.message_id), Decision.COMMIT)
    await half_messages.decide(await half_messages.find(second.offset_message_id), Decision.ROLLBACK)

    assert await visible(cluster) == [b"1"]
    assert await undecided(half_messages) == []


async def test_one_that_was_checked_after_it_was_found_can_still_be_decided(send_half):
    async with Cluster(transaction_check_interval_ms=500, transaction_timeout_ms=500) as cluster:
        async with (
            AsyncHalfMessages(cluster.namesrv) as half_messages,
            AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer,
        ):
            sent = await producer.send_half(Message("orders", b"1"))
            before = await half_messages.find(sent.message_id)
            await cluster.clock.advance(1.1)
            after = await half_messages.find(sent.message_id)
            assert await half_messages.find(before.offset_message_id) == after
            await half_messages.decide(before, Decision.COMMIT)
        assert before.checks == 0 < after.checks
        assert before.offset_message_id != after.offset_message_id
        assert await visible(cluster) == [b"1"]


async def test_what_somebody_else_decided_is_refused(cluster, half_messages, send_half):
    sent = await send_half(b"1")
    half = await half_messages.find(sent.message_id)
    await half_messages.decide(half, Decision.ROLLBACK)

    with pytest.raises(BrokerError, match="decided already"):
        await half_messages.decide(half, Decision.COMMIT)
    with pytest.raises(QueryNotFound, match=f"no undecided half message has id {sent.message_id}"):
        await half_messages.find(sent.message_id)
    assert await visible(cluster) == []


async def test_no_decision_is_none(half_messages, send_half):
    sent = await send_half(b"1")
    with pytest.raises(UsageError, match="COMMIT or ROLLBACK"):
        await half_messages.decide(await half_messages.find(sent.message_id), Decision.UNKNOWN)


async def test_two_with_one_id_are_told_apart_by_their_offset_ids(cluster, half_messages):
    async with AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
        first = await producer.send_half(Message("orders", b"1"))
        second = await producer.send_half(Message("orders", b"2", message_id=first.message_id))
    with pytest.raises(UsageError, match=f"2 half messages have id {first.message_id}"):
        await half_messages.find(first.message_id)
    assert (await half_messages.find(second.offset_message_id)).offset_message_id == second.offset_message_id


async def test_a_broker_that_does_not_list_them_is_named(java_broker):
    async with AsyncHalfMessages(java_broker) as half_messages:
        with pytest.raises(CodeNotSupported, match=r"^broker java at 127"):
            await undecided(half_messages)
