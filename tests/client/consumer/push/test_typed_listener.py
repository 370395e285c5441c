"""Listeners of values: bodies of JSON come as dataclasses, structs or models; what does not fit is a dead letter."""

import asyncio
from dataclasses import dataclass

import msgspec
import pytest

from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.push.listener import RetryLater
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.errors import TopicNotFound, UnfitBody, UsageError
from pyromq.message import Message


@dataclass
class Order:
    id: int
    items: list[str]


class OrderStruct(msgspec.Struct):
    id: int
    items: list[str]


BODIES = [b'{"id": 1, "items": ["tea"]}', b"{}", b'{"id": "two", "items": []}', b'{"id": 3, "items": []}']


@pytest.fixture
def consumer(cluster):
    def consumer(**config):
        config = {"consume_from": ConsumeFrom.FIRST, "commit_seconds": 0.01, "retry_seconds": 0.01} | config
        return AsyncConsumer("workers", cluster.namesrv, config=ConsumerConfig(**config))

    return consumer


@pytest.fixture
async def sent(cluster):
    """Bodies in one queue, in order."""
    producer = await cluster.producer()
    for body in BODIES:
        await producer.send(Message("orders", body), ordering_key="k")
    return producer


async def reasons(cluster):
    """Wait for both dead letters; return reasons by body."""
    async with AsyncDeadLetters(cluster.namesrv) as letters, asyncio.timeout(30):
        while True:
            try:
                found = {letter.message.body: letter.reason async for letter in letters.letters("workers")}
            except TopicNotFound:  # nothing has failed yet
                found = {}
            if len(found) == 2:
                return found
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("batch", [1, 32])
@pytest.mark.parametrize("in_task", [False, True])
async def test_values_come_and_what_does_not_fit_is_a_dead_letter(
    cluster, sent, consumer, until, orderly, batch, in_task
):
    seen = []
    async with consumer(orderly=orderly, batch=batch) as consuming:
        if in_task:

            @consuming.subscribe("orders", type=Order)
            async def work(orders):
                seen.extend(orders)

        else:

            @consuming.subscribe("orders", type=Order)
            def work(orders):
                seen.extend(orders)

        await until(lambda: len(seen) == 2)
        assert await reasons(cluster) == {
            b"{}": "GiveUp: the body is no Order: Object missing required field `id`",
            b'{"id": "two", "items": []}': "GiveUp: the body is no Order: Expected `int`, got `str` - at `$.id`",
        }
    assert sorted(seen, key=lambda order: order.id) == [Order(1, ["tea"]), Order(3, [])]


@pytest.mark.parametrize("type_", [OrderStruct, dict[str, object]])
async def test_other_types(sent, consumer, until, type_):
    seen = []
    async with consumer() as consuming:
        consuming.subscribe("orders", type=type_)(seen.extend)
        await until(lambda: len(seen) >= 2)
    assert all(isinstance(value, OrderStruct | dict) for value in seen)


async def test_models_check_themselves(sent, consumer, until, cluster):
    pydantic = pytest.importorskip("pydantic")

    class Model(pydantic.BaseModel):
        id: int = pydantic.Field(gt=1)
        items: list[str]

    seen = []
    async with consumer() as consuming:
        consuming.subscribe("orders", type=Model)(seen.extend)
        await until(lambda: seen)
        await sent.send(Message("orders", b'{"id": 4, "items": []}'))
        await until(lambda: len(seen) == 2)
    assert seen == [Model(id=3, items=[]), Model(id=4, items=[])]


async def test_a_listener_of_its_own_takes_what_does_not_fit(sent, consumer, until):
    seen, unfit = [], []

    def look(messages):
        for message in messages:
            with pytest.raises(UnfitBody):
                message.json(Order)
            unfit.append(message.body)

    async with consumer() as consuming:
        consuming.subscribe("orders", type=Order, unfit=look)(seen.extend)
        await until(lambda: len(seen) == 2 and len(unfit) == 2)
    assert sorted(unfit) == sorted(BODIES[1:3])


async def test_a_failing_listener_sees_the_value_again(sent, consumer, until):
    attempts = []

    async def work(orders):
        attempts.append(orders[0].id)
        if attempts.count(3) == 1:
            raise RetryLater(seconds=0.01)

    async with consumer(orderly=True) as consuming:
        consuming.subscribe("orders", type=Order)(work)
        await until(lambda: attempts.count(3) == 2)


@pytest.mark.parametrize(("orderly", "said"), [(False, "; becomes a dead letter"), (True, ", now a dead letter")])
async def test_the_log_says_what_becomes_of_what_does_not_fit(sent, consumer, until, caplog, orderly, said):
    seen = []
    async with consumer(orderly=orderly) as consuming:
        consuming.subscribe("orders", type=Order)(seen.extend)
        await until(lambda: len(seen) == 2 and caplog.text.count(said) == 2)
    assert "repeated in place" not in caplog.text


async def test_what_cannot_be_read_as_a_type_is_said_at_once(consumer):
    class Unknown:
        pass

    with pytest.raises(UsageError, match=r"bodies cannot be read as list.*Unknown.: Unknown is none that"):
        consumer().subscribe("orders", type=list[Unknown])(print)
    with pytest.raises(UsageError, match=r"a listener of .*Order'> is a function of \(values\), not 5"):
        consumer().subscribe("orders", type=Order)(5)
    with pytest.raises(UsageError, match="unfit=<built-in function print> is for bodies that do not fit type="):
        consumer().subscribe("orders", print, unfit=print)
