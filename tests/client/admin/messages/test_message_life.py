"""The life of a message: one story from all its copies, whichever copy is asked about, in the order of events."""

import pytest
from tests.client.admin.messages.test_dead_letters import collect, die, receive

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters
from pyromq.client.admin.messages.message_life import LifeEvent, _order, sent_to
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.errors import QueryNotFound
from pyromq.message import Message


@pytest.fixture
async def admin(cluster):
    async with AsyncAdmin(cluster.namesrv) as admin:
        yield admin


@pytest.fixture
async def died(cluster):
    (message_id,) = await die(cluster, [Message("orders", b"no such customer")])
    return message_id


async def redriven(cluster):
    async with AsyncDeadLetters(cluster.namesrv, clock=cluster.clock) as dead_letters:
        await collect(dead_letters.redrive("billing"))


def told(life):
    return [(event.what, event.who) for event in life]


@pytest.mark.parametrize("topic", ["orders", "%DLQ%billing", None])
async def test_a_life_is_the_same_from_every_copy(admin, died, topic):
    life = await admin.message_life(died, topic)
    assert told(life) == [("stored", "broker-a"), ("dead letter", "billing")]
    assert [event.record.topic for event in life] == ["orders", "%DLQ%billing"]


async def test_a_redriven_message_goes_on_living(cluster, admin, died):
    await cluster.clock.advance(1)
    await redriven(cluster)
    life = await admin.message_life(died, "orders")
    assert told(life)[1:3] == [("dead letter", "billing"), ("redriven", "billing")]
    await receive(cluster)
    life = await admin.message_life(died, "%DLQ%billing")
    assert life[-1].what in ("passed", "not yet")


async def test_a_dead_letter_outlives_its_topic(admin, died):
    await admin.delete_topic("orders")
    life = await admin.message_life(died, "%DLQ%billing")
    assert ("dead letter", "billing") in told(life)


async def test_an_id_without_a_message_is_not_found_in_a_dead_letter_topic(admin, died):
    with pytest.raises(QueryNotFound):
        await admin.message_life("7F" * 16, "%DLQ%billing")


def test_events_of_one_millisecond_are_in_the_order_of_a_life():
    words = ("sent", "stored", "delivered", "failed", "dead letter", "redriven")
    events = [LifeEvent(5, word, "x") for word in words[:-1]] + [LifeEvent(6, "redriven", "x")]
    assert [each.what for each in sorted(reversed(events), key=_order)] == list(words)


async def test_a_popped_message_is_in_flight_then_comes_again_then_is_consumed(cluster, admin):
    await admin.create_topic("parcels", 1)
    producer = await cluster.producer()
    (first, second) = [(await producer.send(Message("parcels", b"x"))).message_id for _ in range(2)]
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    worker = await cluster.simple_consumer("post", config=config)
    worker.subscribe("parcels")
    received = await worker.receive(2, wait_seconds=5, invisible_seconds=10)
    life = await admin.message_life(second, "parcels")
    assert (life[-1].what, life[-1].detail) == ("not yet", "1 message is before it; in its queue 2 are in flight")
    await worker.ack(received[1])
    await cluster.clock.advance(11)
    for topic in ("parcels", None):
        life = await admin.message_life(first, topic)
        assert told(life) == [("stored", "broker-a"), ("sent back", "post")]
        assert life[-1].detail == "attempt 2 to come"
    assert sent_to(life[-1].record) == ("parcels", "post")
    (again,) = await worker.receive(1, wait_seconds=5)
    await worker.ack(again)
    assert told(await admin.message_life(first, "parcels"))[-1] == ("passed", "post")
    assert told(await admin.message_life(second, "parcels"))[-1] == ("passed", "post")
