"""How often the queues are shared anew: rarely when all is well, soon when something is left to do or there is news."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.rebalance import AGAIN_SECONDS, SOON_SECONDS, Rebalance
from pyromq.clock import SystemClock
from pyromq.message import Message, MessageQueue
from pyromq.testing import FakeClock

BROADCAST = ConsumerConfig(broadcast=True)  # asks nobody whose the queues are


def rebalance_of(client, held, *, config=BROADCAST, **parts):
    """A rebalance of topic `orders` for group `workers`. The client sends no heartbeat: the group has no members."""
    usual = {"clock": FakeClock(), "topics": lambda: ["orders"], "acquire": hold, "revoke": release}
    return Rebalance(held, "workers", client, config, **usual | parts)


@asynccontextmanager
async def unbalanced(cluster, runs, clock):
    """A rebalance that notes each run, and never gets anywhere: none of its queues can be taken."""
    await (await cluster.producer()).send(Message("orders", b"1"))

    def topics():
        runs.append(clock.monotonic())
        return ["orders"]

    client = ClusterClient(cluster.namesrv, SystemClock())
    await client.start()
    rebalance = rebalance_of(client, {}, clock=clock, topics=topics, acquire=hold_none)
    task = asyncio.create_task(rebalance.run())
    try:
        yield rebalance
    finally:
        task.cancel()
        await client.close()


async def let_run(clock, runs):
    """Let time pass until there is one more run."""
    before = len(runs)
    while len(runs) == before:
        await clock.advance(0.01)


async def test_what_cannot_be_done_is_tried_again_later_and_later(cluster, until):
    runs, clock = [], FakeClock()
    async with unbalanced(cluster, runs, clock):
        await until(lambda: runs)
        for _ in range(25):
            await let_run(clock, runs)
    pauses = [later - earlier for earlier, later in pairwise(runs)]
    assert pauses[0] < 2 * SOON_SECONDS
    assert pauses[-1] >= AGAIN_SECONDS - 0.01


async def test_news_make_it_try_again_as_soon_as_at_first(cluster, until):
    runs, clock = [], FakeClock()
    async with unbalanced(cluster, runs, clock) as rebalance:
        await until(lambda: runs)
        for _ in range(25):
            await let_run(clock, runs)
        rebalance.wake()
        await until(lambda: len(runs) == 27)
        await let_run(clock, runs)
    assert runs[-1] - runs[-2] < 2 * SOON_SECONDS


async def test_a_cause_that_several_topics_share_is_one_line_once(cluster, caplog):
    topics = ["orders", "payments", "parcels"]
    producer = await cluster.producer()
    for topic in topics:
        await producer.send(Message(topic, b"1"))
    client = ClusterClient(cluster.namesrv, SystemClock())
    await client.start()
    rebalance = rebalance_of(client, {}, config=ConsumerConfig(), topics=lambda: [*topics, "missing", "%RETRY%workers"])
    with caplog.at_level("WARNING"):
        assert not await rebalance.once()
        assert not await rebalance.once()
    await client.close()
    assert len(caplog.messages) == 2
    assert all(topic in caplog.messages[0] for topic in topics)
    assert "missing" in caplog.messages[1]
    assert "%RETRY%" not in caplog.text


async def test_queues_to_be_acquired_again_for_one_reason_are_one_line(cluster, caplog):
    await (await cluster.producer()).send(Message("orders", b"1"))
    client = ClusterClient(cluster.namesrv, SystemClock())
    await client.start()
    route = await client.route("orders")
    held = {queue: Held(queue) for queue in route.readable}
    rebalance = rebalance_of(client, held, stuck=lambda assigned: "were not pulled for a long time")
    with caplog.at_level("WARNING"):
        await rebalance.once()
    await client.close()
    (line,) = caplog.messages
    assert all(str(queue) in line for queue in route.readable)


async def test_a_stuck_queue_that_cannot_be_acquired_again_is_no_longer_assigned(cluster):
    await (await cluster.producer()).send(Message("orders", b"1"))
    client = ClusterClient(cluster.namesrv, SystemClock())
    await client.start()
    held = {queue: Held(queue) for queue in (await client.route("orders")).readable}
    rebalance = rebalance_of(client, held, acquire=hold_none, stuck=lambda assigned: "may be locked by another member")
    assert not await rebalance.once()
    await client.close()
    assert not held


async def test_queues_stay_assigned_while_the_members_are_unknown(cluster):
    await (await cluster.producer()).send(Message("orders", b"1"))
    client = ClusterClient(cluster.namesrv, SystemClock())
    await client.start()
    held = {queue: Held(queue) for queue in (await client.route("orders")).readable}
    rebalance = rebalance_of(client, held, config=ConsumerConfig())
    assert not await rebalance.once()
    await client.close()
    assert len(held) == 4


@dataclass(frozen=True)
class Held:
    queue: MessageQueue


async def hold(queues):
    return [Held(queue) for queue in queues]


async def hold_none(queues):
    return []


async def release(held):
    pass
