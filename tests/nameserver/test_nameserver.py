"""A name server's life: start, stop, brokers that fall silent or whose connection ends, requests it does not know."""

import socket

import pytest

from pyromq.errors import StoreCorrupt, UsageError
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.remoting.bodies import DataVersion, encode_body
from pyromq.remoting.headers import KvValue, MaxOffset, PutKv, QueryDataVersion, RouteOfTopic, SendMessageV2
from pyromq.testing.fake_clock import settle

from .conftest import announcement


async def test_a_silent_broker_is_gone_after_two_minutes(name_server, broker, client, clock):
    await broker.register(announcement("t"))
    await clock.advance(119)
    await client.route("t")
    await clock.advance(7)
    await client.ask(RouteOfTopic(topic="t"), code=17)


@pytest.mark.parametrize("hours", [1, -1])
async def test_a_wall_clock_that_jumps_removes_nobody(broker, client, clock, hours):
    await broker.register(announcement("t"))
    clock.jump(hours * 3600)
    await clock.advance(20)
    await client.route("t")
    await clock.advance(107)
    await client.ask(RouteOfTopic(topic="t"), code=17)


async def test_a_broker_that_registers_again_or_asks_for_its_version_stays(broker, client, clock):
    version = encode_body(DataVersion(counter=1, timestamp=1))
    ask = QueryDataVersion(broker_name="a", broker_address="10.0.0.1:10911", cluster="c", broker_id=0)
    await broker.register(announcement("t"))
    for _ in range(5):
        await clock.advance(100)
        await broker.register(announcement("t"))
        await client.route("t")
        await clock.advance(100)
        await broker.ask(ask, version)
        await client.route("t")


async def test_the_end_of_its_connection_removes_a_broker_at_once(broker, client):
    await broker.register(announcement("t"))
    await client.route("t")
    await broker.channel.close()
    await settle()
    await client.ask(RouteOfTopic(topic="t"), code=17)


async def test_a_broker_that_has_moved_to_another_connection_stays(name_server, broker, client, caller_to):
    await broker.register(announcement("t"))
    again = await caller_to(name_server)
    await again.register(announcement("t"))
    await broker.channel.close()
    await settle()
    await client.route("t")
    await again.channel.close()
    await settle()
    await client.ask(RouteOfTopic(topic="t"), code=17)


async def test_the_end_of_a_clients_connection_removes_nobody(name_server, broker, client, caller_to):
    await broker.register(announcement("t"))
    other = await caller_to(name_server)
    await other.route("t")
    await other.channel.close()
    await settle()
    await client.route("t")


async def test_requests_that_are_not_for_name_servers_are_answered_so(client):
    response = await client.ask(MaxOffset(topic="t", queue_id=0), code=3)
    assert response.remark == " request type 30 not supported"
    send = SendMessageV2(
        producer_group="p",
        topic="t",
        default_topic="TBW102",
        default_topic_queue_count=4,
        queue_id=0,
        sys_flag=0,
        born_ms=0,
        flag=0,
    )
    await client.ask(send, b"x", code=3)


async def test_key_value_settings_outlast_a_restart_and_routes_do_not(config, clock, caller_to):
    async with NameServer(config, clock) as name_server:
        caller = await caller_to(name_server)
        await caller.ask(PutKv(namespace="n", key="k", value="v"))
        await caller.register(announcement("t"))
    async with NameServer(config, clock) as name_server:
        caller = await caller_to(name_server)
        assert (await caller.ask(KvValue(namespace="n", key="k"))).fields == {"value": "v"}
        await caller.ask(RouteOfTopic(topic="t"), code=17)


async def test_a_port_in_use_is_named(config, clock):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} at 127.0.0.1 is in use"):
            async with NameServer(NameServerConfig(port=port), clock):
                pass


async def test_a_damaged_file_of_settings_stops_the_start_and_frees_nothing_it_did_not_take(config, clock):
    config.kv_path.write_bytes(b"{")
    with pytest.raises(StoreCorrupt, match=str(config.kv_path)):
        async with NameServer(config, clock):
            pass


async def test_the_settings_given_are_not_changed(config, clock):
    async with NameServer(config, clock) as name_server:
        name_server.config.order_message_enabled = True
    assert not config.order_message_enabled
