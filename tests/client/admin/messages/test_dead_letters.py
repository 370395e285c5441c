"""Dead letters of a real group: found by what they are, explained, and sent again once each."""

import asyncio
import time
from contextlib import aclosing

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.admin.messages.dead_letters import (
    REDRIVEN_FROM,
    AsyncDeadLetters,
    DeadLetterCount,
    DeadLetterFilter,
    Fate,
    RedriveOrder,
)
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.push.listener import GiveUp
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.errors import IllegalName, QueryNotFound, UsageError
from pyromq.message import Message
from pyromq.remoting.bodies import GroupConfig

GROUP = "billing"
FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture
async def dead_letters(cluster):
    async with AsyncDeadLetters(cluster.namesrv) as dead_letters:
        yield dead_letters


async def die(cluster, messages, group=GROUP):
    """Let a member of the group give up on each message; the body is the reason."""
    producer, died = await cluster.producer(), 0
    done = asyncio.Event()

    async def give_up(batch):
        nonlocal died
        died += 1
        if died == len(messages):
            done.set()
        raise GiveUp(batch[0].body.decode())

    results = [await producer.send(message) for message in messages]
    consumer = AsyncConsumer(group, cluster.namesrv)
    for topic in {message.topic for message in messages}:
        consumer.subscribe(topic, give_up)
    async with consumer:
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)
    return [result.message_id for result in results]


async def collect(generator):
    async with aclosing(generator) as items:
        return [item async for item in items]


async def receive(cluster, topic="orders", group=GROUP, count=1):
    """Return the first messages that a healthy member of the group gets."""
    got, done = [], asyncio.Event()

    async def listen(batch):
        got.extend(batch)
        if len(got) >= count:
            done.set()

    consumer = AsyncConsumer(group, cluster.namesrv)
    consumer.subscribe(topic, listen)
    async with consumer:
        await asyncio.wait_for(done.wait(), PATIENCE_SECONDS)
    return got


async def test_a_dead_letter_tells_where_it_comes_from_and_why_it_died(cluster, dead_letters):
    (message_id,) = await die(cluster, [Message("orders", b"no such customer", tags="paid", keys="7")])

    (letter,) = await collect(dead_letters.letters(GROUP))

    assert letter.message.message_id == message_id
    assert (letter.original_topic, letter.reason) == ("orders", "GiveUp: no such customer")
    assert (letter.message.body, letter.message.tags, letter.message.keys) == (b"no such customer", "paid", ["7"])


async def test_a_group_without_dead_letters_has_none(dead_letters):
    assert await collect(dead_letters.letters("nobody")) == []


async def test_an_illegal_group_is_refused(dead_letters):
    with pytest.raises(IllegalName):
        await collect(dead_letters.letters("a b"))


async def test_groups_with_dead_letters_are_counted(cluster, dead_letters):
    await die(cluster, [Message("orders", b"1"), Message("orders", b"2")])
    await die(cluster, [Message("returns", b"3")], group="shipping")

    assert await dead_letters.counts() == [DeadLetterCount("billing", 2), DeadLetterCount("shipping", 1)]


@pytest.mark.parametrize(
    ("wanted", "bodies"),
    [
        (DeadLetterFilter(), {b"Timeout", b"Key 1", b"Key 2"}),
        (DeadLetterFilter(topic="returns"), {b"Key 2"}),
        (DeadLetterFilter(tag="paid"), {b"Timeout"}),
        (DeadLetterFilter(key="two"), {b"Key 1"}),
        (DeadLetterFilter(reason="giveup: KEY"), {b"Key 1", b"Key 2"}),
        (DeadLetterFilter(reason="key", topic="orders"), {b"Key 1"}),
        (DeadLetterFilter(ids=frozenset({"0" * 32})), set()),
    ],
)
async def test_a_filter_chooses_dead_letters(cluster, dead_letters, wanted, bodies):
    await die(
        cluster,
        [
            Message("orders", b"Timeout", tags="paid"),
            Message("orders", b"Key 1", keys="one two"),
            Message("returns", b"Key 2"),
        ],
    )

    assert {letter.message.body for letter in await collect(dead_letters.letters(GROUP, wanted))} == bodies


async def test_a_filter_chooses_by_time_of_death(cluster, dead_letters):
    await die(cluster, [Message("orders", b"early")])
    await cluster.clock.advance(60)
    begin = cluster.clock.now_ms()
    await die(cluster, [Message("orders", b"late")])

    late = await collect(dead_letters.letters(GROUP, DeadLetterFilter(since_ms=begin)))
    early = await collect(dead_letters.letters(GROUP, DeadLetterFilter(until_ms=begin - 1)))

    assert [letter.message.body for letter in early + late] == [b"early", b"late"]


async def test_more_dead_letters_than_one_pull_brings_are_all_found(cluster, dead_letters):
    await die(cluster, [Message("orders", b"%d" % number) for number in range(70)])

    letters = await collect(dead_letters.letters(GROUP))

    assert sorted(int(letter.message.body) for letter in letters) == list(range(70))


async def test_one_dead_letter_is_found_by_either_id(cluster, dead_letters):
    (message_id,) = await die(cluster, [Message("orders", b"x")])

    by_unique_id = await dead_letters.find(GROUP, message_id)
    by_offset_id = await dead_letters.find(GROUP, by_unique_id.message.offset_message_id)

    assert by_unique_id.message.message_id == by_offset_id.message.message_id == message_id


async def test_what_is_no_dead_letter_of_the_group_is_not_found(cluster, dead_letters):
    await die(cluster, [Message("orders", b"x")])
    sent = await (await cluster.producer()).send(Message("orders", b"alive"))

    with pytest.raises(QueryNotFound, match="its topic is orders"):
        await dead_letters.find(GROUP, sent.offset_message_id)
    with pytest.raises(QueryNotFound, match="group billing has no dead letter"):
        await dead_letters.find(GROUP, "F" * 32)


async def test_a_redriven_message_reaches_its_group_as_it_was_with_no_attempts_counted(cluster, dead_letters):
    (message_id,) = await die(cluster, [Message("orders", b"x", tags="paid", keys="7", properties={"a": "b"}, flag=3)])

    (outcome,) = await collect(dead_letters.redrive(GROUP))
    (message,) = await receive(cluster)

    assert (outcome.fate, outcome.destination) == (Fate.SENT, "%RETRY%billing")
    assert (message.topic, message.message_id, message.body) == ("orders", message_id, b"x")
    assert (message.tags, message.keys, message.flag, message.reconsume_times) == ("paid", ["7"], 3, 0)
    assert message.properties["a"] == "b"
    assert "RETRY_REASON" not in message.properties


@pytest.fixture
async def popping(cluster):
    """A member of a group that pops, with one message that it has made a dead letter at its first attempt."""
    await (await cluster.producer()).send(Message("orders", b"x"))
    consumer = await cluster.simple_consumer("workers", config=FIRST)
    consumer.subscribe("orders")
    (message,) = await consumer.receive(wait_seconds=PATIENCE_SECONDS)
    await consumer.dead_letter(message, "no such customer")
    return consumer


async def test_a_redriven_message_reaches_a_group_that_pops(popping, dead_letters):
    (outcome,) = await collect(dead_letters.redrive("workers"))
    (message,) = await popping.receive(wait_seconds=PATIENCE_SECONDS)
    again = await collect(dead_letters.redrive("workers"))

    assert (outcome.fate, outcome.destination) == (Fate.SENT, "%RETRY%workers_orders")
    assert (message.topic, message.body, message.reconsume_times) == ("orders", b"x", 0)
    assert [outcome.fate for outcome in again] == [Fate.REDRIVEN_BEFORE]
    assert list(await dead_letters.redriven([outcome.letter])) == [outcome.letter.message.offset_message_id]


async def test_a_redriven_message_reaches_a_group_that_popped_before(cluster, dead_letters):
    admin, producer = await cluster.admin(), await cluster.producer()
    await admin.create_group(GroupConfig("workers", retry_max_times=1))
    await producer.send(Message("orders", b"x"))
    consumer = await cluster.simple_consumer("workers", config=FIRST)
    consumer.subscribe("orders")
    for _ in range(2):
        (message,) = await consumer.receive(wait_seconds=PATIENCE_SECONDS)
        await consumer.change_invisible_duration(message, 0)
    await until(lambda: cluster.broker.topics.find("%DLQ%workers") is not None)
    await consumer.close()

    (outcome,) = await collect(dead_letters.redrive("workers"))
    await admin.create_topic("copies", 1)
    (elsewhere,) = await collect(dead_letters.redrive("workers", order=RedriveOrder(to_topic="copies")))

    consumer = await cluster.simple_consumer("workers", config=FIRST)
    consumer.subscribe("orders")
    (message,) = await consumer.receive(wait_seconds=PATIENCE_SECONDS)
    assert (outcome.destination, message.body, message.reconsume_times) == ("%RETRY%workers_orders", b"x", 0)
    reader = await cluster.consumer()
    (copy,) = (await reader.pull(elsewhere.queue, elsewhere.queue_offset)).messages
    assert "1ST_POP_TIME" not in copy.properties  # its next group may pull


async def test_the_outcome_tells_where_the_copy_lies(cluster, dead_letters):
    await die(cluster, [Message("orders", b"x")])

    (outcome,) = await collect(dead_letters.redrive(GROUP))

    reader = await cluster.consumer()
    (copy,) = (await reader.pull(outcome.queue, outcome.queue_offset)).messages
    assert copy.properties[REDRIVEN_FROM] == outcome.letter.message.offset_message_id


async def test_a_second_redrive_passes_over_what_the_first_sent(cluster, dead_letters):
    await die(cluster, [Message("orders", b"1"), Message("orders", b"2")])

    first = await collect(dead_letters.redrive(GROUP, order=RedriveOrder(most=1)))
    second = await collect(dead_letters.redrive(GROUP))
    third = await collect(dead_letters.redrive(GROUP, order=RedriveOrder(again=True)))

    assert [outcome.fate for outcome in first] == [Fate.SENT]
    assert [outcome.fate for outcome in second] == [Fate.REDRIVEN_BEFORE, Fate.SENT]
    assert [outcome.fate for outcome in third] == [Fate.SENT, Fate.SENT]


async def test_a_message_that_dies_again_is_redriven_again(cluster, dead_letters):
    await die(cluster, [Message("orders", b"1")])
    await collect(dead_letters.redrive(GROUP))
    await fail_again(cluster)

    outcomes = await collect(dead_letters.redrive(GROUP))

    assert [outcome.fate for outcome in outcomes] == [Fate.REDRIVEN_BEFORE, Fate.SENT]


async def fail_again(cluster):
    died = asyncio.Event()

    async def give_up(batch):
        died.set()
        raise GiveUp("again")

    consumer = AsyncConsumer(GROUP, cluster.namesrv)
    consumer.subscribe("orders", give_up)
    async with consumer:
        await asyncio.wait_for(died.wait(), PATIENCE_SECONDS)


async def test_a_dry_run_sends_nothing(cluster, dead_letters):
    await die(cluster, [Message("orders", b"1")])

    for _ in range(2):
        (outcome,) = await collect(dead_letters.redrive(GROUP, order=RedriveOrder(dry_run=True)))
        assert (outcome.fate, outcome.destination, outcome.queue) == (Fate.WOULD_BE_SENT, "%RETRY%billing", None)


async def test_redriven_to_the_original_topic_every_group_gets_it(cluster, dead_letters):
    await die(cluster, [Message("orders", b"1")])
    await receive(cluster, group="others")

    (outcome,) = await collect(dead_letters.redrive(GROUP, order=RedriveOrder(to_origin=True)))
    (message,) = await receive(cluster, group="others")

    assert outcome.destination == "orders"
    assert (message.body, message.properties.get("RETRY_TOPIC")) == (b"1", None)


async def test_redriven_to_another_topic_it_can_be_read_there(cluster, dead_letters):
    await die(cluster, [Message("orders", b"1")])
    await (await cluster.admin()).create_topic("parked", queues=2)

    (outcome,) = await collect(dead_letters.redrive(GROUP, order=RedriveOrder(to_topic="parked")))

    reader = await cluster.consumer()
    (copy,) = (await reader.pull(outcome.queue, outcome.queue_offset)).messages
    assert (copy.topic, copy.body) == ("parked", b"1")
    found = await dead_letters.copies(outcome.letter, "parked")
    assert [each.offset_message_id for each in found] == [copy.offset_message_id]


async def test_a_copy_that_cannot_be_sent_is_an_outcome_and_does_not_stop_the_others(cluster, dead_letters):
    await die(cluster, [Message("orders", b"1"), Message("orders", b"2")])

    outcomes = await collect(dead_letters.redrive(GROUP, order=RedriveOrder(to_topic="nowhere")))

    assert [outcome.fate for outcome in outcomes] == [Fate.FAILED, Fate.FAILED]
    assert "nowhere" in str(outcomes[0].error)


async def test_redriving_keeps_the_rate(cluster, dead_letters):
    await die(cluster, [Message("orders", b"%d" % number) for number in range(3)])
    begin = time.monotonic()

    outcomes = await collect(dead_letters.redrive(GROUP, order=RedriveOrder(per_second=20)))

    assert [outcome.fate for outcome in outcomes] == [Fate.SENT] * 3
    assert time.monotonic() - begin > 0.1


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"to_origin": True, "to_topic": "parked"}, "not to both"),
        ({"to_topic": "a b"}, "illegal characters"),
        ({"most": 0}, "most=0"),
        ({"per_second": 0.0}, "per_second=0"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(settings, text):
    with pytest.raises(UsageError, match=text):
        RedriveOrder(**settings)
