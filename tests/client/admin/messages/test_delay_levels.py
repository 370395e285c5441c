"""What waits in delay levels: how many, and which are due next."""

import pytest

from pyromq.message import Message


@pytest.fixture
async def levels(pair):
    return (await pair.admin()).delay_levels


@pytest.fixture
async def send(pair):
    admin, producer = await pair.admin(), await pair.producer()
    await admin.create_topic("orders", 1)
    queues = {queue.broker_name: queue for queue in (await producer.queues("orders"))}

    async def send(level, broker="broker-a", **fields):
        await producer.send(Message("orders", b"hello", delay_level=level, **fields), queue=queues[broker])

    return send


async def test_each_level_of_each_broker_is_told(pair, levels, send):
    found = await levels.all()
    assert [(each.level, each.broker_name) for each in found[:3]] == [(1, "broker-a"), (1, "broker-b"), (2, "broker-a")]
    assert [each.delay_ms for each in found[::2]][:5] == [1_000, 5_000, 10_000, 30_000, 60_000]
    assert len(found) == 36 and not any(each.waiting or each.next_due_ms for each in found)


async def test_waiting_messages_are_counted_until_they_are_delivered(pair, levels, send):
    sent_ms = pair.clock.now_ms()
    await send(3)
    await pair.clock.advance(4)
    await send(3)
    await send(3, "broker-b")

    (a, b) = [each for each in await levels.all() if each.waiting]
    assert (a.level, a.broker_name, a.waiting, a.next_due_ms) == (3, "broker-a", 2, sent_ms + 10_000)
    assert (b.level, b.broker_name, b.waiting, b.next_due_ms) == (3, "broker-b", 1, sent_ms + 14_000)

    await pair.clock.advance(6)
    assert [each.waiting for each in await levels.all() if each.level == 3] == [1, 1]
    await pair.clock.advance(4)
    assert not any(each.waiting for each in await levels.all())


async def test_what_is_due_next_comes_from_all_brokers_in_order_of_delivery(pair, levels, send):
    sent_ms = pair.clock.now_ms()
    for number in range(80):
        await send(5, "broker-b" if number % 2 else "broker-a", keys=f"k{number}", tags="t")
        await pair.clock.advance(0.001)

    found = await levels.waiting(5)
    assert [each.keys for each in found] == [[f"k{number}"] for number in range(50)]
    assert (found[7].topic, found[7].broker_name, found[7].queue_id) == ("orders", "broker-b", 0)
    assert (found[7].sent_ms, found[7].due_ms) == (sent_ms + 7, sent_ms + 60_007)
    assert (found[7].size, found[7].tags, found[7].recall_handle) == (5, "t", None)
    assert len(await levels.waiting(5, most=100)) == 80
    assert await levels.waiting(6) == await levels.waiting(99) == []
