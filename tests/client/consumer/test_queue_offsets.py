"""Offsets that groups store: the first of a group and topic goes alone."""

import asyncio

from pyromq.client.client_config import ConsumerConfig
from pyromq.testing.cluster import Cluster
from pyromq.testing.fake_clock import FakeClock


async def test_the_first_commit_of_a_group_goes_alone(until):
    async with Cluster(linked=True) as cluster:
        await (await cluster.admin()).create_topic("orders", queues=4)
        consumer = await cluster.consumer("g")
        queues = await consumer.queues("orders")
        await consumer.min_offset(queues[0])  # connected
        [link] = cluster.links
        link.answers.pause()

        committing = asyncio.ensure_future(consumer.commit(dict.fromkeys(queues, 0)))
        stored = cluster.broker.offsets
        await until(lambda: stored.of_topic("g", "orders"))
        first = stored.of_topic("g", "orders")
        link.answers.resume()
        await committing

        assert len(first) == 1
        assert stored.of_topic("g", "orders") == dict.fromkeys(range(4), 0)


async def test_commits_that_waited_for_a_first_commit_fail_with_it(cluster):
    await (await cluster.admin()).create_topic("orders", queues=4)
    consumer = await cluster.consumer("g", config=ConsumerConfig(timeout=0.3))
    queues = await consumer.queues("orders")
    await cluster.kill_broker()

    failures = await consumer._kept.save(dict.fromkeys(queues, 1))

    assert failures.keys() == set(queues)
    assert len({id(failure) for failure in failures.values()}) == 1  # one timeout, not one after the other


async def test_an_offset_sought_is_committed_though_it_was_before(cluster, send):
    queue = (await send(range(3), key="k"))[0].queue
    consumer = await cluster.consumer("g", config=ConsumerConfig(auto_commit=False))
    await consumer.assign([queue])
    await consumer.poll()
    await consumer.commit()
    await (await cluster.admin()).commit_offset("g", queue, 1)

    await consumer.seek(queue, 3)
    await consumer.commit()

    assert await consumer.committed(queue) == 3


async def test_a_first_offset_told_with_a_pull_is_told_once_more(cluster, consuming, seen, send, until):
    queue = (await send([0], key="k"))[0].queue
    clock, stored = FakeClock(), cluster.broker.offsets
    async with consuming(seen, clock=clock, commit_seconds=5.0):
        await seen.wait(1)
        for _ in range(2):
            stored.commit("workers", "orders", queue.queue_id, 0)
            await cluster.clock.advance(20.0)  # the held pull ends, and the next one tells the offset
            await until(lambda: stored.find("workers", "orders", queue.queue_id) == 1)
        stored.commit("workers", "orders", queue.queue_id, 0)  # as if it had been lost

        await clock.advance(5.0)

        await until(lambda: stored.find("workers", "orders", queue.queue_id) == 1)
