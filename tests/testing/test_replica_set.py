"""Replica sets in a cluster for tests: they fail over when a replica is killed, and become whole again."""

import asyncio
import time

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.errors import MQError, UsageError
from pyromq.message import Message
from pyromq.testing import BlockingCluster, Cluster


async def bodies(cluster):
    consumer = await cluster.consumer()
    found = []
    for queue in await consumer.queues("orders"):
        found += [message.body for message in (await consumer.pull(queue, 0, wait_seconds=0)).messages]
    return sorted(found)


async def test_producers_continue_when_the_master_is_killed():
    async with Cluster(replicas=3, min_in_sync=2) as cluster:
        assert cluster.sets[0].in_sync == [1, 2, 3]
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        killed = await cluster.kill_master()
        await producer.send(Message("orders", b"2"))
        assert cluster.sets[0].master not in (None, killed)
        assert await bodies(cluster) == [b"1", b"2"]
        broker = await cluster.start_broker(replica=killed)
        assert broker is cluster.broker
        assert cluster.sets[0].in_sync == [1, 2, 3]
        await producer.send(Message("orders", b"3"))
        end = cluster.broker.store.max_log_offset
        await cluster.sets[0].until(
            lambda: all(each.broker.store.max_log_offset == end for each in cluster.sets[0].servers.values())
        )
        logs = {cluster.sets[0].log(number) for number in (1, 2, 3)}
        assert len(logs) == 1


async def test_a_killed_replica_leaves_its_lease_and_renews_it_no_more():
    async with Cluster(replicas=3) as cluster:
        key = "/pyromq/DefaultCluster/broker-a/replica/2"
        assert (await cluster.registry.read(key)).value is not None
        await cluster.kill_broker(replica=2)
        assert (await cluster.registry.read(key)).value is not None
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await cluster.registry.read(key)).value is not None:
                await asyncio.sleep(0.05)
        await cluster.until_in_sync()
        assert cluster.sets[0].in_sync == [1, 3]


async def test_a_replica_that_stops_releases_its_lease():
    async with Cluster(replicas=3) as cluster:
        await cluster.stop_broker(replica=3)
        assert (await cluster.registry.read("/pyromq/DefaultCluster/broker-a/replica/3")).value is None
        await cluster.restart_broker()
        assert sorted(cluster.sets[0].servers) == [1, 2]


async def test_the_folder_of_a_killed_replica_was_not_closed():
    async with Cluster(replicas=2) as cluster:
        await cluster.kill_broker(replica=2)
        await cluster.start_broker()
        assert cluster.sets[0].broker(2).store.crashed
        await cluster.restart_broker(replica=2)
        assert not cluster.sets[0].broker(2).store.crashed


async def test_each_broker_is_a_set_of_its_own(tmp_path):
    async with Cluster(brokers=2, replicas=2, data=tmp_path, auto_create_topic=False) as cluster:
        assert [each.config.name for each in cluster.brokers] == ["broker-a", "broker-b"]
        assert not any(each.config.auto_create_topic for each in cluster.brokers)
        names = ["broker-a-1", "broker-a-2", "broker-b-1", "broker-b-2"]
        assert sorted(path.name for path in tmp_path.iterdir()) == names


async def test_sends_are_refused_while_too_few_replicas_are_in_sync():
    async with Cluster(replicas=2, min_in_sync=2) as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        follower = 3 - cluster.sets[0].master
        await cluster.stop_broker(replica=follower)
        with pytest.raises(MQError, match="in sync: 1, asked for: 2"):
            await producer.send(Message("orders", b"2"), timeout=0.5)
        await cluster.start_broker()
        await producer.send(Message("orders", b"3"))
        assert await bodies(cluster) == [b"1", b"3"]


async def test_a_set_confirms_while_the_registry_is_away():
    async with Cluster(replicas=3) as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        cluster.registry.is_away = True
        began = time.monotonic()
        count = 0
        while time.monotonic() - began < 4:  # longer than a lease
            await producer.send(Message("orders", b"%d" % count))
            count += 1
            await asyncio.sleep(0.05)
        cluster.registry.is_away = False


async def test_wrong_uses_are_refused():
    with pytest.raises(UsageError, match="min_in_sync is 3, and each set has 2 replicas"):
        Cluster(replicas=2, min_in_sync=3)
    with pytest.raises(UsageError, match="linked or replicas"):
        Cluster(replicas=2, linked=True)
    async with Cluster(replicas=2) as cluster:
        with pytest.raises(UsageError, match=r"replica 3 of the set broker-a does not run; running: \[1, 2\]"):
            await cluster.kill_broker(replica=3)


def test_blocking_clients_continue_when_the_master_is_killed():
    with BlockingCluster(replicas=3) as cluster:
        producer = cluster.producer()
        producer.send(Message("orders", b"1"))
        killed = cluster.kill_master()
        producer.send(Message("orders", b"2"))
        cluster.start_broker(replica=killed)
        cluster.until_in_sync()
        assert cluster.sets[0].in_sync == [1, 2, 3]
