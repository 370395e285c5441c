"""Heartbeats: who is a member, who is told, who is forgotten."""

import asyncio
from dataclasses import replace

from pyromq.broker.broker import Broker
from pyromq.remoting.bodies import ClientCheck, GroupConfig, Subscription, encode_body
from pyromq.remoting.headers import CheckClient, ConsumerConnections, ConsumerList, Heartbeat, UnregisterClient


async def members(caller, group="g"):
    return sorted((await caller.body(ConsumerList(consumer_group=group))).client_ids)


async def told(caller):
    return await asyncio.wait_for(caller.notices.get(), 5)


async def test_members_of_a_group_are_listed(caller, broker, caller_to):
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    await other.beat("two", group="g")
    assert await members(caller) == ["one", "two"]


async def test_a_group_without_members_is_refused(caller):
    response = await caller.ask(ConsumerList(consumer_group="nobody"), code=1)
    assert response.remark == "no consumer for this group, nobody"


async def test_a_heartbeat_answer_tells_our_version_and_nothing_else(caller):
    response = await caller.beat("one", producer="p")
    assert (response.version, response.fields, response.body) == (409, {}, b"")


async def test_a_heartbeat_creates_the_group_and_its_retry_topic(caller, broker):
    await caller.beat("one", group="g")
    assert "g" in broker.groups
    assert broker.topics.find("%RETRY%g").read_queues == 1


async def test_every_member_is_told_of_a_new_one(caller, broker, caller_to):
    await caller.beat("one", group="g")
    assert await told(caller) == "g"
    other = await caller_to(broker)
    await other.beat("two", group="g")
    assert await told(caller) == "g"
    assert await told(other) == "g"


async def test_a_repeated_heartbeat_is_no_news(caller):
    await caller.beat("one", group="g")
    await told(caller)
    await caller.beat("one", group="g", version=2)
    assert caller.notices.empty()


async def test_a_changed_subscription_is_news(caller, broker):
    await caller.beat("one", group="g")
    await told(caller)
    await caller.beat("one", group="g", topics=("orders", "more"))
    assert await told(caller) == "g"
    await caller.beat("one", group="g", topics=("more",))
    assert await told(caller) == "g"
    assert list(broker.connections.consumers("g").subscriptions) == ["more"]


async def test_an_older_subscription_does_not_replace_a_newer_one(caller, broker):
    await caller.beat("one", group="g", version=5)
    await caller.beat("one", group="g", version=4)
    assert broker.connections.consumers("g").subscriptions["orders"].version == 5


async def test_nobody_is_told_where_the_group_has_it_switched_off(caller, broker):
    broker.groups.put(GroupConfig(name="g", notify_changes=False))
    await caller.beat("one", group="g")
    assert await members(caller) == ["one"]
    assert caller.notices.empty()


async def test_nobody_is_told_where_the_broker_has_it_switched_off(caller, broker, caller_to):
    broker.config.notify_members = False
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    await other.beat("two", group="g")
    await other.ask(UnregisterClient(client_id="two", consumer_group="g"))
    assert await members(caller) == ["one"]
    assert caller.notices.empty()


async def test_a_member_that_leaves_is_forgotten_and_the_others_are_told(caller, broker, caller_to):
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    await other.beat("two", group="g")
    await told(caller), await told(caller)
    await other.ask(UnregisterClient(client_id="two", consumer_group="g"))
    assert await told(caller) == "g"
    assert await members(caller) == ["one"]


async def test_a_lost_connection_is_a_member_that_leaves(caller, broker, caller_to):
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    await other.beat("two", group="g", producer="p")
    await told(caller), await told(caller)
    await other.channel.close()
    assert await told(caller) == "g"
    assert await members(caller) == ["one"]
    assert broker.connections.producers("p") == []


async def test_a_silent_member_is_forgotten_after_two_minutes(caller, broker, clock):
    await caller.beat("one", group="g", producer="p")
    await clock.advance(115)
    await caller.beat("one", producer="p")
    await clock.advance(15)
    assert broker.connections.consumers("g") is None
    assert [member.client_id for member in broker.connections.producers("p")] == ["one"]


async def test_a_group_that_may_not_be_created_is_registered_all_the_same(config, clock, caller_to):
    async with Broker(replace(config, auto_create_group=False), clock) as broker:
        caller = await caller_to(broker)
        await caller.beat("one", group="g")
        assert await members(caller) == ["one"]
        assert "g" not in broker.groups
        assert broker.topics.find("%RETRY%g") is None


async def test_what_members_say_is_shown(caller):
    await caller.beat("one", group="g")
    shown = await caller.body(ConsumerConnections(consumer_group="g"))
    (connection,) = shown.connections
    assert (connection.client_id, connection.version) == ("one", 409)
    assert connection.client_address == "{}:{}".format(*caller.channel.local_address)
    assert (shown.consume_type, shown.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert list(shown.subscriptions) == ["orders"]


async def test_a_heartbeat_that_is_no_json_is_refused(caller):
    response = await caller.ask(Heartbeat(), b"{", code=1)
    assert "JSON body" in response.remark


async def test_a_tag_subscription_passes_the_check_and_sql_does_not(caller):
    def check(expression, kind):
        subscription = Subscription(topic="orders", expression=expression, expression_type=kind)
        return encode_body(ClientCheck(client_id="one", group="g", subscription=subscription))

    await caller.ask(CheckClient(), check("a || b", "TAG"))
    await caller.ask(CheckClient(), encode_body(ClientCheck()))
    refused = await caller.ask(CheckClient(), check("a > 1", "SQL92"), code=1)
    assert refused.remark == "The broker does not support consumer to filter message by SQL92"
