"""Reading queues without being a member of a group, at a real broker."""

import pytest

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.consumer.queue_reader import AsyncQueueReader
from pyromq.errors import NoPermission, TopicNotFound
from pyromq.message import Message, MessageQueue
from pyromq.names import retry_topic
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.testing import Cluster


@pytest.fixture
async def reader(cluster):
    async with AsyncQueueReader("job", cluster.namesrv) as reader:
        yield reader


async def sent(cluster, count=10, queues=4):
    async with AsyncAdmin(cluster.namesrv) as admin:
        await admin.create_topic("orders", queues)
    producer = await cluster.producer()
    places = [MessageQueue("orders", "broker-a", number) for number in range(queues)]
    for number in range(count):
        await producer.send(Message("orders", b"x" * 1000), queue=places[number % queues])
    return places


async def test_bounds_of_all_queues_come_together(cluster, reader):
    places = await sent(cluster, 10)
    assert await reader.bounds(["orders"]) == {place: (0, 3 if place.queue_id < 2 else 2) for place in places}


async def test_a_queue_that_can_only_be_read_has_bounds_too(cluster, reader):
    await sent(cluster, 4)
    async with AsyncAdmin(cluster.namesrv) as admin:
        await admin.create_topic("orders", read_queues=4, write_queues=2, replace=True)
    assert list((await reader.bounds(["orders"])).values()) == [(0, 1)] * 4


async def test_a_topic_that_does_not_exist_is_named(reader):
    with pytest.raises(TopicNotFound, match="nowhere"):
        await reader.bounds(["nowhere"])


async def test_a_topic_that_may_not_be_read_is_named(cluster, reader):
    async with AsyncAdmin(cluster.namesrv) as admin:
        await admin.create_topic("secret", 2, permission="w")
    with pytest.raises(NoPermission, match="'secret' has no queue that may be read"):
        await reader.bounds(["secret"])


async def test_a_large_pull_brings_more_than_32_messages(cluster, reader):
    (place,) = await sent(cluster, 300, queues=1)
    assert len((await reader.pull(place, 0, 1000)).messages) == 32
    assert len((await reader.pull(place, 0, 1000, max_bytes=4 << 20)).messages) == 300


async def test_offsets_are_stored_for_a_group_without_members_and_shown_as_its_lag(cluster, reader):
    places = await sent(cluster, 8)
    await reader.commit({place: 1 for place in places}, "job")
    await reader.announce_group("job")
    await reader.announce_group("job")
    assert await reader.committed(places[:1], "job") == {places[0]: 1}
    async with AsyncAdmin(cluster.namesrv) as admin:
        assert [each.lag for each in await admin.group_progress("job")] == [1] * 4
        assert retry_topic("job") in await admin.topics()


async def test_the_first_message_since_a_time_is_found(cluster, reader):
    (place,) = await sent(cluster, 5, queues=1)
    stored = (await reader.store_times({place: 0, place._replace(queue_id=0): 4}))[place]
    assert await reader.first_since(place, stored, (0, 5)) <= 4
    assert await reader.first_since(place, stored + 1_000_000, (0, 5)) == 5
    assert await reader.store_time_at(place, 99) is None


async def test_messages_stored_in_the_same_ms_are_all_since_that_time(cluster, reader, monkeypatch):
    async def any_hit(topic, queue_id, timestamp_ms):
        return 5

    (place,) = await sent(cluster, 2, queues=1)
    await cluster.clock.advance(1)
    producer = await cluster.producer()
    for _ in range(5):
        await producer.send(Message("orders", b"x"), queue=place)
    stored = await reader.store_time_at(place, 2)
    monkeypatch.setattr(cluster.broker.store, "search_by_time", any_hit)  # as RocketMQ's broker answers
    assert await reader.first_since(place, stored, (0, 7)) == 2
    assert await reader.first_since(place, stored, (4, 7)) == 4
    assert await reader.first_since(place, stored + 1, (0, 7)) == 7


async def test_every_name_server_is_asked_for_brokers_that_left():
    async with Cluster(2) as cluster, NameServer(NameServerConfig(port=0), cluster.clock) as restarted:
        async with NameServer(NameServerConfig(port=0), cluster.clock) as stopped:
            pass
        async with await cluster.admin() as admin:
            await admin.create_topic("orders", 1)
        await cluster.stop_broker(1)
        async with AsyncQueueReader("job", f"{restarted.address};{stopped.address};{cluster.namesrv}") as reader:
            assert "orders" in (await reader.absent())["broker-b"]


async def test_a_broker_that_one_name_server_knows_is_not_absent():
    async with Cluster(2) as cluster, Cluster(2) as other:
        async with await cluster.admin() as admin:
            await admin.create_topic("orders", 1)
        await cluster.stop_broker(1)
        async with AsyncQueueReader("job", other.namesrv) as reader:
            reader._cluster.name_servers.addresses.append(cluster.namesrv)
            assert await reader.absent() == {}
