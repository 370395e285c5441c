"""A topic that has fewer queues than when messages began to wait for them: they go to queues that can be read."""

import pytest

from pyromq.broker.broker import Broker

from .folders import killed
from .headers import send_header


async def park(caller, clock, kind):
    """Let a message wait for each of 16 queues, ten seconds."""
    due = {"level": "DELAY\x013", "time": f"TIMER_DELIVER_MS\x01{clock.now_ms() + 10_000}"}[kind]
    await caller.create_topic("orders", queues=16)
    for queue_id in range(16):
        await caller.ask(send_header(due, queue_id=queue_id), b"%d" % queue_id)


async def readable(caller, queues):
    return sorted([int(body) for queue_id in range(queues) for body in await caller.bodies(queue_id=queue_id)])


@pytest.mark.parametrize("kind", ["level", "time"])
async def test_what_waited_for_a_lost_queue_can_be_read(caller, clock, kind):
    await park(caller, clock, kind)
    await caller.create_topic("orders", queues=2)
    await clock.advance(11)
    assert await readable(caller, 2) == list(range(16))


async def test_what_went_to_another_queue_is_not_delivered_again_after_a_crash(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await park(caller, clock, "level")
        await caller.create_topic("orders", queues=2)
        await clock.advance(10.5)
        after = killed(config)
    async with Broker(after, clock) as broker:
        await clock.advance(60)
        assert await readable(await caller_to(broker), 2) == list(range(16))


async def test_a_message_stays_where_its_queue_is_read(broker):
    topic = broker.topics.for_group_retry("%RETRY%g", 4)
    assert [broker.topics.queue_for(topic.name, queue_id) for queue_id in (0, 3, 4, 7)] == [0, 3, 0, 3]
    assert broker.topics.queue_for("unknown", 7) == 7
