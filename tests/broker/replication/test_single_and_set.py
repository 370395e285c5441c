"""A broker alone becomes the first replica of a set, with its messages; a replica's folder serves a broker alone."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set
from tests.waiting import PATIENCE_SECONDS

from pyromq import ConsumeFrom, ConsumerConfig, Message
from pyromq.broker.broker import Broker
from pyromq.broker.replication.failover_config import NO_FAILOVER
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import MQError
from pyromq.testing import MemoryRegistry

FIRST = ConsumerConfig(consume_from=ConsumeFrom.FIRST)


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


def alone(replicas: ReplicaSet) -> Broker:
    """The folder of replica 1 under a broker that is not a replica."""
    return Broker(replace(replicas.config(1), failover=NO_FAILOVER))


async def send(namesrv: str, first: int, last: int) -> None:
    async with AsyncProducer("g", namesrv) as producer:
        for number in range(first, last):
            await producer.send(Message("numbers", b"%d" % number))


async def consume(namesrv: str, count: int) -> list[int]:
    """Consume and commit messages as the group `readers`, which goes on where it ended before."""
    found: list[int] = []
    async with AsyncPullConsumer("readers", namesrv, config=FIRST) as consumer:
        consumer.subscribe("numbers")
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(found) < count:
                found += [int(message.body) for message in await consumer.poll(timeout=1.0)]
        await consumer.commit()
    return sorted(found)


async def offsets_are_copied(replicas: ReplicaSet) -> None:
    """Wait until all replicas have the offsets of the master's group."""
    assert replicas.master_server is not None
    committed = replicas.master_server.broker.offsets.of_topic("readers", "numbers")
    brokers = [each.broker for each in replicas.servers.values()]
    await replicas.until(lambda: all(each.offsets.of_topic("readers", "numbers") == committed for each in brokers))


async def test_a_broker_alone_becomes_the_first_master_of_a_set(replicas: ReplicaSet) -> None:
    async with alone(replicas) as broker:
        await send(replicas.namesrv, 0, 30)
        assert await consume(replicas.namesrv, 30) == list(range(30))
        await send(replicas.namesrv, 30, 50)
        end = broker.store.max_log_offset
    first = await replicas.start(1, min_in_sync=1)
    await replicas.until(lambda: replicas.master_server is first)
    assert first.broker.store.max_log_offset == end
    await send(replicas.namesrv, 50, 60)  # before there is another replica
    for number in (2, 3):
        await replicas.start(number, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    assert replicas.log(1) == replicas.log(2) == replicas.log(3)
    await offsets_are_copied(replicas)
    await replicas.stop(1)
    assert await consume(replicas.namesrv, 30) == list(range(30, 60))


async def test_a_log_that_comes_after_an_empty_first_replica_is_refused_unchanged(replicas: ReplicaSet) -> None:
    async with alone(replicas) as broker:
        await send(replicas.namesrv, 0, 5)
        end = broker.store.max_log_offset
    await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: replicas.master_server is not None)
    first = await replicas.start(1, min_in_sync=1)
    with pytest.raises(
        MQError, match=r"has a log of [0-9]+ bytes that is not of the set orders: start this replica with"
    ):
        await asyncio.wait_for(asyncio.shield(first.failed), PATIENCE_SECONDS)
    assert first.broker.store.max_log_offset == end
    await replicas.stop(1)
    await replicas.stop(2)
    async with alone(replicas):
        assert await consume(replicas.namesrv, 5) == list(range(5))


async def test_the_last_replica_of_a_set_goes_on_as_a_broker_alone_and_begins_another_set(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    await send(replicas.namesrv, 0, 10)
    await replicas.stop(2)
    await replicas.stop(1)
    async with alone(replicas):
        await send(replicas.namesrv, 10, 20)
        assert await consume(replicas.namesrv, 20) == list(range(20))
    replicas.registry = MemoryRegistry()  # the set's keys are deleted
    for name in ("epochs", "replica"):
        (replicas.config(1).data / name).unlink()
    shutil.rmtree(replicas.config(2).data)
    for number in (1, 2):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    await send(replicas.namesrv, 20, 30)
    assert replicas.log(1) == replicas.log(2)
    await offsets_are_copied(replicas)
    await replicas.stop(1)
    assert await consume(replicas.namesrv, 10) == list(range(20, 30))


@pytest.mark.slow
async def test_a_folder_from_an_old_copy_without_its_identity_is_not_elected_and_joins_as_new(
    replicas: ReplicaSet,
) -> None:
    for number in (1, 2):
        await replicas.start(number, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        await replicas.stop(2)
        shutil.copytree(replicas.folder / "2", replicas.folder / "copy")
        await producer.send(Message("orders", b"2"))
    await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    for number in (2, 1):
        await replicas.kill(number)
    shutil.rmtree(replicas.folder / "2")
    shutil.move(replicas.folder / "copy", replicas.folder / "2")
    (replicas.folder / "2" / "replica").unlink()
    restored = await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: restored.trouble is not None)
    assert not restored.broker.role.is_master
    await replicas.start(1, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    assert replicas.log(1) == replicas.log(2)
