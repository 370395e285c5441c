"""A broker's life: start, stop, what outlasts a restart, what keeps it from starting."""

import socket

import pytest
from tests.broker.headers import pull_header

from pyromq.broker.broker import Broker
from pyromq.errors import StoreLocked, StoreNotWritable, UsageError
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.headers import DeleteTopic, MaxOffset, OffsetResponse, RegisterBroker, UpdateConsumerOffset


async def test_messages_topics_groups_and_offsets_outlast_a_restart(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=2)
        await caller.send("orders", queue_id=1)
        await caller.beat("one", group="g")
        await caller.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=1, commit_offset=1))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        assert broker.topics.find("orders").write_queues == 2
        assert "g" in broker.groups
        assert broker.offsets.find("g", "orders", 1) == 1
        response = await caller.ask(MaxOffset(topic="orders", queue_id=1))
        assert response.header(OffsetResponse).offset == 1


async def test_topics_whose_settings_are_lost_are_named(config, clock, caller_to, caplog):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        for topic in ("orders", "gone"):
            await caller.create_topic(topic, queues=1)
            await caller.send(topic, queue_id=0)
        await caller.ask(DeleteTopic(topic="gone"))
    async with Broker(config, clock):
        assert caplog.messages == []
    for path in (config.data / "config").glob("topics.json*"):
        path.unlink()
    async with Broker(config, clock):
        [text] = caplog.messages
        assert text.startswith("1 topic with messages and without settings: orders; restore config/topics.json")


async def test_offsets_are_written_every_five_seconds(broker, orders, clock, tmp_path):
    await orders.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=1, commit_offset=7))
    await clock.advance(5)
    await broker.saved()
    assert b'"orders@g":{"1":7}' in (tmp_path / "config" / "consumerOffset.json").read_bytes()


async def test_two_brokers_cannot_share_a_folder(broker, config, clock):
    with pytest.raises(StoreLocked, match=str(config.data)):
        async with Broker(config, clock):
            pass


async def test_a_port_in_use_is_named_and_the_folder_is_freed(config, clock):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config.port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {config.port} at 127.0.0.1 is in use"):
            async with Broker(config, clock):
                pass
    config.port = 0
    async with Broker(config, clock):
        pass


async def test_the_address_is_the_advertised_one(config, clock):
    config.advertised_host = "192.0.2.7"
    async with Broker(config, clock) as broker:
        assert broker.address == f"192.0.2.7:{broker.port}"


async def test_a_parked_pull_is_answered_when_the_broker_stops(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        pull = pull_header(consumer_group="g", max_count=1, sys_flag=2 | 4, suspend_ms=15_000, subscription="*")
        parked = caller.channel.call_soon(pull, timeout=30)
        await caller.ask(MaxOffset(topic="orders", queue_id=0))
        assert not parked.done()
    assert (await parked).code == 19


async def test_requests_that_are_not_for_brokers_are_told_apart(caller):
    header = RegisterBroker(broker_name="b", broker_address="127.0.0.1:1", cluster="c", broker_id=0)
    response = await caller.ask(header, code=3)
    assert response.remark == f" request type {int(RequestCode.REGISTER_BROKER)} not supported"


async def test_a_table_that_cannot_be_written_costs_a_stop_nothing_else(config, clock, caller_to, unwritable):
    with pytest.raises(StoreNotWritable, match=r"cannot write .*consumerOffset\.json: .*; everything else is saved"):
        async with Broker(config, clock) as broker:
            caller = await caller_to(broker)
            await caller.send("orders", properties="DELAY\x011")
            await clock.advance(2)
            await caller.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=1))
            unwritable("consumerOffset.json")
    assert not (config.data / "abort").exists()
    assert b'"1":1' in (config.data / "config" / "delayOffset.json").read_bytes()


async def test_a_table_that_cannot_be_written_costs_the_others_nothing_meanwhile(
    broker, orders, config, clock, unwritable, caplog
):
    unwritable("consumerOffset.json")
    await orders.beat("one", group="g")
    await orders.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=1))
    await clock.advance(config.offsets_interval_ms / 1000)
    await broker.saved()
    assert "consumerOffset.json" in caplog.text
    assert b'"g"' in (config.data / "config" / "subscriptionGroup.json").read_bytes()
    (config.data / "config" / "consumerOffset.json.tmp").rmdir()


async def test_all_tables_that_cannot_be_written_are_named(config, clock, caller_to, unwritable):
    with pytest.raises(StoreNotWritable, match=r"delayOffset\.json: .*consumerOffset\.json: "):
        async with Broker(config, clock) as broker:
            caller = await caller_to(broker)
            await caller.send("orders", properties="DELAY\x011")
            await clock.advance(2)
            await caller.ask(UpdateConsumerOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=1))
            unwritable("consumerOffset.json", "delayOffset.json")


@pytest.fixture
def unwritable(config):
    """Let tables of the broker be written no more."""

    def act(*names):
        for name in names:
            (config.data / "config" / f"{name}.tmp").mkdir()

    return act
