"""A replica set as administrators see it, and the changes of its master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set

from pyromq import AsyncAdmin, Message, UsageError
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.errors import BrokerError, Unavailable
from pyromq.testing import Cluster


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


@pytest.fixture
async def three(replicas: ReplicaSet) -> ReplicaSet:
    for number in (1, 2, 3):
        await replicas.start(number)
    await replicas.until(lambda: replicas.in_sync == [1, 2, 3])
    return replicas


async def test_all_replicas_tell_the_state_of_their_set(three: ReplicaSet) -> None:
    async with AsyncProducer("g", three.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
    async with AsyncAdmin(three.namesrv) as admin:
        found = await admin.replica_sets.state("orders")
    assert three.master_server is not None
    (master,) = found.masters
    assert (found.best, master.number, master.master) == (
        master,
        three.master_server.number,
        three.master_server.number,
    )
    assert (master.epoch, master.record_epoch, master.min_in_sync, master.trouble, master.refusal) == (
        1,
        1,
        2,
        None,
        "",
    )
    assert {each.number: address for address, each in found.answers.items()} == {
        number: server.broker.address for number, server in three.servers.items()
    }
    for status in found.answers.values():
        assert [each.number for each in status.in_sync] == [1, 2, 3]
        assert [(each.number, each.is_connected, each.is_in_sync) for each in status.replicas] == [
            (number, True, True) for number in (1, 2, 3)
        ]
    end = three.master_server.broker.store.max_log_offset
    assert end > 0 and [(each.end, each.lag_bytes) for each in master.replicas] == [(end, 0)] * 3
    assert master.etcd_seconds < 5
    assert max(abs(apart) - unsure for apart, unsure in found.clock_ms.values()) < 100


async def test_a_planned_failover_makes_the_named_replica_the_master(three: ReplicaSet) -> None:
    assert three.master_server is not None
    other = next(number for number in three.servers if number != three.master_server.number)
    async with AsyncAdmin(three.namesrv) as admin, AsyncProducer("g", three.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        seconds = await admin.replica_sets.hand_over("orders", other)
        assert 0 < seconds < 5
        assert three.master_server.number == other
        found = await admin.replica_sets.state("orders")
        assert (found.best.number, found.best.epoch, found.best.losses) == (other, 2, [])
        await producer.send(Message("orders", b"2"))


async def test_what_cannot_become_master_is_named(three: ReplicaSet) -> None:
    assert three.master_server is not None
    master = three.master_server.number
    other = next(number for number in three.servers if number != master)
    async with AsyncAdmin(three.namesrv) as admin:
        sets = admin.replica_sets
        with pytest.raises(UsageError, match="'stores' has no registered broker; registered: orders"):
            await sets.state("stores")
        with pytest.raises(UsageError, match="orders has no replica 9; it has 1, 2, 3"):
            await sets.hand_over("orders", 9)
        with pytest.raises(UsageError, match=f"replica {master} is the master of orders already"):
            await sets.hand_over("orders", master)
        with pytest.raises(UsageError, match=f"orders has a master, replica {master}"):
            await sets.accept_loss("orders", other, "a mistake")
        await three.stop(other)
        await three.until(lambda: len(three.in_sync) == 2)
        with pytest.raises(UsageError, match=f"replica {other} of orders is not connected to the master"):
            await sets.hand_over("orders", other)


async def test_a_broker_without_etcd_is_no_replica_set() -> None:
    async with Cluster() as cluster, AsyncAdmin(cluster.namesrv) as admin:
        with pytest.raises(UsageError, match="is not a replica of a set: its brokers were started without etcd"):
            await admin.replica_sets.state("broker-a")


async def test_a_set_that_lost_all_in_sync_replicas_gets_a_master_by_an_accepted_loss(replicas: ReplicaSet) -> None:
    await replicas.start(1, min_in_sync=1)
    await replicas.until(lambda: replicas.master_server is not None)
    async with AsyncProducer("g", replicas.namesrv) as producer:
        await producer.send(Message("orders", b"lost"))
    await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    await replicas.stop(2)
    await replicas.until(lambda: replicas.in_sync == [1])
    await replicas.stop(1)
    server = await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: server.trouble is not None)
    async with AsyncAdmin(replicas.namesrv) as admin:
        found = await admin.replica_sets.state("orders")
        assert found.masters == [] and found.best.trouble is not None
        assert "no replica that was in sync is left (replica 1)" in found.best.trouble
        with pytest.raises(UsageError, match="orders has no master to hand over: no replica that was in sync is left"):
            await admin.replica_sets.hand_over("orders", 2)
        with pytest.raises(Unavailable, match="replica 1 of orders does not answer"):
            await admin.replica_sets.accept_loss("orders", 1, "the disk of 1 burnt")
        await admin.replica_sets.accept_loss("orders", 2, "the disk of 1 burnt")
        assert replicas.master_server is server
        (loss,) = (await admin.replica_sets.state("orders")).best.losses
        assert (loss.master, loss.reason, [each.number for each in loss.in_sync]) == (2, "the disk of 1 burnt", [1])


async def test_a_replica_refuses_a_needless_loss_by_itself(three: ReplicaSet) -> None:
    from pyromq.remoting.headers import AcceptLoss, HandOver

    assert three.master_server is not None
    follower = next(each for each in three.servers.values() if each is not three.master_server)
    await three.until(lambda: follower.replica.following is not None)
    async with AsyncAdmin(three.namesrv) as admin:
        with pytest.raises(BrokerError, match=f"replica {three.master_server.number} is the master: hand over"):
            await admin._brokers.ask(follower.broker.address, AcceptLoss(reason="x"))
        with pytest.raises(BrokerError, match="this replica is not the master"):
            await admin._brokers.ask(follower.broker.address, HandOver(number=1))


async def test_a_running_master_writes_the_record_that_etcd_has_lost(three: ReplicaSet) -> None:
    master = three.master_server
    assert master is not None
    key = "/pyromq/DefaultCluster/orders/state"
    assert isinstance(await three.registry.swap(key, (await three.registry.read(key)).revision, None), int)
    await three.until(lambda: master.trouble is not None)
    follower = next(number for number in three.servers if number != master.number)
    async with AsyncAdmin(three.namesrv) as admin, AsyncProducer("g", three.namesrv) as producer:
        await producer.send(Message("orders", b"1"))
        with pytest.raises(UsageError, match=f"has a master, replica {master.number}.*: name replica {master.number}"):
            await admin.replica_sets.accept_loss("orders", follower, "etcd was emptied")
        await admin.replica_sets.accept_loss("orders", master.number, "etcd was emptied")
        await three.until(lambda: three.in_sync == [1, 2, 3])
        status = (await admin.replica_sets.state("orders")).best
        assert (status.number, status.record_epoch, status.trouble) == (master.number, 2, None)
        await producer.send(Message("orders", b"2"))
    assert sum(master.broker.store.max_offset("orders", queue) for queue in range(8)) == 2
