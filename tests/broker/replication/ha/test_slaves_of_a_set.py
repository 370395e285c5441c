"""A slave of RocketMQ 4.9 below a replica set: it gets confirmed messages only, and follows each master."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set

from pyromq import AsyncAdmin, Message
from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig, ConfiguredRole
from pyromq.broker.replication.failover_config import NO_FAILOVER
from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.broker.replication.ha.ha_service import WAKE_SECONDS
from pyromq.client.producer.async_producer import AsyncProducer

NUMBER = 300  # above the numbers of replicas


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


def slave_config(replicas: ReplicaSet, folder: Path) -> BrokerConfig:
    config = replicas.config(1)
    return replace(
        config,
        data=folder,
        store=replace(config.store_config, root=folder),
        failover=NO_FAILOVER,
        role=ConfiguredRole.SLAVE,
        broker_id=NUMBER,
        register_interval_ms=1_000,
        ha=HaConfig(heartbeat_ms=200),
    )


def log_of(broker: Broker) -> bytes:
    files = sorted(broker.store.config.log_folder.iterdir())
    return b"".join(path.read_bytes() for path in files)[: broker.store.max_log_offset]


async def test_a_slave_has_the_log_and_follows_the_set_to_another_master(replicas: ReplicaSet, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        await replicas.start(number, slave_port=0)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    async with (
        AsyncProducer("g", replicas.namesrv) as producer,
        AsyncAdmin(replicas.namesrv) as admin,
        Broker(slave_config(replicas, tmp_path / "slave")) as slave,
    ):
        for _ in range(2):
            for number in range(50):
                await producer.send(Message("orders", b"%d" % number))
            master = replicas.master_server
            assert master is not None
            end = master.broker.store.max_log_offset
            await replicas.until(lambda end=end: slave.store.max_log_offset == end)
            assert log_of(slave) == log_of(master.broker)
            assert replicas.in_sync == [1, 2, 3]
            state = await admin.replica_sets.state("orders")
            assert [each.number for each in state.replicas] == [1, 2, 3]  # the slave is none of them
            other = next(number for number in replicas.servers if number != master.number)
            await master.hand_over(other)
            await replicas.until(lambda: replicas.in_sync == [1, 2, 3])


async def test_a_slave_gets_nothing_that_is_not_confirmed_and_confirms_nothing(
    replicas: ReplicaSet, tmp_path: Path
) -> None:
    for number in (1, 2, 3):
        await replicas.start(number, slave_port=0)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    async with (
        AsyncProducer("g", replicas.namesrv) as producer,
        Broker(slave_config(replicas, tmp_path / "slave")) as slave,
    ):
        await producer.send(Message("orders", b"first"))
        master = replicas.master_server
        assert master is not None
        store = master.broker.store
        await replicas.until(lambda: slave.store.max_log_offset == store.max_log_offset)
        feeds = {link: link.feed for link in master._links._connections.values()}
        for link in feeds:
            link.feed = None  # followers get nothing, and report nothing new
        confirmed = store.confirmed_end
        send = producer.send_soon(Message("orders", b"second"))
        await replicas.until(lambda: store.max_log_offset > confirmed)
        await asyncio.sleep(3 * WAKE_SECONDS)  # the slave would have the message
        assert slave.store.max_log_offset == confirmed
        for link, feed in feeds.items():
            link.feed = feed
        master._links.wake()
        await replicas.until(lambda: store.confirmed_end == store.max_log_offset == slave.store.max_log_offset)
        await send
