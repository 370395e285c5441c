"""A broker killed while tasks write, and started again: tasks go on, and every row is there as often as promised."""

import asyncio

import pytest

pytest.importorskip("pyarrow")

import pyarrow as pa

from pyromq.client.producer.batch_transactions import AttemptResult
from pyromq.clock import SystemClock
from pyromq.spark.given_options import sink_options
from pyromq.spark.write.sink_task import SinkTask, TaskName
from pyromq.spark.write.writer import sink_client
from pyromq.testing import Cluster

ROWS, BATCH = 2000, 100


@pytest.fixture
async def cluster():
    async with Cluster(clock=SystemClock()) as cluster:
        yield cluster


async def seen(cluster, least):
    """Return the rows that can be seen, once there are so many."""
    store = cluster.broker.store
    while sum(store.max_offset("orders", queue_id) for queue_id in store.queue_ids("orders")) < least:
        await asyncio.sleep(0)
    found = []
    for queue_id in store.queue_ids("orders"):
        entries = store.entries("orders", queue_id, 0, 100_000)
        found += [int(store.message_at(entry.log_offset).body) for entry in entries]
    return sorted(found)


class Rows:
    """The rows of a task; half-way it says so and waits until it may go on."""

    def __init__(self, loop):
        self._loop = loop
        self.half_way = asyncio.Event()
        self.go_on = asyncio.Event()

    def __iter__(self):
        for start in range(0, ROWS, BATCH):
            if start == ROWS // 2:
                self._loop.call_soon_threadsafe(self.half_way.set)
                asyncio.run_coroutine_threadsafe(self.go_on.wait(), self._loop).result(30)
            yield pa.RecordBatch.from_pydict({"body": [str(number) for number in range(start, start + BATCH)]})


async def write_over_a_kill(cluster, options):
    """Run a task whose broker is killed in the middle of it, and started again once the task wants to go on."""
    rows = Rows(asyncio.get_running_loop())
    client = await asyncio.to_thread(sink_client, options)
    work = asyncio.create_task(asyncio.to_thread(SinkTask(client, options, TaskName("t", 0)).write, rows))
    await rows.half_way.wait()
    await cluster.kill_broker()
    rows.go_on.set()
    await cluster.start_broker()
    report = await work
    return client, report


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
async def test_a_task_goes_on_when_its_broker_comes_back(cluster, delivery):
    options = sink_options({"namesrvAddr": cluster.namesrv, "topic": "orders", "delivery": delivery}
                           | {"sendBatchBytes": "2k", "inflight": "2"})  # fmt: skip
    client, report = await write_over_a_kill(cluster, options)
    assert report.rows == ROWS
    if delivery == "exactlyOnce":
        await asyncio.to_thread(client.commit, "t", [report.result])
        assert await seen(cluster, ROWS) == list(range(ROWS))
    else:
        assert set(await seen(cluster, ROWS)) == set(range(ROWS))
    await asyncio.to_thread(client.close)


async def test_a_broker_killed_after_the_commit_shows_every_row_once(cluster):
    options = sink_options({"namesrvAddr": cluster.namesrv, "topic": "orders", "delivery": "exactlyOnce"})
    client = await asyncio.to_thread(sink_client, options)
    rows = Rows(asyncio.get_running_loop())
    rows.go_on.set()
    report = await asyncio.to_thread(SinkTask(client, options, TaskName("t", 0)).write, rows)
    assert isinstance(report.result, AttemptResult)
    await asyncio.to_thread(client.commit, "t", [report.result])
    await cluster.kill_broker()  # some slices are visible, most likely not all
    await cluster.start_broker()
    assert await seen(cluster, ROWS) == list(range(ROWS))
    await asyncio.to_thread(client.close)
