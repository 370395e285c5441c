"""Single brokers and name servers, as an administrator changes and measures them."""

import pytest

from pyromq.errors import BrokerError, TopicNotFound, Unavailable, UsageError
from pyromq.message import Message


@pytest.fixture
async def admin(cluster):
    return await cluster.admin()


async def test_a_broker_s_settings_are_changed_together_or_not_at_all(cluster, admin):
    address = cluster.broker.address
    await admin.servers.change_settings(address, {"defaultTopicQueueNums": "3", "transactionCheckMax": "7"})
    settings = await admin.broker_config(address)
    assert (settings["defaultTopicQueueNums"], settings["transactionCheckMax"]) == ("3", "7")

    with pytest.raises(BrokerError, match="nonsense"):
        await admin.servers.change_settings(address, {"defaultTopicQueueNums": "4", "nonsense": "1"})
    assert (await admin.broker_config(address))["defaultTopicQueueNums"] == "3"
    with pytest.raises(UsageError, match="no setting is given"):
        await admin.servers.change_settings(address, {})


async def test_name_servers_settings_are_shown_by_address_and_changed(cluster, admin):
    await admin.servers.change_name_server_settings({"orderMessageEnable": "true"})
    settings = await admin.servers.name_server_settings()
    assert settings[cluster.namesrv]["orderMessageEnable"] == "true"
    with pytest.raises(BrokerError, match="listenPort"):
        await admin.servers.change_name_server_settings({"listenPort": "1"})


async def test_cleaning_removes_nothing_that_is_needed(cluster, admin):
    producer = await cluster.producer()
    await producer.send(Message("orders", b"1"))
    await admin.servers.clean_topics(cluster.broker.address)
    await admin.servers.clean_queues(cluster.broker.address)
    assert sum(each.max_offset for each in await admin.topic_status("orders")) == 1


async def test_a_statistic_is_a_course_or_none(cluster, admin):
    producer = await cluster.producer()
    await producer.send(Message("orders", b"1"))
    await cluster.clock.advance(20)
    found = await admin.servers.statistic(cluster.broker.address, "TOPIC_PUT_NUMS", "orders")
    assert (found.minute.sum, found.day.sum) == (1, 1)
    assert await admin.servers.statistic(cluster.broker.address, "TOPIC_PUT_NUMS", "others") is None


async def test_progress_of_all_groups_is_one_answer(cluster, admin, send, consuming, seen):
    await send(range(4))
    async with consuming(seen):
        await seen.wait(4)
    found = await admin.servers.progress(cluster.broker.address)
    assert found.broker_address == cluster.broker.address
    assert any("workers" in each for each in found.groups)


async def test_round_trips_are_measured_to_each_queue_in_turn(cluster, admin):
    await admin.create_topic("orders", 2)
    found = await admin.servers.round_trips("orders", count=4, size=10)
    assert [each.queue.queue_id for each in found] == [0, 1, 0, 1]
    assert all(each.failure is None and each.milliseconds > 0 for each in found)
    assert sum(each.max_offset for each in await admin.topic_status("orders")) == 4

    address = cluster.broker.address
    await cluster.stop_broker()
    (lost,) = await admin.servers.round_trips("orders", count=1)
    assert isinstance(lost.failure, Unavailable), address


async def test_a_topic_to_measure_has_to_be_there(admin):
    with pytest.raises(TopicNotFound):
        await admin.servers.round_trips("nothing", count=1)
    with pytest.raises(UsageError, match="count 0"):
        await admin.servers.round_trips("orders", count=0)
