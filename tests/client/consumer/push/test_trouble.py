"""Push consumers in trouble: servers go and come, topics change, clocks jump, many queues and members."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.allocation import averaging
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import Message
from pyromq.testing import Cluster, FakeClock


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_broker_that_was_gone_is_consumed_on(cluster, send, consuming, seen, orderly):
    await send(range(10))
    async with consuming(seen, orderly=orderly, commit_seconds=0.01):
        await seen.wait(10)
        await cluster.stop_broker()
        await asyncio.sleep(0.2)
        await cluster.start_broker()
        await send(range(10, 20))
        await seen.wait(20)
    assert sorted(set(seen.bodies)) == list(range(20))


async def test_a_killed_broker_loses_no_message(cluster, send, consuming, seen):
    await send(range(10))
    async with consuming(seen):
        await seen.wait(10)
        await cluster.kill_broker()
        await cluster.start_broker()
        await send(range(10, 20))
        await seen.wait(20)
    assert sorted(set(seen.bodies)) == list(range(20))


async def test_without_a_name_server_the_known_queues_are_consumed(cluster, send, consuming, seen):
    await send([0])
    producer = await cluster.producer()
    async with consuming(seen, route_refresh_seconds=0.02, rebalance_seconds=0.02):
        await producer.queues("orders")
        await seen.wait(1)
        await cluster.name_server.__aexit__(None, None, None)
        await asyncio.sleep(0.1)
        for n in range(1, 9):
            await producer.send(Message("orders", b"%d" % n))
        assert sorted(await seen.wait(9)) == list(range(9))
        await cluster.name_server.__aenter__()


async def test_the_wall_clock_may_jump(cluster, send, consuming, seen):
    await send([0])
    clock = FakeClock()
    async with consuming(seen, clock=clock):
        await seen.wait(1)
        clock.jump(-86_400)
        await send([1])
        await seen.wait(2)
        clock.jump(30 * 86_400)
        await send([2])
        assert await seen.wait(3) == [0, 1, 2]


async def test_added_queues_are_consumed(cluster, send, consuming, seen, until):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=2)
    async with consuming(seen, route_refresh_seconds=0.02) as consumer:
        await until(lambda: len(consumer.assignment) == 2)
        await admin.create_topic("orders", queues=6, replace=True)
        await until(lambda: len(consumer.assignment) == 6)
        producer = await cluster.producer("other")
        for n, queue in enumerate(await producer.queues("orders")):
            await producer.send(Message("orders", b"%d" % n), queue=queue)
        assert sorted(await seen.wait(6)) == list(range(6))


@pytest.mark.parametrize("count", [6, 1])
async def test_members_hear_of_other_queues_at_once(cluster, consuming, seen, until, count):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=2)
    async with consuming(seen) as consumer, cluster_reader(cluster) as reader:
        await until(lambda: len(consumer.assignment) == len(reader.assignment) == 2)
        await admin.create_topic("orders", queues=count, replace=True)
        await until(lambda: len(consumer.assignment) == len(reader.assignment) == count)


@asynccontextmanager
async def cluster_reader(cluster):
    async with AsyncPullConsumer("readers", cluster.namesrv) as reader:
        reader.subscribe("orders")
        yield reader


@pytest.mark.parametrize("exists", [True, False], ids=["added queues", "a topic made later"])
async def test_who_begins_at_the_end_misses_nothing_of_queues_that_come_later(
    cluster, send, consuming, seen, until, exists
):
    admin = await cluster.admin()
    if exists:
        await admin.create_topic("orders", queues=2)
        await send(range(100, 104))  # before its time
    config = {"consume_from": ConsumeFrom.LAST, "route_refresh_seconds": 3600, "rebalance_seconds": 0.02}
    async with consuming(seen, **config) as consumer:
        await until(lambda: len(consumer.assignment) == (2 if exists else 0))
        await (
            admin.alter_topic("orders", read_queues=6, write_queues=6)
            if exists
            else admin.create_topic("orders", queues=6)
        )
        producer = await cluster.producer("other")
        for n, queue in enumerate(await producer.queues("orders")):
            await producer.send(Message("orders", b"%d" % n), queue=queue)
        await consumer._cluster.refresh("orders")  # the consumer hears of them only now
        assert sorted(await seen.wait(6)) == list(range(6))


async def test_removed_queues_are_given_away(cluster, send, consuming, seen, until):
    admin = await cluster.admin()
    await admin.create_topic("orders", queues=6)
    async with consuming(seen, route_refresh_seconds=0.02) as consumer:
        await until(lambda: len(consumer.assignment) == 6)
        await admin.create_topic("orders", queues=2, replace=True)
        await until(lambda: len(consumer.assignment) == 2)
        await send(range(4))
        await seen.wait(4)


async def test_a_topic_deleted_and_made_again_is_consumed_from_its_beginning(
    cluster, send, consuming, seen, until, caplog
):
    await send(range(3), key="k")
    admin = await cluster.admin()
    async with consuming(seen, retry_seconds=0.02, long_poll_seconds=0.1, route_refresh_seconds=0.05):
        await seen.wait(3)
        await admin.delete_topic("orders")
        await cluster.clock.advance(1)  # the polls that wait at the broker end
        await until(lambda: "of orders at broker-a fails" in caplog.text)
        await cluster.clock.advance(1)
        await admin.create_topic("orders", queues=4)
        producer = await cluster.producer("anew")
        await producer.send(Message("orders", b"3"), ordering_key="k")
        assert (await seen.wait(4))[-1] == 3


async def test_two_groups_each_get_everything(send, consuming, new_seen):
    first, second = new_seen(), new_seen()
    await send(range(10))
    async with consuming(first, group="one"), consuming(second, group="two"):
        assert sorted(await first.wait(10)) == sorted(await second.wait(10)) == list(range(10))


async def test_an_offset_outside_the_queue_is_corrected_and_told(cluster, send, consuming, seen, caplog):
    (sent, *_) = await send(range(3), key="k")
    admin = await cluster.admin()
    await admin.commit_offset("workers", sent.queue, 500)
    async with consuming(seen) as consumer:
        await seen.wait(3)
        await send([3], key="k")
        assert sorted(await seen.wait(4)) == list(range(4))
        assert consumer._assigned[sent.queue].next_offset == 4
    assert "offset 500 of queue 3 of orders at broker-a is outside" in caplog.text
    assert "which has 0 to 3" in caplog.text


async def test_a_strategy_that_fails_leaves_the_queues_as_they_are(cluster, send, seen, until, caplog):
    broken = []

    def strategy(group, member, queues, members):
        if broken:
            raise KeyError("no such room")
        return averaging(group, member, queues, members)

    await send(range(4))
    consumer = AsyncConsumer("workers", cluster.namesrv, config=ConsumerConfig(strategy=strategy))
    consumer.subscribe("orders", seen)
    async with consumer:
        await until(lambda: len(consumer.assignment) == 4)
        broken.append(True)
        consumer.resume()
        await until(lambda: "rebalance failed" in caplog.text)
        assert len(consumer.assignment) == 4


async def test_a_slow_consumer_stops_pulling_and_goes_on(cluster, send, consuming, until):
    await send(range(64), key="k")
    release, bodies = asyncio.Event(), []

    async def work(messages):
        await release.wait()
        bodies.extend(messages)

    async with consuming(work, pull_count=8, buffered_messages=16, concurrency=2) as consumer:
        await until(lambda: any(assigned.full for assigned in consumer._assigned.values()))
        assert max(assigned.count for assigned in consumer._assigned.values()) <= 24
        release.set()
        await until(lambda: len(bodies) == 64)


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        ({"buffered_messages": 10}, 12),  # pulls bring four at a time: what one adds above the limit is allowed
        ({"buffered_bytes": 10}, 12),  # bodies of one byte each, at first
        ({"buffered_span": 10}, 12),
        ({"topic_buffered_messages": 20}, 8),  # of four or five queues together
        ({"topic_buffered_bytes": 20}, 8),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_every_limit_holds_and_lets_everything_through(send, consuming, until, limit, most):
    (sent, *_) = await send(range(100), key="k")
    release, bodies = asyncio.Event(), []

    async def work(messages):
        await release.wait()
        bodies.extend(int(message.body) for message in messages)

    async with consuming(work, pull_count=4, concurrency=1, **limit) as consumer:
        await until(lambda: sent.queue in consumer._assigned and consumer._assigned[sent.queue].full)
        for _ in range(10):  # answers of pulls that should not have been asked for
            await consumer._cluster.heartbeat()
        assert 4 <= consumer._assigned[sent.queue].count <= most
        release.set()
        await until(lambda: len(bodies) == 100)
    assert bodies == list(range(100))


async def test_a_queue_is_pulled_again_after_the_interval(cluster, send, consuming, until):
    clock = FakeClock()
    seen = []
    await send(range(64), key="k")
    async with consuming(seen.extend, clock=clock, pull_count=32, pull_interval_seconds=2.0) as consumer:
        await until(lambda: len(seen) == 32)
        for _ in range(10):  # answers of pulls that should not have been asked for
            await consumer._cluster.heartbeat()
        assert len(seen) == 32
        await clock.advance(2)
        await until(lambda: len(seen) == 64)


async def test_a_stuck_pull_is_begun_anew(cluster, send, consuming, until, caplog):
    clock = FakeClock()
    seen = []
    await send(range(4))
    async with consuming(seen.extend, clock=clock, long_poll_seconds=0.0) as consumer:
        await until(lambda: len(seen) == 4)
        loop = next(iter(consumer._assignment._loops.values()))
        loop.cancel()
        await clock.advance(200)
        await until(lambda: "were not pulled for a long time" in caplog.text)
        await send(range(4, 12))
        await until(lambda: len(seen) == 12)


@pytest.mark.slow
@pytest.mark.parametrize(("queues", "count"), [(200, 10), pytest.param(1000, 20, marks=pytest.mark.soak)])
async def test_many_queues_and_members(new_seen, until, queues, count):
    asyncio.get_running_loop().set_debug(False)  # it would take a minute
    async with Cluster() as cluster, AsyncExitStack() as members:
        admin = await cluster.admin()
        await admin.create_topic("orders", queues=queues)
        seen, consumers = new_seen(), []
        for _ in range(count):
            consumer = AsyncConsumer("workers", cluster.namesrv)
            consumer.subscribe("orders", seen)
            consumers.append(await members.enter_async_context(consumer))
        await until(lambda: [len(consumer.assignment) for consumer in consumers] == [queues // count] * count)
        producer = await cluster.producer()
        for n, queue in enumerate(await producer.queues("orders")):
            producer.send_soon(Message("orders", b"%d" % n), queue=queue)
        await producer.flush()
        await until(lambda: len(seen.messages) >= queues)
        assert sorted(seen.bodies) == list(range(queues))
