"""Heartbeats: who is a member, who is told, who is forgotten."""

import asyncio
from dataclasses import replace

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.limits import BrokerLimits
from pyromq.broker.members import connections
from pyromq.broker.members.consumer_groups import BUILT_IN_GROUPS
from pyromq.remoting.bodies import (
    ClientCheck,
    ConsumerEntry,
    GroupConfig,
    HeartbeatBody,
    QueueLock,
    Subscription,
    WireQueue,
    encode_body,
)
from pyromq.remoting.headers import (
    BrokerState,
    CheckClient,
    ConsumerConnections,
    ConsumerList,
    Heartbeat,
    LockQueues,
    SaveBrokerSettings,
    UnregisterClient,
)


async def members(caller, group="g"):
    return sorted((await caller.body(ConsumerList(consumer_group=group))).client_ids)


async def told(caller):
    return await asyncio.wait_for(caller.notices.get(), PATIENCE_SECONDS)


async def test_members_of_a_group_are_listed(caller, broker, caller_to):
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    await other.beat("two", group="g")
    assert await members(caller) == ["one", "two"]


async def test_a_group_without_members_is_refused(caller):
    response = await caller.ask(ConsumerList(consumer_group="nobody"), code=1)
    assert response.remark == "no consumer for this group, nobody"


HOSTILE = {
    "references that multiply": b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[%b]}%b]}'
    % (b",".join([b'{"topic":"t"}'] * 500), b',{"$ref":"$.consumerDataSet[0]"}' * 5000),
    "nearly JSON": b'{"clientID":"c","x":[%b0],1:2}' % (b"1," * 100_000),
    "a long text in what is no plain JSON": b'{1:2,"clientID":"%b"}' % (b"x" * 1_000_000),
}


@pytest.mark.parametrize("body", HOSTILE.values(), ids=HOSTILE)
async def test_a_heartbeat_that_would_take_long_is_refused(caller, broker, body):
    remark = (await caller.ask(Heartbeat(), body, code=1)).remark
    assert remark.startswith("HeartbeatBody: ")
    assert "limit" in remark or "more than" in remark
    assert "g" not in broker.groups
    await caller.beat("one", group="g")
    assert await members(caller) == ["one"]


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


def warnings(caplog):
    return [r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "subscribe" in r.getMessage()]


async def test_members_that_subscribe_differently_are_told_once_by_name(caller, broker, caller_to, caplog):
    others = [await caller_to(broker) for _ in range(2)]
    await caller.beat("one", group="g", tags=("a", "b"))
    await others[0].beat("two", group="g", tags=("b", "a"))
    assert warnings(caplog) == []
    await others[1].beat("three", group="g", tags=("c",))
    for each, name, tags in ((caller, "one", ("a", "b")), (others[0], "two", ("b", "a")), (others[1], "three", ("c",))):
        await each.beat(name, group="g", tags=tags)
    assert warnings(caplog) == [
        'group g: members subscribe differently and miss messages: orders: "a || b" by one, two; "c" by three'
    ]


async def test_it_is_told_when_members_subscribe_alike_again(caller, broker, caller_to, caplog):
    caplog.set_level("INFO", "pyromq.broker.members.heartbeat_processor")
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    await other.beat("two", group="g", topics=("orders", "more"))
    await other.ask(UnregisterClient(client_id="two", consumer_group="g"))
    await caller.beat("one", group="g")
    assert caplog.messages[-2:] == [
        'group g: members subscribe differently and miss messages: more: nothing by one; "*" by two',
        "group g: members subscribe alike again",
    ]


async def test_those_who_choose_their_queues_and_tools_may_differ(caller, broker, caller_to, caplog):
    other = await caller_to(broker)
    await caller.beat("one", group="g", version=0)
    await other.beat("two", group="g", version=0, tags=("a",))
    await caller.beat("one", group="TOOLS_CONSUMER")
    await other.beat("two", group="TOOLS_CONSUMER", tags=("a",))
    assert warnings(caplog) == []


async def test_a_newcomer_that_differs_is_refused_where_that_is_wanted(caller, broker, caller_to, caplog):
    broker.config.refuse_different_subscriptions = True
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    for _ in range(2):
        refused = await other.beat("two", group="g", tags=("a",), producer="p", code=1)
    text = 'group g: two is refused, since members subscribe differently: orders: "*" by one; "a" by two'
    assert (refused.remark, warnings(caplog)) == (text, [text])
    assert await members(caller) == ["one"]
    assert [member.client_id for member in broker.connections.producers("p")] == ["two"]
    await other.beat("two", group="g")
    assert await members(caller) == ["one", "two"]


async def test_a_member_may_change_what_it_subscribes_to(caller, broker, caller_to):
    broker.config.refuse_different_subscriptions = True
    other = await caller_to(broker)
    await caller.beat("one", group="g")
    await other.beat("two", group="g")
    await caller.beat("one", group="g", tags=("a",), version=2)
    await (await caller_to(broker)).beat("three", group="g", tags=("a",), version=2)
    assert await members(caller) == ["one", "three", "two"]


async def test_tools_that_ask_are_told_what_each_member_wants_and_who_has_locks(caller, broker, caller_to, clock):
    await caller.beat("one", group="g", tags=("a",))
    lock = QueueLock(group="g", client_id="one", queues=[WireQueue(topic="orders", broker_name="b", queue_id=0)])
    await caller.ask(LockQueues(), encode_body(lock))
    await clock.advance(3)

    shown = await caller.body(ConsumerConnections(consumer_group="g", details=True))
    assert shown.connections[0].subscriptions == {"orders": "a"}
    assert [(each.queue.queue_id, each.client_id, each.age_ms) for each in shown.locks] == [(0, "one", 3000)]
    plain = (await caller.ask(ConsumerConnections(consumer_group="g"))).body
    assert b"locks" not in plain and b'"subscriptions"' not in plain

    await caller.ask(UnregisterClient(client_id="one", consumer_group="g"))
    await caller.ask(ConsumerConnections(consumer_group="g"), code=206)
    left = await caller.body(ConsumerConnections(consumer_group="g", details=True))
    assert ([each.client_id for each in left.locks], left.connections) == (["one"], [])
    await clock.advance(60)
    await caller.ask(ConsumerConnections(consumer_group="g", details=True), code=206)


async def test_a_heartbeat_that_is_no_json_is_refused(caller):
    response = await caller.ask(Heartbeat(), b"{", code=1)
    assert "JSON body" in response.remark


async def test_a_subscription_is_checked_before_a_consumer_starts(caller, broker):
    def check(expression, kind):
        subscription = Subscription(topic="orders", expression=expression, expression_type=kind)
        return encode_body(ClientCheck(client_id="one", group="g", subscription=subscription))

    await caller.ask(CheckClient(), check("a || b", "TAG"))
    await caller.ask(CheckClient(), encode_body(ClientCheck()))
    await caller.ask(CheckClient(), check("a > 1", "SQL92"))
    refused = await caller.ask(CheckClient(), check("a >", "SQL92"), code=23)
    assert "it ends at character 4" in refused.remark
    await caller.ask(SaveBrokerSettings(), b"enablePropertyFilter=false")
    refused = await caller.ask(CheckClient(), check("a > 1", "SQL92"), code=1)
    assert refused.remark == "The broker does not support consumer to filter message by SQL92"


async def test_a_connection_has_its_share_of_groups_and_the_next_one_finds_room(config, clock, caller_to):
    async with Broker(replace(config, limits=BrokerLimits(groups=len(BUILT_IN_GROUPS) + 30)), clock) as broker:
        caller, other = await caller_to(broker), await caller_to(broker)
        for number in range(3):
            await caller.beat("greedy", group=f"g{number}")
        response = await caller.beat("greedy", group="more", code=2)
        assert "this connection created 3 groups" in response.remark
        assert "raise maxGroups (now 37)" in response.remark
        assert "more" not in broker.groups
        await caller.beat("greedy", group="g0")  # what is there already goes on
        await other.beat("modest", group="more")
        assert (await caller.body(BrokerState())).table["pyromqRefused.maxGroups"] == "1"


async def test_a_connection_refused_for_its_heartbeat_is_not_kept_after_its_end(config, clock, caller_to):
    async with Broker(replace(config, limits=BrokerLimits(members=1)), clock) as broker:
        caller = await caller_to(broker)
        await caller.beat("greedy", group="g", topics=("a", "b"), code=2)
        await caller.channel.close()
        while broker._server.sessions:
            await asyncio.sleep(0)
        assert not broker.connections._weights


async def test_a_connection_has_its_share_of_members_and_the_next_one_finds_room(config, clock, caller_to):
    async with Broker(replace(config, limits=BrokerLimits(members=100)), clock) as broker:
        caller, other = await caller_to(broker), await caller_to(broker)
        for number in range(3):
            await caller.beat("greedy", group=f"g{number}", topics=("a", "b"))
        response = await caller.beat("greedy", group="g3", topics=("a", "b"), code=2)
        assert "this connection has 9 groups and subscriptions" in response.remark
        assert "raise maxMembers (now 100)" in response.remark
        assert broker.connections.consumers("g3") is None
        await caller.beat("greedy", group="g0", topics=("a", "b"))  # what is there already goes on
        await other.beat("modest", group="g3")
        await caller.ask(UnregisterClient(client_id="greedy", consumer_group="g0"))
        await caller.beat("greedy", group="g4", topics=("a", "b"))
        await caller.channel.close()
        while broker.connections._quota.used > 2:
            await asyncio.sleep(0)


async def test_one_group_too_many_costs_the_others_of_a_heartbeat_nothing(config, clock, caller_to):
    async with Broker(replace(config, limits=BrokerLimits(groups=len(BUILT_IN_GROUPS) + 1)), clock) as broker:
        caller = await caller_to(broker)
        consumers = [ConsumerEntry(group=name, subscriptions=[Subscription(topic="t")]) for name in ("one", "two")]
        response = await caller.ask(Heartbeat(), encode_body(HeartbeatBody("client", consumers)), code=2)
        assert "group [two] is not created" in response.remark
        assert await members(caller, "one") == ["client"]


@pytest.mark.parametrize("long", ["expression", "group", "client"])
async def test_names_and_expressions_too_long_to_be_kept_are_refused(caller, broker, long):
    text = "x" * 9_000
    response = await caller.beat(
        text if long == "client" else "one",
        group=text if long == "group" else "g",
        tags=[text] if long == "expression" else (),
        code=2 if long == "expression" else 1,
    )
    assert ("maxSubscriptionLength" if long == "expression" else "longer than 255") in response.remark
    assert len(response.remark) < 300
    assert broker.connections.consumers("g") is None


async def test_a_large_group_is_told_of_many_changes_at_once(config, clock, caller_to, monkeypatch):
    monkeypatch.setattr(connections, "MANY_MEMBERS", 3)
    monkeypatch.setattr(connections, "NOTIFY_SLICE", 2)
    async with Broker(config, clock) as broker:
        callers = [await caller_to(broker) for _ in range(8)]
        for number, caller in enumerate(callers):
            await caller.beat(f"client-{number}", group="g")
        await clock.advance(connections.LARGE_GROUP_SECONDS)
        for caller in callers:
            assert await told(caller) == "g"
        for caller in callers:
            while not caller.notices.empty():
                caller.notices.get_nowait()
        await callers[0].ask(UnregisterClient(client_id="client-0", consumer_group="g"))
        await callers[1].ask(UnregisterClient(client_id="client-1", consumer_group="g"))
        await clock.advance(connections.LARGE_GROUP_SECONDS)
        assert await told(callers[7]) == "g"


async def test_who_was_in_very_many_groups_leaves_all_of_them(caller, broker, caller_to, monkeypatch):
    monkeypatch.setattr(connections, "LEAVING_SLICE", 2)
    for number in range(9):
        await caller.beat("one", group=f"g{number}", producer=f"p{number}")
    assert broker.connections.producer_at("one") is not None
    await caller.channel.close()
    while list(broker.connections.consumer_groups()) or broker.connections.producer_groups():
        await asyncio.sleep(0)
    assert broker.connections.producer_at("one") is None
    assert broker.connections._quota.used == 0
