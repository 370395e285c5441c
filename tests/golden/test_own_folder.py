"""Data folders that earlier versions of pyromq wrote: everything in them that is not RocketMQ's is read as it was."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tests.golden.own_folder import FIRST, FOLDER
from tests.waiting import until

from pyromq.client.producer.batch_transactions import AsyncBatchTransactions
from pyromq.store.directory import read_format
from pyromq.store.disk import LOCAL_DISK
from pyromq.store.offline.store_check import StoreCheck
from pyromq.store.store_config import StoreConfig
from pyromq.testing import Cluster, FakeClock

RECORDED_MS = 1_700_000_060_000


@pytest.fixture(params=sorted(path.name for path in FOLDER.iterdir()))
def folder(request, tmp_path: Path) -> Path:
    with tarfile.open(FOLDER / request.param) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


@pytest.fixture
async def cluster(folder):
    async with Cluster(data=folder, clock=FakeClock(RECORDED_MS)) as cluster:
        yield cluster


def bodies(cluster, topic):
    store = cluster.broker.store
    places = ((each, n) for each in store.queue_ids(topic) for n in range(store.max_offset(topic, each)))
    return sorted(store.message(topic, queue_id, offset).body for queue_id, offset in places)


def test_a_check_finds_no_damage(folder):
    assert read_format(LOCAL_DISK, folder / "broker-a") == 1
    assert StoreCheck(StoreConfig(folder / "broker-a")).run().findings == []


async def test_scheduled_messages_are_delivered_and_cancelled_ones_are_not(cluster):
    assert bodies(cluster, "mail") == []
    await cluster.clock.advance(300)
    await until(lambda: bodies(cluster, "mail"))
    assert bodies(cluster, "mail") == [b"later"]


async def test_what_was_popped_stays_in_flight_until_its_time(cluster):
    consumer = await cluster.simple_consumer("workers", config=FIRST)
    consumer.subscribe("tasks")
    [never_popped] = await consumer.receive(wait_seconds=0)
    assert never_popped.body == b"3"
    await consumer.ack(never_popped)
    await cluster.clock.advance(300)
    assert [each.body for each in await consumer.receive(wait_seconds=30)] == [b"0", b"2"]


async def test_decisions_on_batches_and_undecided_attempts_are_known(cluster):
    async with AsyncBatchTransactions("etl", cluster.namesrv) as batches:
        assert bodies(cluster, "rows") == [b"decided"]
        outcome = await batches.lookup("decided")
        assert outcome is not None
        assert (outcome.tokens, outcome.visible) == ({"decided-1"}, True)
        [attempts] = await batches.undecided()
        assert (attempts.transaction, attempts.messages) == ("open", {"open-1": 1})


async def test_a_key_finds_its_message(cluster):
    admin = await cluster.admin()
    assert [each.body for each in await admin.query_by_key("tasks", "task-2")] == [b"2"]
