"""A topic that is deleted and made again under its consumers: the new one is read from its beginning."""

import asyncio

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.errors import TopicNotFound
from pyromq.message import Message
from pyromq.testing.fake_clock import FakeClock

SOON = {"retry_seconds": 0.05}


async def bodies_in(cluster, numbers, queue=None):
    producer = await cluster.producer()
    await asyncio.gather(*(producer.send(Message("orders", b"%d" % n), queue=queue) for n in numbers))


async def delete(cluster):
    await (await cluster.admin()).delete_topic("orders")


async def delete_as_upstream(cluster):
    """What a 4.9 broker does: it tells nobody, and keeps the offsets."""
    cluster.broker.topics.delete("orders")
    await asyncio.wrap_future(cluster.broker.store.delete_topic("orders"))


async def make(cluster):
    await (await cluster.admin()).create_topic("orders", queues=4)


@pytest.fixture
async def orders(cluster):
    await make(cluster)
    return cluster


@pytest.mark.parametrize("count", [200, 320])
@pytest.mark.parametrize("orderly", [False, True])
async def test_running_push_consumers_read_a_topic_made_again_from_its_beginning(
    orders, consuming, seen, count, orderly
):
    await bodies_in(orders, range(200))
    async with consuming(seen, orderly=orderly, **SOON):
        await seen.wait(200)
        await delete(orders)
        await make(orders)
        await bodies_in(orders, range(1000, 1000 + count))
        await seen.wait(200 + count)
    assert sorted(seen.bodies[200:]) == list(range(1000, 1000 + count))


@pytest.mark.parametrize("count", [200, 320])
@pytest.mark.parametrize("orderly", [False, True])
async def test_consumers_find_by_themselves_that_a_topic_went(orders, consuming, seen, until, count, orderly):
    await bodies_in(orders, range(200))
    async with consuming(seen, orderly=orderly, long_poll_seconds=0.05, **SOON) as consumer:
        await seen.wait(200)
        await delete_as_upstream(orders)
        await orders.clock.advance(1)  # the polls that wait end
        await until(lambda: not any(assigned.next_offset for assigned in consumer._assigned.values()))
        await make(orders)
        await bodies_in(orders, range(1000, 1000 + count))
        await seen.wait(200 + count)
    assert sorted(seen.bodies[200:]) == list(range(1000, 1000 + count))


@pytest.mark.parametrize("subscribes", [False, True])
@pytest.mark.parametrize("count", [200, 320])
async def test_pull_consumers_read_a_topic_made_again_from_its_beginning(orders, subscribes, count):
    await bodies_in(orders, range(200))
    consumer = await orders.consumer("readers", config=ConsumerConfig(**SOON))
    if subscribes:
        consumer.subscribe("orders")
    else:
        await consumer.assign(await consumer.queues("orders"))
    assert await read(consumer, 200) == list(range(200))
    await delete(orders)
    await make(orders)
    await bodies_in(orders, range(1000, 1000 + count))
    assert await read(consumer, count) == list(range(1000, 1000 + count))


async def test_iterating_goes_on_with_a_topic_made_again(orders):
    await bodies_in(orders, range(8))
    consumer = await orders.consumer("readers", config=ConsumerConfig(**SOON))
    await consumer.assign(await consumer.queues("orders"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        old = [int((await anext(consumer)).body) for _ in range(8)]
        going_on = asyncio.ensure_future(anext(consumer))
        await delete(orders)
        await asyncio.sleep(0.2)  # tried again and again
        assert not going_on.done()
        await make(orders)
        await bodies_in(orders, [1000])
        assert int((await going_on).body) == 1000
    assert sorted(old) == list(range(8))


async def test_polls_say_that_a_topic_is_gone_until_it_is_there_again(orders, until):
    await bodies_in(orders, range(8))
    clock = FakeClock()
    async with AsyncPullConsumer("readers", orders.namesrv, config=ConsumerConfig(), clock=clock) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        assert await read(consumer, 8) == list(range(8))
        await delete(orders)
        await until(lambda: all(assigned.gone_since is not None for assigned in consumer._assigned.values()))
        assert await consumer.poll(0.01) == []
        failures = consumer._fetching._failures
        while len(failures) < 4:
            await clock.advance(1)
            await asyncio.sleep(0.01)
        with pytest.raises(TopicNotFound):
            await consumer.poll(0.01)
        await make(orders)
        while failures:  # nobody sends anything: that the topic is there is enough
            await clock.advance(1)
            await asyncio.sleep(0.01)
        assert await consumer.poll(0.01) == []


async def read(consumer, count):
    found = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await consumer.poll(0.2)
    return sorted(int(message.body) for message in found)


async def test_a_group_that_was_offline_reads_a_topic_made_again_from_its_beginning(orders, consuming, seen, new_seen):
    await bodies_in(orders, range(200))
    async with consuming(seen):
        await seen.wait(200)
    await delete(orders)
    await make(orders)
    await bodies_in(orders, range(1000, 1320))
    later = new_seen()
    async with consuming(later):
        await later.wait(320)
    assert sorted(later.bodies) == list(range(1000, 1320))


async def test_broadcast_consumers_read_a_topic_made_again_from_its_beginning(orders, consuming, seen, tmp_path):
    await bodies_in(orders, range(200))
    async with consuming(seen, broadcast=True, consume_from=ConsumeFrom.FIRST, offsets_folder=tmp_path, **SOON):
        await seen.wait(200)
        await delete(orders)
        await make(orders)
        await bodies_in(orders, range(1000, 1320))
        await seen.wait(520)
    assert sorted(seen.bodies[200:]) == list(range(1000, 1320))


async def test_a_listener_that_outlives_the_topic_stores_nothing_for_the_next(orders, consuming, until):
    await bodies_in(orders, range(8))
    release, calls = asyncio.Event(), []

    async def work(messages):
        calls.append(int(messages[0].body))
        await release.wait()

    async with consuming(work, orderly=True, commit_seconds=0.01, **SOON):
        await until(lambda: calls)
        await delete(orders)
        await make(orders)
        await bodies_in(orders, range(1000, 1008))
        release.set()
        await until(lambda: len([call for call in calls if call >= 1000]) == 8)
    assert sum(orders.broker.offsets.of_topic("workers", "orders").values()) == 8


async def test_consumers_of_a_deleted_topic_go_on_quietly(orders, consuming, seen, caplog):
    await bodies_in(orders, range(8))
    async with consuming(seen, commit_seconds=0.01, **SOON):
        await seen.wait(8)
        await delete(orders)
        await asyncio.sleep(0.1)
    said = [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
    assert len([text for text in said if "topic[orders] not exist" in text]) <= 4  # one a queue
    assert not [text for text in said if "is not stored" in text]
