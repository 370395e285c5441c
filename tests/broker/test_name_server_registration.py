"""Registration at name servers: at once, again and again, and again after a loss."""

import asyncio
import logging
from dataclasses import replace

import pytest
from tests.net.address_server import AddressSite
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.broker import name_server_registration
from pyromq.broker.broker import Broker
from pyromq.clock import SystemClock
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.address_server import REFRESH_SECONDS
from pyromq.net.channel import connect
from pyromq.remoting.bodies import BrokerRegistration, TopicRoute, decode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import DeleteTopicName, PutKv, RouteOfTopic, SaveBrokerSettings


@pytest.fixture
async def names(clock):
    async with NameServer(NameServerConfig(port=0), clock) as names:
        yield names


async def ask(address, header):
    channel = await connect(address, Dispatcher(), SystemClock())
    try:
        return await channel.call(header, timeout=30)
    finally:
        await channel.close()


async def route(names, topic):
    """The topic's route as a name server tells it; None if it knows none."""
    response = await ask(names.address, RouteOfTopic(topic=topic))
    return decode_body(TopicRoute, response.body) if response.code == 0 else None


async def advance_until(clock, condition, *, seconds=5):
    """Let time pass in small steps, and then no more, until the condition holds; sockets need turns of the loop."""
    for _ in range(seconds * 4):
        if condition():
            return
        await clock.advance(0.25)
        await asyncio.sleep(0.01)
    await until(condition)


async def test_a_started_broker_is_routable(config, clock, names):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        found = await route(names, "TBW102")
        assert found.brokers[0].addresses == {0: broker.address}
        assert (found.queues[0].write_queues, found.queues[0].permission) == (8, 7)
    assert await route(names, "TBW102") is None


async def test_no_address_for_replicas_is_announced(config, clock, names):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        assert names.routes.master_of(broker.config.name) == (broker.address, "")


async def test_it_registers_at_every_name_server(config, clock, names):
    async with NameServer(NameServerConfig(port=0), clock) as second:
        addresses = names.address, second.address
        async with Broker(replace(config, namesrv=addresses), clock) as broker:
            assert set(broker.registering.registered) == set(addresses)


async def test_a_created_topic_is_routable_when_the_answer_comes(config, clock, names, caller_to):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        await (await caller_to(broker)).create_topic("orders", queues=3)
        assert (await route(names, "orders")).queues[0].write_queues == 3


async def test_an_automatically_created_topic_is_told_at_once(config, clock, names, caller_to):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        await (await caller_to(broker)).send("orders")
        assert (await route(names, "orders")).queues[0].write_queues == 4


async def test_an_unreachable_name_server_does_not_keep_a_broker_from_starting(config, clock, caplog):
    caplog.set_level(logging.INFO)
    async with Broker(replace(config, namesrv=("127.0.0.1:1",)), clock) as broker:
        for _ in range(5):
            await clock.advance(1)
            await asyncio.sleep(0.01)
        assert broker.registering.registered == []
    lines = [record.message for record in caplog.records if "name server" in record.message]
    assert len(lines) == 1, lines
    assert lines[0].startswith("name server 127.0.0.1:1 cannot be used, trying again: ")


async def test_a_restarted_name_server_is_found_again(config, clock, names):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        await names.__aexit__(None, None, None)
        await advance_until(clock, lambda: not broker.registering.registered)
        async with NameServer(NameServerConfig(port=names.port), clock) as again:
            await advance_until(clock, lambda: broker.registering.registered)
            assert (await route(again, "TBW102")).brokers[0].addresses == {0: broker.address}


async def test_a_topic_made_while_the_name_server_was_away_is_told_later(config, clock, names, caller_to):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        caller = await caller_to(broker)
        await names.__aexit__(None, None, None)
        await caller.create_topic("orders")
        async with NameServer(NameServerConfig(port=names.port), clock) as again:
            await advance_until(clock, lambda: broker.registering.registered)
            assert await route(again, "orders") is not None


async def test_registration_repeats_before_the_name_server_gives_up(config, clock, names):
    async with Broker(replace(config, namesrv=(names.address,)), clock):
        for _ in range(26):
            await clock.advance(5)
            assert await route(names, "TBW102") is not None


async def test_a_new_permission_shows_in_all_routes(config, clock, names, caller_to):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await caller.ask(SaveBrokerSettings(), b"brokerPermission=4")
        version = broker.topics.version
        await advance_until(clock, lambda: broker.registering.versions[names.address] == version)
        assert (await route(names, "orders")).queues[0].permission == 4


@pytest.mark.parametrize("option", [{"compressed_register": True}, {"force_register": False}])
async def test_other_forms_of_registration_say_the_same(config, clock, names, caller_to, option):
    async with Broker(replace(config, namesrv=(names.address,), **option), clock) as broker:
        await (await caller_to(broker)).create_topic("orders", queues=3)
        await clock.advance(35)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while (await route(names, "orders")) is None:
                pass
        assert (await route(names, "orders")).queues[0].write_queues == 3


async def test_ordered_topics_come_from_the_name_server(config, clock, names, caller_to):
    await ask(names.address, PutKv(namespace="ORDER_TOPIC_CONFIG", key="orders", value="broker-a:4"))
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        await (await caller_to(broker)).create_topic("orders")
        await advance_until(clock, lambda: broker.topics.find("orders").order, seconds=40)


async def test_a_topic_deleted_at_the_name_server_only_comes_back(config, clock, names, caller_to):
    async with Broker(replace(config, namesrv=(names.address,)), clock) as broker:
        await (await caller_to(broker)).create_topic("orders")
        await ask(names.address, DeleteTopicName(topic="orders"))
        assert await route(names, "orders") is None
        await (await caller_to(broker)).create_topic("more")
        await advance_until(clock, lambda: broker.registering.registered)
        assert await route(names, "more") is not None


async def test_a_table_is_written_for_name_servers_between_others_requests(config, clock, monkeypatch):
    monkeypatch.setattr(name_server_registration, "PIECES_AT_ONCE", 2)
    turns = 0

    async def others():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with Broker(config, clock) as broker:
        working = asyncio.ensure_future(others())
        body = await broker.registering._whole_table()
        working.cancel()
        assert turns > 5
        assert decode_body(BrokerRegistration, body).topics == broker.topics.table()


# -- name servers that are looked up


@pytest.fixture
def site():
    with AddressSite() as site:
        yield site


async def test_name_servers_are_looked_up_where_a_url_is_given(config, clock, names, site):
    site.answer = names.address
    async with Broker(replace(config, namesrv=(site.url,)), clock) as broker:
        assert broker.registering.registered == [names.address]
        assert await route(names, "TBW102") is not None


async def test_a_broker_follows_what_the_address_server_says(config, clock, names, site):
    async with NameServer(NameServerConfig(port=0), clock) as fixed, NameServer(NameServerConfig(port=0), clock) as new:
        site.answer = names.address
        async with Broker(replace(config, namesrv=(fixed.address, site.url)), clock) as broker:
            assert set(broker.registering.registered) == {fixed.address, names.address}
            site.answer = new.address

            await clock.advance(REFRESH_SECONDS)

            await advance_until(clock, lambda: set(broker.registering.registered) == {fixed.address, new.address})
            assert await route(names, "TBW102") is None
            assert await route(new, "TBW102") is not None


async def test_a_broker_starts_without_the_address_server_and_asks_again(config, clock, names, site, caplog):
    site.status = 500
    async with Broker(replace(config, namesrv=(site.url,)), clock) as broker:
        await clock.advance(10)
        await advance_until(clock, lambda: len(site.asked) == 2)
        assert broker.registering.registered == []
        site.status, site.answer = 200, names.address
        await clock.advance(10)
        await advance_until(clock, lambda: broker.registering.registered == [names.address])
    assert caplog.text.count(f"cannot be looked up: {site.url} answers 500") == 1
