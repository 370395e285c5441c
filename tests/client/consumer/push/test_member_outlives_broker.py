"""A broker that is killed and comes back knows older offsets than its consumers: they go on where they were."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from tests.waiting import until

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer import rebalance
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import Message

QUEUES = 4
GROUP = "workers"


class Tally:
    """How often each message came, whoever of the members got it."""

    def __init__(self):
        self.counts = Counter()

    def __call__(self, messages):
        self.counts.update(int(message.body) for message in messages)


@asynccontextmanager
async def members(cluster, tally, count, **config):
    """Members of one group with their share each."""
    settings = ConsumerConfig(**({"orderly": True, "retry_seconds": 0.02, "commit_seconds": 0.02} | config))
    async with AsyncExitStack() as stack:
        consumers = []
        for _ in range(count):
            consumer = AsyncConsumer(GROUP, cluster.namesrv, config=settings)
            consumer.subscribe("orders", tally)
            consumers.append(await stack.enter_async_context(consumer))
        await until(lambda: all(len(each.assignment) == QUEUES // count for each in consumers))
        yield consumers


async def send(cluster, numbers):
    producer = await cluster.producer()
    await asyncio.gather(*(producer.send(Message("orders", b"%d" % n)) for n in numbers))


async def consumed(cluster, tally, numbers):
    """Send messages; return when they are consumed and that is committed."""
    await send(cluster, numbers)
    await until(lambda: all(tally.counts[n] for n in numbers))
    total = len(tally.counts)
    await until(lambda: sum(cluster.broker.offsets.of_topic(GROUP, "orders").values()) == total)


async def killed_for_a_while(cluster, consumers):
    """Kill the broker; it comes back when the locks of ordered queues are lost."""
    await cluster.kill_broker()
    if consumers[0].config.orderly:
        await until(lambda: not any(each.assignment for each in consumers))
    await cluster.start_broker()


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("orderly", [True, False])
async def test_members_go_on_where_they_were(cluster, count, orderly):
    await (await cluster.admin()).create_topic("orders", queues=QUEUES)
    tally = Tally()
    async with members(cluster, tally, count, orderly=orderly) as consumers:
        await consumed(cluster, tally, range(40))
        await cluster.clock.advance(5)  # the broker writes what it was told
        await cluster.broker.saved()
        await consumed(cluster, tally, range(40, 400))
        await killed_for_a_while(cluster, consumers)
        await send(cluster, range(400, 420))
        await until(lambda: all(tally.counts[n] for n in range(420)))
        await until(lambda: all(len(each.assignment) == QUEUES // count for each in consumers))
    assert tally.counts.total() == 420


async def test_a_broker_that_is_away_costs_one_line_not_one_for_each_queue(cluster, caplog):
    await (await cluster.admin()).create_topic("orders", queues=QUEUES)
    tally = Tally()
    async with members(cluster, tally, 1, orderly=False, commit_seconds=3600, timeout=0.2):
        await send(cluster, range(40))
        await until(lambda: len(tally.counts) == 40)
        await cluster.kill_broker()
    [line] = [message for message in caplog.messages if "not committed yet" in message]
    assert f"at broker-a and of {QUEUES} other queues there: " in line  # one more is the retry topic's
    await cluster.start_broker()


async def test_a_group_moved_back_meanwhile_is_read_from_there(cluster):
    await (await cluster.admin()).create_topic("orders", queues=QUEUES)
    tally = Tally()
    async with members(cluster, tally, 1) as (consumer,):
        await consumed(cluster, tally, range(40))
        await killed_for_a_while(cluster, [consumer])
        await until(lambda: len(consumer.assignment) == QUEUES)
        await (await cluster.admin()).reset_offset(GROUP, "orders", 0)
        await until(lambda: tally.counts.total() == 80)


async def test_a_member_that_does_not_come_back_is_replaced(cluster, monkeypatch):
    monkeypatch.setattr(rebalance, "RETURN_SECONDS", 0.2)
    await (await cluster.admin()).create_topic("orders", queues=QUEUES)
    async with members(cluster, Tally(), 2, timeout=0.2, rebalance_seconds=3600) as (one, other):
        await cluster.kill_broker()
        await other.close()
        await cluster.start_broker()
        await until(lambda: len(one.assignment) == QUEUES)
