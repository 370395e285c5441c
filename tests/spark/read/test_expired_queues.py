"""Queues whose unread messages have all expired: a stream and a batch say so, at planning and in tasks.

A broker leaves the first offset of such a queue alone, as upstream does: it is its entries that have no records.
"""

import asyncio
import json
import os

import pytest
from tests.waiting import PATIENCE_SECONDS

pytest.importorskip("pyarrow")

from pyromq import Message
from pyromq.client.blocking.consumers import QueueReader
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.options import BATCH, STREAM
from pyromq.spark.read.bounds import DataLoss, ReadBounds
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.range_reader import read_ranges
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.store.store_config import StoreConfig
from pyromq.testing import Cluster, FakeClock

QUEUE = MessageQueue("orders", "broker-a", 0)
READ, SENT = 5, 8  # how far a stream is, and where the queue ends
SEGMENT = 1 << 16


@pytest.fixture
async def cluster(tmp_path):
    folder = tmp_path / "broker-a"
    store = StoreConfig(folder, segment_bytes=SEGMENT, consume_queue_entries=1000, index_enabled=False)
    async with Cluster(data=tmp_path, store=store) as cluster:
        yield cluster


@pytest.fixture
async def expired(cluster):
    """The options of a read of topic orders, all of whose messages are gone."""
    async with await cluster.admin() as admin:
        await admin.create_topic("orders", 1)
        await admin.create_topic("bulk", 1)
    await send(cluster, SENT)
    await expire(cluster)
    assert cluster.broker.store.message("orders", 0, SENT - 1) is None
    return {"namesrvAddr": cluster.namesrv, "subscribe": "orders"}


async def send(cluster, count):
    producer = await cluster.producer()
    for number in range(count):
        tags = "even" if number % 2 == 0 else "odd"
        await producer.send(Message("orders", b"%d" % number, tags=tags), queue=QUEUE)


async def expire(cluster):
    """Fill the log behind what is there, and let that go."""
    producer, broker = await cluster.producer(), cluster.broker
    for _ in range(8):
        await producer.send(Message("bulk", os.urandom(20_000)))
    await cluster.clock.advance(11)
    broker.store.wait_flushed(broker.store.max_log_offset).result(PATIENCE_SECONDS)
    await broker.saved()
    broker.store.retention.expire_now(0)
    while not broker.store.retention.step(1):
        pass
    assert broker.store.min_log_offset >= SEGMENT


def planning(given):
    options = read_options(given, STREAM)
    return StreamPlanning(options, connected(options), FakeClock())


def connected(options):
    client = QueueReader(options.group, options.namesrv)
    client.start()
    return client


def starting_at(offset):
    return {"startingOffsets": json.dumps({"orders": {"broker-a": {"0": offset}}})}


def planned(given):
    options = read_options(given, BATCH)
    with QueueReader(options.group, options.namesrv) as client:
        return [(each.start, each.end) for each in ReadBounds(options, client).ranges()]


def read(given, start, end):
    batches = read_ranges(read_options(given, BATCH), ["queueOffset"], [QueueRange(QUEUE, start, end)])
    return [offset for batch in batches for offset in batch.column("queueOffset").to_pylist()]


async def test_a_stream_whose_unread_messages_have_all_expired_names_them(cluster, expired):
    def go_on():
        stream = planning(expired)
        start = stream.first()
        start.positions[QUEUE] = READ
        return stream.next(start)

    with pytest.raises(
        DataLoss, match=rf"queue 0 of topic orders .*: offsets {READ} to {SENT - 1} were deleted, 3 in all"
    ):
        await asyncio.to_thread(go_on)


async def test_a_batch_from_an_expired_offset_names_it(expired):
    with pytest.raises(DataLoss, match=rf"queue 0 of topic orders .* is {READ}; the queue holds {SENT} to {SENT}"):
        await asyncio.to_thread(planned, expired | starting_at(READ))


@pytest.mark.parametrize("options", [{}, starting_at(-2), starting_at(READ) | {"failOnDataLoss": "false"}])
async def test_a_batch_of_what_is_there_is_empty(expired, options):
    assert await asyncio.to_thread(planned, expired | options) == [(SENT, SENT)]


async def test_a_queue_that_goes_on_after_all_had_expired_is_read_from_there(cluster, expired):
    await send(cluster, 2)
    assert await asyncio.to_thread(planned, expired) == [(SENT, SENT + 2)]
    assert await asyncio.to_thread(read, expired, SENT, SENT + 2) == [SENT, SENT + 1]


@pytest.mark.parametrize("tags", ["*", "even"])
async def test_a_task_whose_messages_expired_after_planning_names_them(expired, tags):
    with pytest.raises(DataLoss, match=rf"offsets {READ} to {SENT - 1} were deleted, 3 in all"):
        await asyncio.to_thread(read, expired | {"tagFilter": tags}, READ, SENT)


async def test_a_task_that_may_lose_reads_the_rest(cluster, expired):
    await send(cluster, 2)
    options = expired | {"failOnDataLoss": "false"}
    assert await asyncio.to_thread(read, options, READ, SENT + 2) == [SENT, SENT + 1]


@pytest.mark.parametrize(("tags", "offsets"), [("even", [0, 2]), ("odd", [1, 3]), ("none", [])])
async def test_messages_that_no_tag_wants_are_not_lost(cluster, tags, offsets):
    async with await cluster.admin() as admin:
        await admin.create_topic("orders", 1)
    await send(cluster, 4)
    options = {"namesrvAddr": cluster.namesrv, "subscribe": "orders", "tagFilter": tags}
    assert await asyncio.to_thread(read, options, 0, 4) == offsets
