"""Pulls: what is given from which offset, what is refused, who waits, what wakes those who wait."""

import asyncio
from dataclasses import replace

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.limits import BrokerLimits
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.record import decode_all
from pyromq.remoting.bodies import (
    ConsumerEntry,
    GroupConfig,
    HeartbeatBody,
    Subscription,
    TopicConfig,
    encode_body,
)
from pyromq.remoting.command import BINARY
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    Heartbeat,
    LitePullMessage,
    MaxOffset,
    PullMessage,
    PullMessageResponse,
    SaveBrokerSettings,
    SaveGroup,
)

FAQ = "\nSee http://rocketmq.apache.org/docs/faq/ for further details."
COMMIT, WAIT, INLINE = 1, 2, 4


def pull(offset=0, *, form=PullMessage, **changes):
    fields = {
        "consumer_group": "c",
        "topic": "orders",
        "queue_id": 0,
        "queue_offset": offset,
        "max_count": 32,
        "sys_flag": INLINE,
        "commit_offset": 0,
        "suspend_ms": 15_000,
        "subscription_version": 0,
        "subscription": "*",
    }
    return form(**(fields | changes))


def bodies(response):
    return [message.body for message in decode_all(response.body)]


def position(response):
    """Return status, and the offsets: next, least, most."""
    answer = response.header(PullMessageResponse)
    assert answer.suggested_broker_id == 0
    return response.code, response.remark, answer.next_offset, answer.min_offset, answer.max_offset


@pytest.fixture
async def orders(caller):
    await caller.create_topic("orders", queues=2)
    return caller


@pytest.fixture
async def three(orders):
    """Three messages in queue 0, tagged A, B, A."""
    for body, tag in (b"0", "A"), (b"1", "B"), (b"2", "A"):
        await orders.send("orders", body, properties=f"TAGS\x01{tag}")
    return orders


async def parked(caller, request):
    """Return the answer to come of a pull that waits."""
    waiting = caller.channel.call_soon(request, timeout=30)
    await caller.ask(MaxOffset(topic="orders", queue_id=0))
    assert not waiting.done()
    return waiting


# -- where to go on


@pytest.mark.parametrize("form", [PullMessage, LitePullMessage])
async def test_messages_come_from_the_offset_on(three, form):
    response = await three.ask(pull(1, form=form))
    assert bodies(response) == [b"1", b"2"]
    assert position(response) == (0, "FOUND", 3, 0, 3)


async def test_binary_headers_are_answered_with_binary_headers(broker, three, clock):
    channel = await connect(broker.address, Dispatcher(), clock, connections=ConnectionConfig(serialization=BINARY))
    assert bodies(await channel.call(pull(), timeout=30)) == [b"0", b"1", b"2"]
    assert position(await channel.call(pull(3), timeout=30)) == (19, "OFFSET_OVERFLOW_ONE", 3, 0, 3)
    await channel.close()


@pytest.mark.parametrize(
    ("offset", "code", "status", "next_offset"),
    [
        (3, 19, "OFFSET_OVERFLOW_ONE", 3),
        (4, 21, "OFFSET_OVERFLOW_BADLY", 3),
        (1 << 62, 21, "OFFSET_OVERFLOW_BADLY", 3),
        (-1, 21, "OFFSET_TOO_SMALL", 0),
        (-(1 << 62), 21, "OFFSET_TOO_SMALL", 0),
    ],
)
async def test_an_offset_outside_the_queue_is_corrected(three, offset, code, status, next_offset):
    response = await three.ask(pull(offset), code=code)
    assert position(response) == (code, status, next_offset, 0, 3)
    assert response.body == b""


@pytest.mark.parametrize(("offset", "code"), [(0, 19), (1, 21), (1 << 62, 21), (-1, 21)])
async def test_a_queue_that_never_had_a_message_has_nothing_at_zero(orders, offset, code):
    response = await orders.ask(pull(offset), code=code)
    assert position(response) == (code, "NO_MESSAGE_IN_QUEUE", 0, 0, 0)


async def test_what_retention_has_removed_is_too_small(config, clock, caller_to):
    config = replace(config, store=replace(config.store, segment_bytes=4096))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        for _ in range(60):
            await caller.send("orders", bytes(100))
    (config.data / "commitlog" / f"{0:020}").unlink()
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        least = broker.store.min_offset("orders", 0)
        assert 0 < least < 60
        assert position(await caller.ask(pull(0), code=21)) == (21, "OFFSET_TOO_SMALL", least, least, 60)
        assert position(await caller.ask(pull(least)))[:2] == (0, "FOUND")


async def test_after_a_lost_file_of_the_queue_the_next_one_is_read(config, clock, caller_to):
    config = replace(config, store=replace(config.store, consume_queue_entries=4))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        for _ in range(10):
            await caller.send("orders")
        queue = broker.store._queues.find("orders", 0)
        queue.files.segments.pop(0)
        assert position(await caller.ask(pull(1), code=19)) == (19, "OFFSET_FOUND_NULL", 4, 0, 10)
        assert len(bodies(await caller.ask(pull(4)))) == 4


# -- how much


@pytest.mark.parametrize(("asked", "given"), [(2, 2), (32, 32), (1000, 32), (1, 1), (0, 1), (-5, 1)])
async def test_the_count_is_limited_by_both_sides_and_one_comes_always(orders, asked, given):
    for n in range(40):
        await orders.send("orders", b"%d" % n)
    response = await orders.ask(pull(max_count=asked))
    assert len(bodies(response)) == given
    assert response.header(PullMessageResponse).next_offset == given


async def test_a_pull_gives_a_quarter_mebibyte_or_one_larger_message(orders):
    for size in (100_000, 100_000, 100_000, 400_000, 10):
        await orders.send("orders", bytes(size))
    got, offset = [], 0
    while offset < 5:
        response = await orders.ask(pull(offset))
        got.append(list(map(len, bodies(response))))
        offset = response.header(PullMessageResponse).next_offset
    assert got == [[100_000, 100_000], [100_000], [400_000], [10]]


# -- tags


@pytest.mark.parametrize(
    ("expression", "found"),
    [
        ("*", [b"0", b"1", b"2"]),
        ("", [b"0", b"1", b"2"]),
        (None, [b"0", b"1", b"2"]),
        ("A", [b"0", b"2"]),
        (" A || Z ", [b"0", b"2"]),
        ("A||B", [b"0", b"1", b"2"]),
        ("B", [b"1"]),
    ],
)
async def test_only_messages_with_wanted_tags_come(three, expression, found):
    response = await three.ask(pull(subscription=expression))
    assert bodies(response) == found
    assert response.header(PullMessageResponse).next_offset == 3


async def test_where_no_tag_is_wanted_the_next_offset_lies_behind(three):
    assert position(await three.ask(pull(1, subscription="Z"), code=20)) == (20, "NO_MATCHED_MESSAGE", 3, 0, 3)


async def test_tags_of_equal_hash_pass(orders):
    await orders.send("orders", b"x", properties="TAGS\x01BB")
    assert bodies(await orders.ask(pull(subscription="Aa"))) == [b"x"]


async def test_the_last_of_doubled_tags_counts(orders):
    await orders.send("orders", b"x", properties="TAGS\x01A\x02TAGS\x01B")
    await orders.ask(pull(subscription="A"), code=20)
    assert bodies(await orders.ask(pull(subscription="B"))) == [b"x"]


async def test_messages_without_tags_are_for_those_who_want_all(orders):
    await orders.send("orders", b"x")
    await orders.ask(pull(subscription="A"), code=20)
    assert bodies(await orders.ask(pull())) == [b"x"]


# -- refusals, in upstream's order


async def test_a_broker_that_may_not_be_read_refuses(broker, three):
    broker.config.permission = 2
    response = await three.ask(pull(consumer_group="no such group", topic="nowhere"), code=16)
    assert response.remark == "the broker[127.0.0.1] pulling message is forbidden"


async def test_an_unknown_group_is_refused_where_groups_are_not_created(broker, three):
    broker.config.auto_create_group = False
    response = await three.ask(pull(consumer_group="new", topic="nowhere"), code=26)
    assert response.remark == f"subscription group [new] does not exist, {FAQ}"
    broker.config.auto_create_group = True
    await three.ask(pull(consumer_group="new"))
    assert "new" in broker.groups


@pytest.mark.parametrize("group", ["", "no blanks", "g" * 256])
async def test_an_illegal_group_does_not_exist(three, group):
    await three.ask(pull(consumer_group=group), code=26)


async def test_a_group_that_may_not_consume_is_refused(three):
    await three.ask(SaveGroup(), encode_body(GroupConfig(name="c", consume_enabled=False)))
    response = await three.ask(pull(topic="nowhere"), code=16)
    assert response.remark == "subscription group no permission, c"


async def test_an_unknown_topic_is_refused_and_not_created(broker, three):
    response = await three.ask(pull(topic="nowhere"), code=17)
    assert response.remark == f"topic[nowhere] not exist, apply first please! {FAQ}"
    assert broker.topics.find("nowhere") is None


async def test_a_topic_that_may_not_be_read_is_refused(broker, three):
    broker.topics.put(TopicConfig(name="orders", permission=2, read_queues=1))
    response = await three.ask(pull(queue_id=1), code=16)
    assert response.remark == "the topic[orders] pulling message is forbidden"


@pytest.mark.parametrize("queue_id", [2, -1, 1 << 40])
async def test_a_queue_the_topic_does_not_have_is_refused(three, queue_id):
    host, port = three.channel.local_address
    response = await three.ask(pull(queue_id=queue_id, subscription="||"), code=1)
    assert response.remark == (
        f"queueId[{queue_id}] is illegal, topic:[orders] topicConfig.readQueueNums:[2] consumer:[/{host}:{port}]"
    )


@pytest.mark.parametrize("expression", ["||", " || ", " "])
async def test_an_expression_without_a_tag_cannot_be_understood(three, expression):
    response = await three.ask(pull(subscription=expression), code=23)
    assert response.remark.startswith("parse the consumer's subscription failed")


async def test_expressions_choose_by_properties(three):
    by_tag = pull(subscription="TAGS = 'A'", expression_type="SQL92")
    assert bodies(await three.ask(by_tag)) == [b"0", b"2"]
    nothing = await three.ask(pull(subscription="missing > 1", expression_type="SQL92"), code=20)
    assert position(nothing) == (20, "NO_MATCHED_MESSAGE", 3, 0, 3)


async def test_a_broken_expression_is_refused(three):
    """Upstream gives everything, unfiltered."""
    response = await three.ask(pull(subscription="a >", expression_type="SQL92"), code=23)
    assert response.remark.startswith("the SQL92 expression 'a >' cannot be used: it ends at character 4")


async def test_only_a_record_of_which_the_expression_is_true_ends_the_waiting(three):
    waiting = await parked(three, pull(3, subscription="price > 5", expression_type="SQL92", sys_flag=INLINE | WAIT))
    await three.send("orders", b"cheap", properties="price\x014")
    assert not waiting.done()
    await three.send("orders", b"dear", properties="price\x016")
    response = await asyncio.wait_for(waiting, PATIENCE_SECONDS)
    assert bodies(response) == [b"dear"]
    assert position(response) == (0, "FOUND", 5, 0, 5)


async def test_filters_that_are_not_served_are_refused(three):
    response = await three.ask(pull(subscription="a > 1", expression_type="CLASS"), code=1)
    assert response.remark == "The broker does not support consumer to filter message by CLASS"
    await three.ask(SaveBrokerSettings(), b"enablePropertyFilter=false")
    response = await three.ask(pull(subscription="a > 1", expression_type="SQL92"), code=1)
    assert response.remark == "The broker does not support consumer to filter message by SQL92"
    assert bodies(await three.ask(pull(subscription="B", expression_type="TAG"))) == [b"1"]


# -- subscriptions told by heartbeats


async def beat(caller, *, topic="orders", expression="*", version=1, model="CLUSTERING", kind=None):
    subscription = Subscription(topic=topic, expression=expression, version=version)
    if kind is not None:
        subscription = Subscription(topic=topic, expression=expression, version=version, expression_type=kind)
    entry = ConsumerEntry(group="c", message_model=model, subscriptions=[subscription])
    await caller.ask(Heartbeat(), encode_body(HeartbeatBody(client_id="one", consumers=[entry])))


async def test_a_group_that_told_nothing_is_asked_to(three):
    response = await three.ask(pull(sys_flag=0), code=24)
    assert response.remark == f"the consumer's group info not exist{FAQ}"


async def test_a_topic_the_group_did_not_tell_is_refused(three):
    await beat(three, topic="others")
    response = await three.ask(pull(sys_flag=0), code=24)
    assert response.remark == f"the consumer's subscription not exist{FAQ}"


async def test_an_older_subscription_than_the_pull_needs_is_refused(three):
    await beat(three, version=5)
    response = await three.ask(pull(sys_flag=0, subscription_version=6), code=25)
    assert response.remark == "the consumer's subscription not latest"
    await three.ask(pull(sys_flag=0, subscription_version=5))


async def test_the_told_expression_filters_and_not_the_one_sent(three):
    await beat(three, expression="B")
    assert bodies(await three.ask(pull(sys_flag=0, subscription="A"))) == [b"1"]


async def test_a_told_expression_chooses_by_properties(three):
    await beat(three, expression="TAGS <> 'A'", kind="SQL92")
    assert bodies(await three.ask(pull(sys_flag=0))) == [b"1"]


async def test_broadcasting_may_be_forbidden(three):
    await three.ask(SaveGroup(), encode_body(GroupConfig(name="c", broadcast_enabled=False)))
    await beat(three, model="BROADCASTING")
    response = await three.ask(pull(sys_flag=0), code=16)
    assert response.remark == "the consumer group[c] can not consume by broadcast way"
    await beat(three)
    await three.ask(pull(sys_flag=0))


# -- offsets told with a pull


async def test_a_pull_commits_what_was_consumed(broker, three):
    await three.ask(pull(2, sys_flag=INLINE | COMMIT, commit_offset=2))
    assert broker.offsets.find("c", "orders", 0) == 2
    await three.ask(pull(2, sys_flag=INLINE, commit_offset=3))
    assert broker.offsets.find("c", "orders", 0) == 2


async def test_a_pull_that_waits_has_committed(broker, three):
    waiting = await parked(three, pull(3, sys_flag=INLINE | COMMIT | WAIT, commit_offset=3))
    assert broker.offsets.find("c", "orders", 0) == 3
    broker.offsets.commit("c", "orders", 0, 1)  # as after a reset meanwhile
    await three.send("orders", b"3")
    assert bodies(await waiting) == [b"3"]
    assert broker.offsets.find("c", "orders", 0) == 1


async def test_a_refused_pull_commits_nothing(broker, three):
    await three.ask(pull(sys_flag=COMMIT, commit_offset=2), code=24)
    await three.ask(pull(sys_flag=INLINE | COMMIT, commit_offset=2, queue_id=9), code=1)
    assert broker.offsets.find("c", "orders", 0) is None


# -- waiting


@pytest.mark.parametrize("form", [PullMessage, LitePullMessage])
async def test_a_pull_waits_for_the_next_message(orders, form):
    waiting = await parked(orders, pull(form=form, sys_flag=INLINE | WAIT))
    await orders.send("orders", b"first")
    response = await waiting
    assert bodies(response) == [b"first"]
    assert position(response) == (0, "FOUND", 1, 0, 1)


async def test_only_a_wanted_tag_ends_the_waiting(three):
    waiting = await parked(three, pull(3, sys_flag=INLINE | WAIT, subscription="B"))
    await three.send("orders", b"3", properties="TAGS\x01A")
    await three.send("orders", b"4", queue_id=1, properties="TAGS\x01B")
    await three.ask(MaxOffset(topic="orders", queue_id=0))
    assert not waiting.done()
    await three.send("orders", b"5", properties="TAGS\x01B")
    response = await waiting
    assert bodies(response) == [b"5"]
    assert response.header(PullMessageResponse).next_offset == 5


async def test_a_burst_wakes_once_and_comes_in_one_answer(orders):
    waiting = await parked(orders, pull(sys_flag=INLINE | WAIT))
    sends = [orders.send("orders", b"%d" % n) for n in range(5)]
    await asyncio.gather(*sends)
    assert bodies(await waiting) == [b"0", b"1", b"2", b"3", b"4"]


async def test_every_group_that_waits_is_woken(orders, broker, caller_to):
    other = await caller_to(broker)
    pulls = [await parked(caller, pull(consumer_group=f"g{n}", sys_flag=6)) for n, caller in enumerate((orders, other))]
    await orders.send("orders", b"x")
    assert [bodies(await waiting) for waiting in pulls] == [[b"x"], [b"x"]]


async def test_patience_ends_with_nothing_found(three, clock):
    waiting = await parked(three, pull(3, sys_flag=INLINE | WAIT, suspend_ms=15_000))
    await clock.advance(14.5)
    await three.ask(MaxOffset(topic="orders", queue_id=0))
    assert not waiting.done()
    await clock.advance(1)
    assert position(await waiting) == (19, "OFFSET_OVERFLOW_ONE", 3, 0, 3)


async def test_at_the_end_of_patience_the_consumer_is_led_over_what_it_does_not_want(three, clock):
    waiting = await parked(three, pull(3, sys_flag=INLINE | WAIT, subscription="Z"))
    await three.send("orders", b"3", properties="TAGS\x01A")
    await clock.advance(16)
    assert position(await waiting) == (20, "NO_MATCHED_MESSAGE", 4, 0, 4)


async def test_without_long_polling_the_broker_decides_how_long(broker, three, clock):
    broker.config.long_polling = False
    waiting = await parked(three, pull(3, sys_flag=INLINE | WAIT, suspend_ms=15_000))
    await clock.advance(1.5)
    assert (await waiting).code == 19


@pytest.mark.parametrize("changes", [{"sys_flag": INLINE}, {"sys_flag": INLINE | WAIT, "suspend_ms": 0}])
async def test_who_does_not_want_to_wait_is_answered_at_once(three, changes):
    await three.ask(pull(3, **changes), code=19)


@pytest.mark.parametrize(("offset", "subscription", "code"), [(9, "*", 21), (-1, "*", 21), (0, "Z", 20)])
async def test_only_the_end_of_the_queue_is_waited_at(three, offset, subscription, code):
    await three.ask(pull(offset, sys_flag=INLINE | WAIT, subscription=subscription), code=code)


async def test_what_changed_meanwhile_counts_for_who_waited(broker, three):
    waiting = await parked(three, pull(3, sys_flag=INLINE | WAIT))
    broker.topics.put(TopicConfig(name="orders", permission=2))
    await three.send("orders", b"3")
    assert (await waiting).code == 16


async def test_a_deleted_topic_ends_the_waiting_with_its_patience(broker, three, clock):
    waiting = await parked(three, pull(3, sys_flag=INLINE | WAIT))
    broker.topics.delete("orders")
    broker.store.delete_topic("orders")
    await clock.advance(16)
    assert (await waiting).code == 17


async def test_who_waits_on_a_connection_that_broke_disturbs_nobody(broker, three, caller_to):
    gone = await caller_to(broker)
    waiting = await parked(gone, pull(3, sys_flag=INLINE | WAIT))
    await gone.channel.close()
    assert waiting.exception() is not None
    stays = await parked(three, pull(3, sys_flag=INLINE | WAIT))
    await three.send("orders", b"3")
    assert bodies(await stays) == [b"3"]


async def test_too_many_who_wait_are_told_to_come_back(config, clock, caller_to):
    async with Broker(replace(config, limits=BrokerLimits(waiting_pulls=1)), clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders")
        await caller.send("orders", b"0")
        waiting = await parked(caller, pull(1, sys_flag=INLINE | WAIT))
        response = await caller.ask(pull(1, sys_flag=INLINE | WAIT), code=2)
        assert response.remark.startswith("[OVERLOAD]1 pulls of this connection wait")
        await caller.send("orders", b"1")
        assert (await waiting).code == 0
