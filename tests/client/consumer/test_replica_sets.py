"""Consumers of a replica set: they read from a replica while there is no master, and go on at the new master."""

import asyncio
from collections import Counter

import pytest
from tests.client.replica_set import replica_set
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.cluster import replica_set_watch
from pyromq.client.cluster.replica_set_watch import FORMER_SECONDS
from pyromq.client.consumer import rebalance
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.message import Message, MessageQueue
from pyromq.testing import FakeClock

QUICK = {
    "consume_from": ConsumeFrom.FIRST,
    "retry_seconds": 0.05,
    "commit_seconds": 0.1,
    "auto_commit_seconds": 0.1,
    "long_poll_seconds": 2.0,
}
FEW = QUICK | {"pull_count": 1, "buffered_messages": 1}


@pytest.fixture
async def replicas(tmp_path, monkeypatch):
    monkeypatch.setattr(
        rebalance, "RETURN_SECONDS", PATIENCE_SECONDS
    )  # all members return, late if the machine is busy
    async with replica_set(tmp_path) as replicas:
        yield replicas


@pytest.fixture
async def producer(replicas):
    async with AsyncProducer("g", replicas.namesrv) as producer:
        yield producer


@pytest.fixture
async def pair(replicas, producer):
    """A master with 40 messages, and a replica with the same messages; yields both addresses."""
    old = await replicas.start()
    await replicas.register(old, epoch=1)
    await send(producer, range(40))
    new = await replicas.start(copy_of=0)
    await replicas.register(new, broker_id=2, epoch=1)
    return old, new


async def test_a_pull_that_the_master_held_is_not_held_again_by_the_next_one(replicas, producer):
    old = await replicas.start()
    await replicas.register(old, epoch=1)
    await send(producer, [1])
    new = await replicas.start(copy_of=0)
    async with AsyncPullConsumer("g", replicas.namesrv) as consumer:
        queue = (await consumer.queues("orders"))[0]
        end = await consumer.max_offset(queue)
        pulling = asyncio.ensure_future(consumer.pull(queue, end, wait_seconds=2 * PATIENCE_SECONDS))
        await until(lambda: replicas.brokers[0]._state.long_polls.parked)
        await replicas.register(new, epoch=2)
        replicas.kill(0)
        assert not (await asyncio.wait_for(pulling, PATIENCE_SECONDS)).messages


async def send(producer, numbers):
    for number in numbers:
        await producer.send(Message("orders", b"%d" % number), ordering_key=str(number % 2))


def bodies(numbers):
    return {b"%d" % number for number in numbers}


async def test_a_push_consumer_goes_on_at_a_replica_and_then_at_the_new_master(replicas, pair, producer):
    old, new = pair
    got, go_on = Counter(), asyncio.Event()

    async def take(messages):
        got.update(message.body for message in messages)
        if len(got) >= 10:
            await go_on.wait()

    consumer = AsyncConsumer("workers", replicas.namesrv, config=ConsumerConfig(**FEW, concurrency=2))
    consumer.subscribe("orders", take)
    async with consumer:
        await until(lambda: len(got) >= 10)
        replicas.kill(0)
        await replicas.unregister(old, epoch=1)
        go_on.set()
        await until(lambda: len(got) == 40)  # there is no master: the rest comes from the replica
        await replicas.register(new, epoch=2)
        await send(producer, range(40, 60))
        await until(lambda: len(got) == 60)
    assert {*got} == bodies(range(60))
    assert got.most_common(1)[0][1] == 1


async def test_a_pull_consumer_does_so_too(replicas, pair, producer):
    old, new = pair
    async with AsyncPullConsumer("workers", replicas.namesrv, config=ConsumerConfig(**FEW)) as consumer:
        consumer.subscribe("orders")
        got = []

        async def take(count):
            while len(got) < count:
                got.extend(message.body for message in await consumer.poll(0.5))

        await take(10)
        replicas.kill(0)
        await replicas.unregister(old, epoch=1)
        await take(40)
        await replicas.register(new, epoch=2)
        await send(producer, range(40, 60))
        await take(60)
    assert len(got) == 60
    assert {*got} == bodies(range(60))


async def is_committed_at_the_new_master(replicas):
    async with AsyncQueueReader("tools", replicas.namesrv) as reader:
        queues = [MessageQueue("orders", "broker-a", n) for n in range(2)]
        while sum((each or 0) for each in (await reader.committed(queues, "workers")).values()) < 40:
            await asyncio.sleep(0.02)


async def test_a_push_consumer_commits_again_at_a_new_master(replicas, pair):
    got = []

    async def take(messages):
        got.extend(message.body for message in messages)

    consumer = AsyncConsumer("workers", replicas.namesrv, config=ConsumerConfig(**QUICK))
    consumer.subscribe("orders", take)
    async with consumer:
        await until(lambda: len(got) == 40)
        await asyncio.sleep(0.2)  # committed at the old master, of which the new one knows nothing
        replicas.kill(0)
        await replicas.register(pair[1], epoch=2)
        await asyncio.wait_for(is_committed_at_the_new_master(replicas), PATIENCE_SECONDS)
    assert len(got) == 40


async def test_a_pull_consumer_commits_again_at_a_new_master(replicas, pair):
    async with AsyncPullConsumer("workers", replicas.namesrv, config=ConsumerConfig(**QUICK)) as consumer:
        await consumer.assign([MessageQueue("orders", "broker-a", n) for n in range(2)])
        got = []
        while len(got) < 40:
            got.extend(await consumer.poll(0.5))
        await consumer.commit()
        replicas.kill(0)
        await replicas.register(pair[1], epoch=2)
        committed = asyncio.ensure_future(is_committed_at_the_new_master(replicas))
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not committed.done():
                got.extend(await consumer.poll(0.05))
            await committed
    assert len(got) == 40


async def test_orderly_members_keep_their_queues_and_the_order_at_a_new_master(replicas, pair, producer):
    new = pair[1]
    got, members = [], {}

    def taking(name):
        async def take(messages):
            for message in messages:
                members.setdefault(name, set()).add(message.queue_id)
                got.append((message.queue_id, int(message.body)))
                await asyncio.sleep(0.002)

        return take

    consumers = []
    for name in ("one", "two"):
        config = ConsumerConfig(**QUICK, orderly=True, instance=name)
        consumers.append(AsyncConsumer("workers", replicas.namesrv, config=config))
        consumers[-1].subscribe("orders", taking(name))
    async with consumers[0], consumers[1]:
        await until(lambda: len(got) >= 40 and len(consumers[0].assignment) == len(consumers[1].assignment) == 1)
        shares = [consumer.assignment for consumer in consumers]
        members.clear()
        changes = []
        watch = asyncio.ensure_future(note_changes(consumers, shares, changes))
        replicas.kill(0)
        await asyncio.sleep(0.2)
        await replicas.register(new, epoch=2)
        await send(producer, range(40, 80))
        await until(lambda: {number for _, number in got} == {*range(80)})
        watch.cancel()
    for queue_id in (0, 1):
        numbers = [number for queue, number in got if queue == queue_id]
        firsts = sorted(set(numbers), key=numbers.index)
        assert firsts == sorted(firsts)
    assert all(len(queues) == 1 for queues in members.values())
    assert not changes


async def note_changes(consumers, shares, changes):
    while True:
        for consumer, share in zip(consumers, shares, strict=True):
            if set(consumer.assignment) - set(share):
                changes.append(consumer.assignment)
        await asyncio.sleep(0.005)


async def test_a_new_master_that_knows_some_members_only_moves_no_queue(replicas, pair, tmp_path):
    consumers = []
    async with replica_set(tmp_path / "other") as behind:  # the second member's name server hears of nothing
        await behind.register(pair[0], epoch=1)
        for name, namesrv in (("one", replicas.namesrv), ("two", behind.namesrv)):
            config = ConsumerConfig(**QUICK, instance=name, rebalance_seconds=0.05)
            consumers.append(AsyncConsumer("workers", namesrv, config=config))
            consumers[-1].subscribe("orders", lambda messages: None)
        async with consumers[0], consumers[1]:
            await until(lambda: len(consumers[0].assignment) == len(consumers[1].assignment) == 1)
            shares, changes = [consumer.assignment for consumer in consumers], []
            third = await replicas.start(copy_of=0)
            watch = asyncio.ensure_future(note_changes(consumers, shares, changes))
            replicas.kill(0)
            await replicas.register(third, epoch=2)
            await asyncio.sleep(1.0)
            await behind.register(third, epoch=2)
            await asyncio.sleep(1.5)
            watch.cancel()
    assert not changes


@pytest.mark.parametrize("kind", ["push", "pull"])
async def test_a_replica_that_is_behind_takes_no_consumer_back(replicas, pair, producer, kind):
    old, _ = pair
    got = []

    async def take(messages):
        got.extend(message.body for message in messages)

    consumer = (AsyncConsumer if kind == "push" else AsyncPullConsumer)(
        "workers", replicas.namesrv, config=ConsumerConfig(**QUICK | {"long_poll_seconds": 0.05})
    )
    consumer.subscribe("orders", *([take] if kind == "push" else []))

    async def poll_until(condition):
        async with asyncio.timeout(60):
            while not condition():
                await (take(await consumer.poll(0.05)) if kind == "pull" else asyncio.sleep(0.01))

    async with consumer:
        await send(producer, range(40, 60))  # the replica has 40 of 60 messages
        await poll_until(lambda: len(got) == 60)
        complete = await replicas.start(copy_of=0)
        replicas.kill(0)
        await replicas.unregister(old, epoch=1)
        end = asyncio.get_running_loop().time() + 0.5
        await poll_until(lambda: asyncio.get_running_loop().time() > end)
        await replicas.register(complete, epoch=2)
        await send(producer, range(60, 70))
        await poll_until(lambda: b"69" in got and b"68" in got)
    assert len(got) == 70
    assert {*got} == bodies(range(70))


async def test_a_pull_held_by_a_silent_master_is_repeated_at_its_successor(replicas, producer, monkeypatch):
    monkeypatch.setattr(replica_set_watch, "REFRESH_SECONDS", 0.5)
    old = await replicas.start(linked=True)
    await replicas.register(old, epoch=1)
    await send(producer, range(2))
    new = await replicas.start(copy_of=0)
    got = []

    async def take(messages):
        got.extend(message.body for message in messages)

    config = ConsumerConfig(**QUICK | {"long_poll_seconds": 2.0 * PATIENCE_SECONDS})
    consumer = AsyncConsumer("workers", replicas.namesrv, config=config)
    consumer.subscribe("orders", take)
    async with consumer:
        await until(lambda: len(got) == 2)
        replicas.links[0].requests.pause()
        replicas.links[0].answers.pause()
        await replicas.register(new, epoch=2)
        await send(producer, range(2, 6))
        await until(lambda: len(got) == 6)
    replicas.links[0].requests.resume()
    replicas.links[0].answers.resume()


async def test_a_message_is_found_by_the_offset_id_of_a_dead_master(replicas, producer):
    old = await replicas.start()
    await replicas.register(old, epoch=1)
    sent = await producer.send(Message("orders", b"1"))
    new = await replicas.start(copy_of=0)
    replicas.kill(0)
    await replicas.register(new, epoch=2)
    async with AsyncAdmin(replicas.namesrv) as admin:
        found = await admin.view(sent.offset_message_id.lower())
    assert (found.body, found.broker_name) == (b"1", "broker-a")


async def test_an_orderly_consumer_locks_its_queues_at_a_new_master_at_once(replicas, pair):
    clock = FakeClock()
    config = ConsumerConfig(**QUICK, orderly=True, route_refresh_seconds=0.05)
    consumer = AsyncConsumer("workers", replicas.namesrv, config=config, clock=clock)
    consumer.subscribe("orders", lambda messages: None)
    async with consumer:
        await until(lambda: len(consumer.assignment) == 2)
        await replicas.register(pair[1], epoch=2)
        await clock.advance(FORMER_SECONDS)  # the route is refreshed; the former master keeps its connections
        await until(lambda: len(replicas.brokers[1].queue_locks.holders("workers")) == 2)
