"""Whole brokers as master and slave: what senders are answered, and which ports are open. FakeClock; real sockets."""

import asyncio
from dataclasses import replace

import pytest
from tests.broker.headers import send_header
from tests.broker.replication.ha.conftest import SEGMENT, fill, sockets

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig, ConfiguredRole
from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.broker.role import BrokerRole
from pyromq.errors import ResponseCode
from pyromq.metrics.exposition import Exposition
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.remoting.headers import BrokerState
from pyromq.slow_work import run_blocking
from pyromq.store.store_config import StoreConfig

WAIT_FALSE = "WAIT\x01false"


def config_of(folder, role, **settings):
    store = StoreConfig(folder, segment_bytes=SEGMENT, consume_queue_entries=1000, index_slots=100, index_entries=1000)
    broker_id = 1 if role is ConfiguredRole.SLAVE else 0
    return BrokerConfig(folder, port=0, role=role, broker_id=broker_id, store=store, **settings)


@pytest.fixture
async def sync_master(tmp_path, clock):
    async with Broker(config_of(tmp_path / "master", ConfiguredRole.SYNC_MASTER), clock) as broker:
        yield broker


@pytest.fixture
async def orders(sync_master, caller_to):
    caller = await caller_to(sync_master)
    await caller.create_topic("orders")
    return caller


@pytest.fixture
async def slave_of(tmp_path, clock):
    """Start a slave of a master: `await slave_of(broker)`."""
    slaves = []

    async def start(master):
        role = BrokerRole(1)
        config = config_of(tmp_path / f"slave{len(slaves)}", ConfiguredRole.SLAVE, namesrv=("127.0.0.1:1",))
        slave = Broker(config, clock, role=role)
        slaves.append(slave)
        await slave.__aenter__()
        role.follow(master.address, master.role.ha_address)
        return slave

    yield start
    for slave in slaves:
        await slave.__aexit__(None, None, None)


async def until(clock, condition):
    for _ in range(600):
        if condition():
            return
        await clock.advance(0.05)
        await sockets()
    raise AssertionError("the condition does not hold after 30 s")


async def following(clock, master, slave):
    await until(clock, lambda: slave.store.max_log_offset == master.store.max_log_offset)


async def test_a_send_waits_for_a_slave_and_is_then_at_the_slave(sync_master, orders, slave_of, clock):
    await orders.channel.call(send_header(WAIT_FALSE, topic="orders"), b"first", timeout=30)
    slave = await slave_of(sync_master)
    await following(clock, sync_master, slave)
    sending = orders.channel.call_soon(send_header("", topic="orders"), b"hello", timeout=30)
    await sockets()
    response = await sending
    assert response.code == 0
    assert slave.store.max_log_offset == sync_master.store.max_log_offset
    assert slave.store.message("orders", 0, 1).body == b"hello"


async def test_without_a_slave_sends_are_stored_and_answered_with_11_at_once(sync_master, orders):
    response = await orders.channel.call(send_header("", topic="orders"), b"hello", timeout=30)
    assert response.code == ResponseCode.SLAVE_NOT_AVAILABLE == 11
    assert await orders.bodies() == [b"hello"]


async def test_a_slave_that_does_not_report_in_time_is_answered_with_12(sync_master, orders, clock):
    host, _, port = sync_master.role.ha_address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    await sockets()
    sending = orders.channel.call_soon(send_header("", topic="orders"), b"hello", timeout=30)
    await sockets()
    await clock.advance(2.5)
    await sockets()
    assert not sending.done()
    await clock.advance(1)
    assert (await sending).code == ResponseCode.FLUSH_SLAVE_TIMEOUT == 12
    assert await orders.bodies() == [b"hello"]
    writer.close()


async def test_a_sender_that_does_not_wait_is_answered_at_once(sync_master, orders):
    response = await orders.channel.call(send_header(WAIT_FALSE, topic="orders"), b"hello", timeout=30)
    assert response.code == 0


async def test_a_false_report_confirms_nothing(sync_master, orders, clock):
    host, _, port = sync_master.role.ha_address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port))
    writer.write((1 << 40).to_bytes(8, "big"))
    await sockets()
    response = await orders.channel.call(send_header("", topic="orders"), b"hello", timeout=30)
    assert response.code == ResponseCode.SLAVE_NOT_AVAILABLE
    writer.close()


async def test_a_slave_that_is_promoted_serves_slaves(sync_master, orders, slave_of, clock, caller_to):
    await orders.channel.call(send_header(WAIT_FALSE, topic="orders"), b"first", timeout=30)
    slave = await slave_of(sync_master)
    await following(clock, sync_master, slave)
    await slave.promote()
    second = await slave_of(slave)
    await following(clock, slave, second)
    assert second.store.message("orders", 0, 0).body == b"first"


async def test_a_broker_without_a_role_opens_no_second_port(tmp_path, clock):
    async with Broker(config_of(tmp_path, None), clock) as broker:
        assert broker.role.ha_address is None


async def test_the_port_for_slaves_is_the_next_one_or_the_one_that_is_set(tmp_path, clock):
    free = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = free.sockets[0].getsockname()[1]
    free.close()
    await free.wait_closed()
    config = replace(config_of(tmp_path, ConfiguredRole.ASYNC_MASTER), ha=HaConfig(port=port))
    async with Broker(config, clock) as broker:
        assert broker.role.ha_address == f"127.0.0.1:{port}"


async def test_registered_brokers_of_the_same_name_are_known_by_their_addresses(tmp_path, clock):
    async with NameServer(NameServerConfig(port=0), clock) as name_server:
        config = config_of(tmp_path, ConfiguredRole.ASYNC_MASTER, namesrv=(name_server.address,))
        async with Broker(config, clock) as broker:
            assert await broker.registering.hosts() == {"127.0.0.1"}


@pytest.mark.parametrize("told", [True, False])
async def test_a_slave_left_behind_starts_over_if_told_to(tmp_path, clock, caller_to, told):
    async with NameServer(NameServerConfig(port=0), clock) as name_server:
        namesrv = (name_server.address,)
        async with Broker(
            config_of(tmp_path / "master", ConfiguredRole.ASYNC_MASTER, namesrv=namesrv), clock
        ) as master:
            caller = await caller_to(master)
            await caller.create_topic("orders")
            await fill(caller, 10_000)
            slave_config = config_of(tmp_path / "slave", ConfiguredRole.SLAVE, namesrv=namesrv)
            async with Broker(slave_config, clock) as slave:
                await following(clock, master, slave)
                end = slave.store.max_log_offset
            await fill(caller, 3 * SEGMENT)
            await clock.advance(10)
            assert master.store.retention.expire_now(1)
            assert master.store.min_log_offset > end
            config = replace(slave_config, ha=HaConfig(start_over=told))
            async with Broker(config, clock) as slave:
                if told:
                    await following(clock, master, slave)
                    assert slave.store.min_log_offset > end
                    kept = b"".join(file.read_bytes() for file in (tmp_path / "slave" / "cut").glob("*.log"))
                    assert b"x" * 3_000 in kept
                else:
                    await clock.advance(10)
                    await sockets()
                    assert slave.store.max_log_offset == end
            async with Broker(config, clock) as slave:  # nothing is lost at later starts
                assert (slave.store.max_log_offset == master.store.max_log_offset) == told


async def test_figures_tell_how_far_slaves_are_and_why_one_does_not_follow(
    sync_master, orders, slave_of, clock, caller_to
):
    await orders.channel.call(send_header(WAIT_FALSE, topic="orders"), b"first", timeout=30)
    slave = await slave_of(sync_master)
    await following(clock, sync_master, slave)
    await clock.advance(0.1)
    figures = (await orders.body(BrokerState())).table
    assert figures["pyromqSlavesBehind"].endswith(" 0")
    assert "pyromq_slave_behind_bytes{" in text_of(sync_master)
    at_slave = await caller_to(slave)
    assert "pyromqFollowFault" not in (await at_slave.body(BrokerState())).table
    slave.role.follow("127.0.0.1:1", "127.0.0.1:1")
    await until(clock, lambda: slave._state.ha_client.fault)
    assert "127.0.0.1:1" in (await at_slave.body(BrokerState())).table["pyromqFollowFault"]
    assert "pyromq_slave_follows{" in text_of(slave)
    assert text_of(slave).rpartition("pyromq_slave_follows{")[2].splitlines()[0].endswith(" 0")
    assert "pyromq_slave_behind_bytes" not in text_of(sync_master)  # the slave has left


def text_of(broker):
    exposition = Exposition(10_000)
    run_blocking(broker.metrics().tell(exposition))
    return "".join(line for lines in exposition._lines.values() for line in lines)
