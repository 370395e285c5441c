"""A broker that is down when a query begins or goes on: it is waited for, unless the topic is a slip of the pen."""

import asyncio
from functools import partial

import pytest

pytest.importorskip("pyarrow")

from pyromq import Message
from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import TopicNotFound, Unavailable
from pyromq.spark.given_options import read_options
from pyromq.spark.options import STREAM
from pyromq.spark.read.bounds import ReadBounds
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.spark.worker_clients import with_retries
from pyromq.testing import Cluster, FakeClock


@pytest.fixture
async def cluster():
    async with Cluster() as cluster:
        async with await cluster.admin() as admin:
            await admin.create_topic("orders", 1)
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        await producer.close()
        yield cluster


@pytest.fixture
async def driver(cluster):
    """What a driver has when it starts: options, and a client that knows no route yet."""
    given = {"namesrvAddr": cluster.namesrv, "subscribe": "orders", "startingOffsets": "earliest"}
    options = read_options(given, STREAM)
    client = QueueReader(options.group, options.namesrv)
    await asyncio.to_thread(client.start)
    yield options, client
    await asyncio.to_thread(client.close)


def first_offset(options):
    with QueueReader(options.group, options.namesrv) as client:
        return StreamPlanning(options, client, FakeClock()).first()


async def over_a_restart(cluster, caplog, options, call):
    """Begin while the broker is down; start it once that was said."""
    await cluster.stop_broker()
    begun = asyncio.ensure_future(asyncio.to_thread(with_retries, options, call))
    while "trying again" not in caplog.text:
        assert not begun.done(), begun.result()
        await asyncio.sleep(0.01)
    await cluster.start_broker()
    return await begun


async def test_a_stream_that_begins_waits_for_a_broker(cluster, driver, caplog):
    options, client = driver
    start = await over_a_restart(cluster, caplog, options, StreamPlanning(options, client, FakeClock()).first)
    assert list(start.positions.values()) == [0]
    assert f"no broker is registered at {cluster.namesrv}" in caplog.text


async def test_a_stream_that_goes_on_waits_for_a_broker(cluster, driver, caplog):
    options, client = driver
    start = await asyncio.to_thread(first_offset, options)
    planning = StreamPlanning(options, client, FakeClock())
    end = await over_a_restart(cluster, caplog, options, partial(planning.next, start))
    assert list(end.positions.values()) == [1]
    assert "topic orders was read from it before" in caplog.text


async def test_a_batch_waits_for_a_broker(cluster, driver, caplog):
    options, client = driver
    (found,) = await over_a_restart(cluster, caplog, options, ReadBounds(options, client).ranges)
    assert (found.start, found.end) == (0, 1)


async def test_a_broker_that_stays_away_is_told_when_the_deadline_is_over(cluster, driver):
    _, client = driver
    options = read_options({"namesrvAddr": cluster.namesrv, "subscribe": "orders", "deadlineMs": "300"})
    await cluster.stop_broker()
    with pytest.raises(Unavailable, match=r"broker-a is not registered at .*orders"):
        await asyncio.to_thread(with_retries, options, ReadBounds(options, client).ranges)


async def test_a_topic_that_no_broker_has_is_told_at_once(cluster, driver, caplog):
    _, client = driver
    options = read_options({"namesrvAddr": cluster.namesrv, "subscribe": "ordres"})
    with pytest.raises(TopicNotFound, match="ordres"):
        await asyncio.to_thread(with_retries, options, ReadBounds(options, client).ranges)
    assert "trying again" not in caplog.text
