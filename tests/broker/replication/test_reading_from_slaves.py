"""Consumers read from a slave: when the master refers them to it, and when the master is gone."""

from dataclasses import replace

import pytest
from tests.waiting import until

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig, ConfiguredRole
from pyromq.broker.replication import slave_tables
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.producer.async_producer import AsyncProducer
from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.message import Message
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.remoting.bodies import GroupConfig
from pyromq.remoting.headers import PullMessageResponse
from pyromq.store.store_config import StoreConfig

CONFIG = ConsumerConfig(consume_from=ConsumeFrom.FIRST, long_poll_seconds=0.2, commit_seconds=0.1)


@pytest.fixture
async def names():
    async with NameServer(NameServerConfig(port=0), SystemClock()) as names:
        yield names


@pytest.fixture
def config_of(names, tmp_path, monkeypatch):
    monkeypatch.setattr(slave_tables, "FIRST_SECONDS", 0.05)
    monkeypatch.setattr(slave_tables, "AGAIN_SECONDS", 0.1)

    def config_of(role):
        folder = tmp_path / role.name
        store = StoreConfig(
            folder, segment_bytes=1 << 20, consume_queue_entries=1000, index_slots=100, index_entries=1000
        )
        number = int(role is ConfiguredRole.SLAVE)
        settings = {"namesrv": (names.address,), "slave_read": True, "default_topic_queues": 1}
        return BrokerConfig(folder, port=0, store=store, role=role, broker_id=number, **settings)

    return config_of


async def consume(names, count):
    """Consume so many messages as group workers; return their bodies."""
    bodies = []

    async def take(messages):
        bodies.extend(message.body for message in messages)
        if len(bodies) >= count:
            consumer.stop()

    consumer = AsyncConsumer("workers", names.address, config=CONFIG)
    consumer.subscribe("orders", take)
    async with consumer:
        await consumer.wait()
    return bodies


async def test_without_the_master_a_group_goes_on_at_the_slave_and_its_commits_count(names, config_of):
    master = await Broker(config_of(ConfiguredRole.ASYNC_MASTER), SystemClock()).__aenter__()
    async with Broker(config_of(ConfiguredRole.SLAVE), SystemClock()) as slave:
        async with AsyncProducer("p", names.address) as producer:
            for number in range(6):
                await producer.send(Message("orders", b"%d" % number))
        master.groups.put(GroupConfig(name="workers"))
        master.offsets.commit("workers", "orders", 0, 2)
        await until(lambda: slave.store.max_offset("orders", 0) == 6)
        await until(lambda: slave.offsets.find("workers", "orders", 0) == 2)
        await until(lambda: "workers" in slave.groups)
        await master.__aexit__(None, None, None)
        assert list(names.routes.route("orders").brokers[0].addresses) == [1]

        assert await consume(names, 2) == [b"2", b"3", b"4", b"5"]
        assert slave.offsets.find("workers", "orders", 0) == 6

        async with AsyncProducer("p", names.address) as producer:
            with pytest.raises(MQError):
                await producer.send(Message("orders", b"nobody takes this"), timeout=0.5)


async def test_the_master_refers_a_reader_of_old_messages_to_the_groups_slave(config, clock, caller_to, monkeypatch):
    async with Broker(replace(config, slave_read=True), clock) as master:
        caller = await caller_to(master)
        await caller.create_topic("orders")
        await caller.send("orders")
        master.groups.put(GroupConfig(name="c", slow_broker_id=2))

        async def suggested(**pull):
            return (await caller.pull("orders", **pull)).header(PullMessageResponse).suggested_broker_id

        assert [await suggested() for _ in range(3)] == [0, 0, 0]  # the compiled path answers later ones
        monkeypatch.setattr(master.store.reading, "_resident_bytes", -1)  # as if 40 % of the memory were behind
        assert await suggested(sql="colour IS NULL") == 2
        assert await suggested(sql="colour IS NULL", offset=1) == 0  # nothing was read
        master.config.slave_read = False
        assert await suggested(sql="colour IS NULL") == 0


async def test_the_master_refers_a_group_to_the_slave_that_it_is_to_read_from(config, clock, caller_to):
    async with Broker(replace(config, slave_read=True), clock) as master:
        caller = await caller_to(master)
        await caller.create_topic("orders")
        await caller.send("orders")
        await caller.pull("orders")
        master.groups.put(GroupConfig(name="c", broker_id=3))

        for _ in range(3):
            response = await caller.pull("orders")
            assert response.header(PullMessageResponse).suggested_broker_id == 3
