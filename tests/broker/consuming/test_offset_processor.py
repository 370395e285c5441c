"""Stored offsets and bounds of queues, as consumers ask for them."""

from tests.broker.headers import pull_header

from pyromq.broker.broker import Broker
from pyromq.remoting.bodies import LockedQueues, QueueLock, WireQueue, decode_body, encode_body
from pyromq.remoting.headers import (
    EarliestStoreTime,
    EarliestStoreTimeResponse,
    LockQueues,
    MaxOffset,
    MinOffset,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffset,
    UnlockQueues,
    UpdateConsumerOffset,
)
from pyromq.store.store_config import StoreConfig


async def offset(caller, header):
    return (await caller.ask(header)).header(OffsetResponse).offset


def stored(queue_id=0, group="g"):
    return QueryConsumerOffset(consumer_group=group, topic="orders", queue_id=queue_id)


def commit(value, queue_id=0):
    return UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=queue_id, commit_offset=value)


async def test_a_stored_offset_is_given_back_even_a_lower_one(orders):
    for value in (7, 3):
        await orders.ask(commit(value))
        assert await offset(orders, stored()) == value


async def test_of_a_topic_that_is_not_there_no_offset_is_stored(caller, broker):
    await caller.ask(commit(7), code=17)
    assert broker.offsets.find("g", "orders", 0) is None


async def test_without_an_offset_a_queue_that_begins_at_0_is_read_from_0(caller):
    await caller.send("orders")
    assert await offset(caller, stored()) == 0
    assert await offset(caller, stored(queue_id=99)) == 0


async def test_without_an_offset_a_queue_that_lost_its_begin_has_none(config, clock, caller_to):
    config.store = StoreConfig(config.data, segment_bytes=4096, consume_queue_entries=10)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        for _ in range(30):
            await caller.send("orders", bytes(500))
    min((config.data / "commitlog").iterdir()).unlink()
    async with Broker(config, clock) as broker:
        response = await (await caller_to(broker)).ask(stored(), code=22)
    assert response.remark == "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first"


async def test_a_pull_may_carry_the_offset(caller):
    pull = pull_header(consumer_group="g", max_count=1, sys_flag=1 | 4, commit_offset=12, subscription="*")
    await caller.send("orders")
    await caller.ask(pull)
    assert await offset(caller, stored()) == 12


async def test_bounds_of_a_queue(caller, clock):
    first = clock.now_ms()
    await caller.send("orders")
    await clock.advance(10)
    await caller.send("orders")
    assert await offset(caller, MinOffset(topic="orders", queue_id=0)) == 0
    assert await offset(caller, MaxOffset(topic="orders", queue_id=0)) == 2
    assert await offset(caller, SearchOffset(topic="orders", queue_id=0, timestamp=first + 9_000)) == 1
    response = await caller.ask(EarliestStoreTime(topic="orders", queue_id=0))
    assert response.header(EarliestStoreTimeResponse).timestamp == first


async def test_an_unknown_queue_is_an_empty_one(caller):
    assert await offset(caller, MinOffset(topic="nothing", queue_id=3)) == 0
    assert await offset(caller, MaxOffset(topic="nothing", queue_id=3)) == 0
    assert await offset(caller, SearchOffset(topic="nothing", queue_id=3, timestamp=1)) == 0
    response = await caller.ask(EarliestStoreTime(topic="nothing", queue_id=3))
    assert response.header(EarliestStoreTimeResponse).timestamp == -1


async def test_queues_are_locked_for_one_client_and_freed(caller):
    def asked(client_id, *queue_ids):
        queues = [WireQueue(topic="orders", broker_name="broker-a", queue_id=queue_id) for queue_id in queue_ids]
        return encode_body(QueueLock(group="g", client_id=client_id, queues=queues))

    async def lock(client_id, *queue_ids):
        response = await caller.ask(LockQueues(), asked(client_id, *queue_ids))
        return [wire.queue_id for wire in decode_body(LockedQueues, response.body).queues]

    assert await lock("one", 0, 1) == [0, 1]
    assert await lock("two", 1, 2) == [2]
    await caller.ask(UnlockQueues(), asked("one", 1))
    assert await lock("two", 1) == [1]
