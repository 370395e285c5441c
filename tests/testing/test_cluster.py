"""The cluster in this process: comes up whole, loses and regains brokers as told, and leaves nothing behind."""

import asyncio
import threading

import pytest

from pyromq.clock import SystemClock
from pyromq.errors import StoreLocked, Unavailable, UsageError
from pyromq.message import Message
from pyromq.net.channel import connect
from pyromq.remoting.dispatch import Dispatcher
from pyromq.testing import Cluster, FakeClock


async def bodies(cluster, topic="orders"):
    consumer = await cluster.consumer()
    found = []
    for queue in await consumer.queues(topic):
        found += [message.body for message in (await consumer.pull(queue, 0, wait_seconds=0)).messages]
    return sorted(found)


async def test_what_is_sent_can_be_read():
    async with Cluster() as cluster:
        producer = await cluster.producer()
        for number in range(5):
            await producer.send(Message("orders", b"%d" % number))
        assert await bodies(cluster) == [b"0", b"1", b"2", b"3", b"4"]


async def test_brokers_have_names_ports_and_folders_of_their_own(tmp_path):
    async with Cluster(brokers=3, data=tmp_path) as cluster:
        assert [broker.config.name for broker in cluster.brokers] == ["broker-a", "broker-b", "broker-c"]
        assert len({broker.address for broker in cluster.brokers}) == 3
        assert sorted(path.name for path in tmp_path.iterdir()) == ["broker-a", "broker-b", "broker-c"]
        admin = await cluster.admin()
        await admin.create_topic("orders", queues=2)
        producer = await cluster.producer()
        assert {queue.broker_name for queue in await producer.queues("orders")} == {"broker-a", "broker-b", "broker-c"}


async def test_settings_are_those_of_every_broker():
    async with Cluster(brokers=2, auto_create_topic=False) as cluster:
        assert [broker.config.auto_create_topic for broker in cluster.brokers] == [False, False]
    with pytest.raises(TypeError):
        async with Cluster(no_such_setting=1):
            pass


async def test_servers_live_by_the_clock_given():
    clock = FakeClock(now_ms=1_234_567)
    async with Cluster(clock=clock) as cluster:
        assert cluster.clock is clock
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        consumer = await cluster.consumer()
        messages = []
        for queue in await consumer.queues("orders"):
            messages += (await consumer.pull(queue, 0, wait_seconds=0)).messages
        assert [message.store_ms for message in messages] == [1_234_567]
    async with Cluster() as cluster:
        assert isinstance(cluster.clock, FakeClock)


async def test_a_temporary_folder_goes_and_a_given_one_stays(tmp_path):
    async with Cluster() as cluster:
        temporary = cluster.broker.config.data
        assert temporary.is_dir()
    assert not temporary.exists()
    async with Cluster(data=tmp_path):
        pass
    assert (tmp_path / "broker-a").is_dir()


async def test_messages_are_there_when_a_cluster_is_started_on_its_old_folder(tmp_path):
    async with Cluster(data=tmp_path) as cluster:
        await (await cluster.producer()).send(Message("orders", b"1"))
    async with Cluster(data=tmp_path) as cluster:
        assert await bodies(cluster) == [b"1"]


async def test_a_stopped_broker_refuses_and_a_started_one_has_its_port_and_messages():
    async with Cluster() as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        address = cluster.broker.address
        await cluster.stop_broker()
        with pytest.raises(Unavailable):
            await connect(address, Dispatcher(), SystemClock())
        await cluster.start_broker()
        assert cluster.broker.address == address
        assert await bodies(cluster) == [b"1"]


async def test_stopping_twice_is_nothing():
    async with Cluster() as cluster:
        await cluster.stop_broker()
        await cluster.stop_broker()


async def test_a_restart_keeps_what_was_sent():
    async with Cluster() as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        await cluster.restart_broker()
        await producer.send(Message("orders", b"2"))
        assert await bodies(cluster) == [b"1", b"2"]


async def test_a_killed_broker_leaves_its_folder_as_a_crash_does():
    async with Cluster() as cluster:
        producer = await cluster.producer()
        await producer.send(Message("orders", b"1"))
        folder = cluster.broker.config.data
        await cluster.kill_broker()
        assert (folder / "abort").exists()
        assert not folder.with_name(folder.name + ".killed").exists()
        await cluster.start_broker()
        assert await bodies(cluster) == [b"1"]


async def test_a_stopped_broker_leaves_its_folder_clean():
    async with Cluster() as cluster:
        await cluster.stop_broker()
        assert not (cluster.broker.config.data / "abort").exists()


async def test_one_broker_of_two_can_go():
    async with Cluster(brokers=2) as cluster:
        admin = await cluster.admin()
        await admin.create_topic("orders", queues=2)
        await cluster.kill_broker(1)
        producer = await cluster.producer()
        for number in range(4):
            await producer.send(Message("orders", b"%d" % number))


async def test_a_cluster_that_cannot_start_leaves_nothing_running(tmp_path):
    threads = set(threading.enumerate())
    async with Cluster(data=tmp_path) as cluster:
        with pytest.raises(StoreLocked):
            async with Cluster(data=tmp_path):
                pass
        await (await cluster.producer()).send(Message("orders", b"1"))
        with pytest.raises(UsageError, match="in use"):
            async with Cluster(brokers=2, port=cluster.broker.config.port):
                pass
    await asyncio.sleep(0)
    assert set(threading.enumerate()) <= threads
    assert not (tmp_path / "broker-a" / "abort").exists()


async def test_an_error_in_the_test_still_stops_the_cluster(tmp_path):
    with pytest.raises(ZeroDivisionError):
        async with Cluster(data=tmp_path) as cluster:
            address = cluster.namesrv
            raise ZeroDivisionError
    with pytest.raises(Unavailable):
        await connect(address, Dispatcher(), SystemClock())
    assert not (tmp_path / "broker-a" / "abort").exists()
