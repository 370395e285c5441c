"""Whatever comes out of a listener, of any kind, fails its message and nothing else; who exits ends the consumer."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.waiting import until

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.push.listener import RetryLater
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import Message

KINDS = pytest.mark.parametrize(
    ("orderly", "in_task"),
    [(False, False), (False, True), (True, False), (True, True)],
    ids=["concurrent", "concurrent async", "orderly", "orderly async"],
)


class Alien(BaseException):
    """Neither an `Exception` nor one of those that end programs."""


class Mute(Exception):
    def __str__(self):
        raise ValueError("no text")


class Unwritable:
    def __repr__(self):
        raise ValueError("no text")


class Unfinished(RetryLater):
    def __init__(self):
        pass


FAILURES = [
    Alien("x"),
    GeneratorExit(),
    StopIteration(),
    StopAsyncIteration(),
    asyncio.CancelledError(),
    MemoryError(),
    Mute(),
    ExceptionGroup("several", [Mute()]),
    Unfinished(),
    RetryLater(done="one"),
    RetryLater(delay_level="soon"),
    RetryLater(seconds="now"),
    RetryLater(seconds=float("nan")),
]


@asynccontextmanager
async def consuming(cluster, listener, *, in_task, **config):
    async def wait_for_it(messages):
        return listener(messages)

    settings = ConsumerConfig(commit_seconds=0.01, suspend_seconds=0.01, concurrency=1, **config)
    consumer = AsyncConsumer("workers", cluster.namesrv, config=settings)
    consumer.subscribe("orders", wait_for_it if in_task else listener)
    async with consumer:
        yield consumer


async def send(cluster, *bodies):
    producer = await cluster.producer()
    return [await producer.send(Message("orders", body), ordering_key="k") for body in bodies]


@KINDS
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
async def test_what_a_listener_raises_fails_its_message_and_no_other(cluster, orderly, in_task, failure):
    (first, *_) = await send(cluster, b"bad", b"good", b"good too")
    bodies = []

    def work(messages):
        bodies.append(messages[0].body)
        if bodies == [b"bad"]:
            raise failure

    async with consuming(cluster, work, in_task=in_task, orderly=orderly) as consumer:
        await until(lambda: len(bodies) >= (4 if orderly else 3))
        await until(lambda: consumer._assigned[first.queue].safe_offset == 3)
        if not orderly:
            await cluster.clock.advance(11)  # it was sent back, and comes again
            await until(lambda: len(bodies) == 4)
    expected = [b"bad", b"bad", b"good", b"good too"] if orderly else [b"bad", b"good", b"good too", b"bad"]
    assert bodies == expected


@KINDS
async def test_a_listener_that_empties_its_list_loses_no_message(cluster, orderly, in_task):
    (first, *_) = await send(cluster, b"1", b"2", b"3")
    bodies = []

    def work(messages):
        while messages:
            bodies.append(messages.pop(0).body)
            if len(bodies) == 1:
                raise ValueError("not yet")

    async with consuming(cluster, work, in_task=in_task, orderly=orderly) as consumer:
        await until(lambda: len(bodies) >= (4 if orderly else 3))
        await until(lambda: consumer._assigned[first.queue].safe_offset == 3)
        assert consumer._assigned[first.queue].count == 0
        if not orderly:
            await cluster.clock.advance(11)  # the first message was sent back
            await until(lambda: len(bodies) == 4)
    assert sorted(bodies) == [b"1", b"1", b"2", b"3"]


@KINDS
async def test_what_a_listener_returns_and_cannot_be_written_fails_its_message(cluster, orderly, in_task, caplog):
    (first, *_) = await send(cluster, b"bad", b"good")
    bodies = []

    def work(messages):
        bodies.append(messages[0].body)
        return Unwritable() if bodies == [b"bad"] else None

    async with consuming(cluster, work, in_task=in_task, orderly=orderly) as consumer:
        await until(lambda: bodies[-1:] == [b"good"])
        await until(lambda: consumer._assigned[first.queue].safe_offset == 2)
    assert "the listener returned an Unwritable" in caplog.text


@KINDS
@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt()], ids=["SystemExit", "KeyboardInterrupt"])
async def test_a_listener_that_exits_ends_who_waits_and_its_message_comes_again(cluster, orderly, in_task, failure):
    await send(cluster, b"done", b"exits")
    bodies = []

    def work(messages):
        bodies.append(messages[0].body)
        if messages[0].body == b"exits":
            raise failure

    async def consume():
        async with consuming(cluster, work, in_task=in_task, orderly=orderly) as consumer:
            return await consumer.ended()

    assert await consume() is failure
    bodies.clear()
    async with consuming(cluster, bodies.extend, in_task=False, orderly=orderly):
        if not orderly:
            await cluster.clock.advance(11)
        await until(lambda: bodies)
    assert [message.body for message in bodies] == [b"exits"]


async def test_an_async_listener_that_hides_its_cancellation_leaves_the_next_ones_theirs(cluster, caplog):
    (sent, *_) = await send(cluster, b"hides", b"cancels itself", b"good")
    bodies = []

    async def work(messages):
        bodies.append(messages[0].body)
        if messages[0].body == b"hides":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                pass
        elif messages[0].body == b"cancels itself":
            raise asyncio.CancelledError

    settings = ConsumerConfig(concurrency=1, consume_timeout_seconds=0.3)
    consumer = AsyncConsumer("workers", cluster.namesrv, config=settings)
    consumer.subscribe("orders", work)
    async with consumer:
        await until(lambda: bodies == [b"hides", b"cancels itself", b"good"])
        await until(lambda: consumer._assigned[sent.queue].safe_offset == 3)
    assert "offset 1 (message" in caplog.text
    assert "attempt 1): CancelledError" in caplog.text
