"""Taking a queue, where order is kept, and what may go wrong between its lock and its first message."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.assignment import ACQUIRE_SECONDS, QueueLockClient
from pyromq.client.consumer.push.process_queue import OPEN
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.errors import DeadlineExceeded
from pyromq.message import Message
from pyromq.testing import FakeClock


@pytest.fixture
async def queue(cluster):
    """A queue with a message."""
    producer = await cluster.producer()
    return (await producer.send(Message("orders", b"1"))).queue


@pytest.fixture
async def another(cluster):
    """The locks of another client of the group."""
    producer = await cluster.producer()
    await producer.queues("orders")
    return QueueLockClient("workers", producer._cluster)


@asynccontextmanager
async def taking(cluster, start, seen):
    """A consumer that is about to take queues: `start(asked, queue)` is called where it asks for their offsets."""
    config = ConsumerConfig(orderly=True, consume_from=ConsumeFrom.FIRST)
    consumer = AsyncConsumer("workers", cluster.namesrv, config=config)
    consumer.subscribe("orders", seen.extend)
    offsets = consumer._assignment._offsets
    asked = offsets.start
    offsets.start = lambda queue: start(asked, queue)
    async with consumer:
        yield consumer


async def test_a_lock_whose_connection_broke_while_a_queue_was_taken_is_worth_nothing(cluster, queue, another, until):
    seen, moved = [], asyncio.Event()

    async def broken(asked, asked_queue):
        if asked_queue == queue and not moved.is_set():
            for channel in consumer._cluster._pool.channels().values():
                channel.cut()
            while not (await another.lock([queue]))[queue]:
                await cluster.clock.advance(0.1)
            moved.set()
        return await asked(asked_queue)

    async with taking(cluster, broken, seen) as consumer:
        await until(moved.is_set)
        await until(lambda: queue in consumer._assignment.queues._refused)
        assert queue not in consumer.assignment
        assert not seen
        await another.unlock([queue])
        await until(lambda: seen)


async def test_a_queue_that_cannot_be_taken_is_left_to_others(cluster, queue, another, until):
    failed = asyncio.Event()

    async def failing(asked, asked_queue):
        if asked_queue == queue:
            failed.set()
            raise DeadlineExceeded("no answer")
        return await asked(asked_queue)

    async with taking(cluster, failing, []) as consumer:
        await until(failed.is_set)
        await until(lambda: consumer.assignment)  # of the other queues
        # Between two tries it has the lock itself; without time passing, none expires.
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not (await another.lock([queue]))[queue]:
                await asyncio.sleep(0.005)


async def test_closing_while_a_queue_is_taken_gives_its_lock_back(cluster, queue, another, until):
    begun = asyncio.Event()

    async def waiting(asked, asked_queue):
        begun.set()
        await asyncio.Event().wait()

    async with taking(cluster, waiting, []):
        await until(begun.is_set)
        assert not (await another.lock([queue]))[queue]
    assert (await another.lock([queue]))[queue]


async def test_a_queue_is_ours_when_its_messages_come_though_others_have_not_begun(cluster, queue, until):
    begun, go_on, seen = [], asyncio.Event(), []

    async def waiting(asked, asked_queue):
        if asked_queue != queue and asked_queue.topic == queue.topic:
            await go_on.wait()
        begun.append(asked_queue)
        return await asked(asked_queue)

    async with taking(cluster, waiting, seen) as consumer:
        await until(lambda: seen)
        assert consumer.assignment == [queue]
        consumer._assignment.reset({queue: 0})  # as an administrator may at any time
        await until(lambda: len(seen) == 2)
        moved = consumer._assigned[queue]
        go_on.set()
        await until(lambda: len(consumer.assignment) == 4)
        assert consumer._assigned[queue] is consumer._assignment.queues.held[queue] is moved


async def test_a_queue_that_its_former_owner_still_locks_is_waited_for(cluster, queue, another, until):
    clock = FakeClock()
    assert await another.lock([queue], timeout=PATIENCE_SECONDS) == {queue: True}
    consumer = AsyncConsumer("workers", cluster.namesrv, clock=clock)
    consumer.subscribe("orders", lambda messages: None)
    async with consumer:
        await until(lambda: consumer.assignment)
        await clock.advance(ACQUIRE_SECONDS - 0.1)
        assert len(consumer.assignment) == 3
        async with asyncio.timeout(PATIENCE_SECONDS):
            while queue not in consumer.assignment:
                await clock.advance(0.1)


@pytest.mark.parametrize(
    ("orderly", "is_late"),
    [(False, True), (True, True), (True, False)],
    ids=["during it", "during it, orderly", "before it, orderly"],
)
async def test_a_reset_around_a_revocation_counts_for_the_next_owner(cluster, send, consuming, until, orderly, is_late):
    (sent, *_) = await send(range(3), key="k")
    offsets, release = [], asyncio.Event()

    async def work(messages):
        offsets.append(messages[0].queue_offset)
        if offsets[-1] == 2:
            await release.wait()

    async with consuming(work, orderly=orderly, commit_seconds=3600) as consumer:
        await until(lambda: 2 in offsets)
        assigned = consumer._assigned[sent.queue]
        if not is_late:
            consumer._assignment.reset({sent.queue: 1})
        consumer.unsubscribe("orders")
        await until(lambda: assigned.state is not OPEN)
        if is_late:
            consumer._assignment.reset({sent.queue: 1})
        await until(lambda: sent.queue not in consumer.assignment)
        release.set()
        await until(lambda: not consumer._assignment.queues.held)
        assert not consumer._assignment._loops
        assert cluster.broker.offsets.find("workers", "orders", sent.queue.queue_id) == 1


async def test_a_reset_that_waits_for_a_listener_counts_when_the_consumer_closes(cluster, send, consuming, until):
    (sent, *_) = await send(range(3), key="k")
    offsets = []

    async def work(messages):
        offsets.append(messages[0].queue_offset)
        if offsets[-1] == 2:
            await asyncio.Event().wait()

    async with consuming(work, orderly=True, commit_seconds=3600, close_seconds=0.01) as consumer:
        await until(lambda: 2 in offsets)
        consumer._assignment.reset({sent.queue: 1})
    assert cluster.broker.offsets.find("workers", "orders", sent.queue.queue_id) == 1
