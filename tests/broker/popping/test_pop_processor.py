"""Pops, acknowledgements and changes, at a real broker."""

import asyncio

import pytest
from tests.broker.popping.poppers import EXPIRED, NOTHING, Popper, bodies

from pyromq.broker.broker import Broker
from pyromq.broker.consuming.long_polls import LONGEST_SECONDS
from pyromq.errors import ResponseCode
from pyromq.remoting.bodies import BatchAck, BatchAcks, encode_body
from pyromq.remoting.codes import PullFlag
from pyromq.remoting.headers import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    DeleteGroup,
    DeleteTopic,
    MaxOffset,
    NotificationResponse,
    OffsetResponse,
    PullMessage,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)


async def send(caller, *texts, queue_id=0, topic="orders", properties=""):
    for text in texts:
        await caller.send(topic, text.encode(), queue_id=queue_id, properties=properties)


async def committed(caller, queue_id=0, *, group="g", topic="orders"):
    return (await caller.ask(QueryConsumerOffset(group, topic, queue_id))).header(OffsetResponse).offset


async def after(clock, seconds):
    """Let the broker do what is due within these seconds."""
    await clock.advance(seconds)
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_pop_gets_messages_of_all_queues_once(orders, popper):
    for queue_id in range(4):
        await send(orders, f"a{queue_id}", f"b{queue_id}", queue_id=queue_id)
    assert bodies(await popper.pop()) == sorted(f"{x}{n}".encode() for x in "ab" for n in range(4))
    assert await popper.pop() == []


async def test_the_group_is_at_the_least_message_in_flight(orders, popper):
    await send(orders, "a", "b", "c")
    first, second, third = await popper.pop()
    assert await committed(orders) == 0
    await popper.ack(second)
    assert await committed(orders) == 0
    await popper.ack(first)
    assert await committed(orders) == 2
    await popper.ack(third)
    assert await committed(orders) == 3


async def test_a_message_that_is_not_acknowledged_comes_again_and_counts_attempts(orders, popper, clock):
    await send(orders, "a", "b", properties="UNIQ_KEY\x01K")
    first, second = await popper.pop(invisible_ms=10_000)
    await popper.ack(first)
    await after(clock, 9.9)
    assert await popper.pop() == []
    await after(clock, 0.1)
    (again,) = await popper.pop(invisible_ms=10_000)
    assert (again.body, again.attempts, again.message.topic) == (b"b", 1, "orders")
    assert again.message.message_id == second.message.message_id
    assert await committed(orders) == 2
    await popper.ack(again)
    await after(clock, 100)
    assert await popper.pop() == []


async def test_a_message_becomes_a_dead_letter_after_the_groups_attempts(broker, orders, popper, clock):
    await orders.send("orders", b"a", properties="UNIQ_KEY\x01K1\x02TAGS\x01red")
    for attempt in range(17):
        (received,) = await popper.pop(invisible_ms=1_000)
        assert received.attempts == attempt
        await after(clock, 1)
    assert await popper.pop() == []
    (dead,) = await orders.messages("%DLQ%g")
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "orders"
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == dead.message_id == "K1"
    assert (dead.body, dead.tags) == (b"a", "red")


async def test_a_late_acknowledgement_is_refused_and_a_repeated_one_is_not(orders, popper, clock):
    await send(orders, "a", "b")
    first, second = await popper.pop(invisible_ms=5_000)
    await popper.ack(first, first)
    await after(clock, 5)
    refused = await popper.ack(second, code=EXPIRED)
    assert (
        "offset 1 in queue 0 of topic orders is no longer valid for group g: its invisible time ended" in refused.remark
    )


async def test_a_changed_time_makes_a_new_handle(orders, popper, clock):
    await send(orders, "a")
    (old,) = await popper.pop(invisible_ms=5_000)
    new = await popper.change(old, 60_000)
    await popper.ack(old, code=EXPIRED)
    await popper.change(old, 60_000, code=EXPIRED)
    await after(clock, 10)
    assert await popper.pop() == []
    newest = await popper.change(new, 0)
    await after(clock, 0)
    await popper.ack(newest, code=EXPIRED)
    (again,) = await popper.pop()
    await popper.ack(again)
    assert await committed(orders) == 1


async def test_messages_are_acknowledged_in_batches(orders, popper, clock):
    await send(orders, *"abcd")
    received = await popper.pop(invisible_ms=5_000)
    await popper.ack_batch(*received[:3])
    await after(clock, 5)
    (again,) = await popper.pop()
    assert again.body == b"d"
    refused = await popper.ack_batch(again, received[3], code=EXPIRED)
    assert "offset 3" in refused.remark
    await after(clock, 100)
    assert await popper.pop() == []


async def test_messages_that_the_filter_refuses_are_passed(orders, popper):
    for n in range(30):
        await orders.send("orders", b"%d" % n, properties=f"TAGS\x01{'even' if n % 2 == 0 else 'odd'}")
    received = await popper.pop(5, expression="even")
    assert [each.body for each in received] == [b"0", b"2", b"4", b"6", b"8"]
    await popper.ack_batch(*received)
    assert await committed(orders) == 9
    received = await popper.pop(expression="even")
    assert len(received) == 10
    await popper.ack(*received)
    assert await committed(orders) == 30


async def test_a_pop_looks_behind_thousands_of_messages_that_its_filter_refuses(orders, popper):
    for _ in range(1700):
        orders.channel.call_soon(popped_send("orders", "TAGS\x01no"), b"x", timeout=30)
    await orders.send("orders", b"wanted", properties="TAGS\x01yes")
    assert bodies(await popper.pop(expression="yes")) == [b"wanted"]


def popped_send(topic, properties):
    from tests.broker.headers import send_header

    return send_header(properties, topic=topic)


async def test_one_message_wakes_one_waiting_pop(broker, orders, popper, caller_to, clock):
    others = [Popper(await caller_to(broker), clock) for _ in range(3)]
    waiting = [each.pop_soon() for each in others]
    await asyncio.sleep(0.01)
    assert await popper.waiting() == 3
    await send(orders, "a")
    assert bodies(others[0].received(await waiting[0])) == [b"a"]
    assert not any(each.done() for each in waiting[1:])
    await send(orders, "b")
    assert bodies(others[1].received(await waiting[1])) == [b"b"]
    assert await popper.waiting() == 1


async def test_a_waiting_pop_gets_a_redelivered_message(orders, popper, clock):
    await send(orders, "a")
    await popper.pop(invisible_ms=5_000)
    waiting = popper.pop_soon()
    await asyncio.sleep(0.01)
    await after(clock, 5)
    assert bodies(popper.received(await waiting)) == [b"a"]


async def test_a_waiting_pop_ends_empty(orders, popper, clock):
    waiting = popper.pop_soon(poll_ms=5_000)
    await asyncio.sleep(0.01)
    await clock.advance(4.9)
    await asyncio.sleep(0.01)
    assert not waiting.done()
    await clock.advance(0.5)
    assert (await waiting).code == NOTHING


async def test_no_pop_waits_longer_than_a_pull(orders, popper, clock):
    waiting = popper.pop_soon(poll_ms=1 << 62)
    await asyncio.sleep(0.01)
    await clock.advance(LONGEST_SECONDS + 1)
    assert (await waiting).code == NOTHING


async def test_a_pop_of_a_closed_connection_takes_no_message(broker, orders, popper, caller_to, clock):
    gone = Popper(await caller_to(broker), clock)
    gone.pop_soon().add_done_callback(lambda done: done.exception())
    await asyncio.sleep(0.01)
    await gone.caller.channel.close()
    waiting = popper.pop_soon()
    await asyncio.sleep(0.01)
    await send(orders, "a")
    assert bodies(popper.received(await waiting)) == [b"a"]


async def test_a_notification_says_whether_there_is_a_message(orders, popper):
    assert not await popper.has_message()
    waiting = popper.notification_soon()
    await asyncio.sleep(0.01)
    await send(orders, "a")
    assert (await waiting).header(NotificationResponse).has_message
    assert await popper.has_message()
    assert bodies(await popper.pop()) == [b"a"]
    assert not await popper.has_message()


async def test_an_orderly_queue_is_held_until_its_messages_are_done(orders, popper, clock):
    await send(orders, *"abc")
    first, second = await popper.pop(2, order=True, invisible_ms=5_000)
    assert await popper.pop(order=True) == []
    await popper.ack(first)
    assert await popper.pop(order=True) == []
    await after(clock, 5)
    again = await popper.pop(order=True, invisible_ms=5_000)
    assert [(each.body, each.attempts) for each in again] == [(b"b", 1), (b"c", 0)]
    await popper.ack(second, code=EXPIRED)
    await popper.ack(*again)
    assert await committed(orders) == 3
    assert await orders.ask(MaxOffset("%RETRY%g_orders", 0)) is not None


async def test_an_orderly_pop_that_is_repeated_gets_its_messages_again(orders, popper):
    await send(orders, *"ab")
    first = await popper.pop(order=True, attempt_id="one")
    again = await popper.pop(order=True, attempt_id="one")
    assert [(each.body, each.attempts) for each in again] == [(b"a", 0), (b"b", 0)]
    await popper.ack(first[0], code=EXPIRED)
    assert await popper.pop(order=True, attempt_id="two") == []
    await popper.ack(*again)


async def test_a_group_begins_at_its_committed_offset(orders, popper):
    await send(orders, *"abc")
    await orders.ask(UpdateConsumerOffset("g", "orders", 0, 2))
    assert bodies(await popper.pop()) == [b"c"]


async def test_a_group_with_a_negative_committed_offset_begins_at_the_first_message(orders, popper):
    await send(orders, *"ab")
    await orders.ask(UpdateConsumerOffset("g", "orders", 0, -1))
    assert bodies(await popper.pop()) == [b"a", b"b"]


@pytest.mark.parametrize("offset", [-1, -(1 << 40)])
async def test_a_reset_to_a_negative_offset_is_one_to_the_first_message(orders, popper, offset):
    await send(orders, *"ab")
    received = await popper.pop()
    await orders.ask(UpdateConsumerOffset("g", "orders", 0, offset))
    await popper.ack(received[0], code=EXPIRED)
    assert bodies(await popper.pop()) == [b"a", b"b"]


async def test_a_pull_that_commits_a_negative_offset_is_answered(orders, popper):
    await send(orders, *"ab")
    await popper.pop()
    for _ in range(2):  # the second may be answered by compiled code
        pull = PullMessage("g", "orders", 0, 0, 32, PullFlag.COMMIT_OFFSET | PullFlag.SUBSCRIPTION, -1, 0, 0, "*")
        assert (await orders.ask(pull)).code == ResponseCode.SUCCESS
    assert bodies(await popper.pop()) == [b"a", b"b"]


@pytest.mark.parametrize("count", [1, 31, 32])
async def test_every_message_of_a_pop_is_redelivered(broker, orders, popper, clock, count):
    await send(orders, "first")
    await popper.ack(*await popper.pop())  # compiled code may answer the following pops
    await send(orders, *"x" * count)
    assert len(await popper.pop(count=32, invisible_ms=5_000)) == count
    assert broker.pops.in_flight.count == count
    await after(clock, 5)
    assert len(await popper.pop(count=32)) == count


async def test_a_reset_forgets_what_is_in_flight(orders, popper, clock):
    await send(orders, *"abc")
    received = await popper.pop(invisible_ms=5_000)
    await popper.ack(received[0])
    await orders.ask(UpdateConsumerOffset("g", "orders", 0, 0))
    assert bodies(await popper.pop(invisible_ms=5_000)) == [b"a", b"b", b"c"]
    await popper.ack(received[2], code=EXPIRED)
    await orders.ask(UpdateConsumerOffset("g", "orders", 0, 3))
    await after(clock, 5)
    assert await popper.pop() == []


async def test_a_deleted_topic_and_a_deleted_group_have_nothing_in_flight(broker, orders, popper, clock):
    await send(orders, *"ab")
    await popper.pop(invisible_ms=5_000)
    await orders.ask(DeleteGroup("g", remove_offsets=True))
    assert broker.pops.in_flight.count == 0
    assert bodies(await popper.pop(invisible_ms=5_000)) == [b"a", b"b"]
    await orders.ask(DeleteTopic("orders"))
    assert broker.pops.in_flight.count == 0
    await orders.create_topic("orders")
    await send(orders, "c")
    assert bodies(await popper.pop()) == [b"c"]
    await after(clock, 10)
    assert await popper.pop() == []


async def test_a_queue_gives_nothing_with_too_many_messages_in_flight(config, clock, caller_to):
    config.limits = type(config.limits)(in_flight=3)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await send(caller, *"abcde")
        popper = Popper(caller, clock)
        received = await popper.pop()
        assert len(received) == 3
        assert await popper.pop() == []
        await popper.ack(received[1])
        assert bodies(await popper.pop()) == [b"d"]


@pytest.fixture
async def narrow(config, clock, caller_to):
    """A caller of a broker that allows 16 pops in flight, with 20 messages in topic orders."""
    config.limits = type(config.limits)(pops_in_flight=16)
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.create_topic("orders", queues=1)
        await send(caller, *(str(number) for number in range(20)))
        yield broker, caller


async def test_a_group_gets_half_of_the_pops_that_the_others_leave(narrow, clock):
    broker, caller = narrow
    first, second = (Popper(caller, clock, group) for group in ("first", "second"))
    received = [(await first.pop(1))[0] for _ in range(8)]
    refused = await first.pop_soon(1, poll_ms=0)
    assert refused.code == ResponseCode.POLLING_FULL
    assert "group first has 8 unfinished pops, of 8 of all groups: acknowledge" in refused.remark
    assert "raise maxPopsInFlight (now 16)" in refused.remark
    assert [len(await second.pop(1)) for _ in range(4)] == [1] * 4
    await first.ack(*received[:5])
    assert len(await first.pop(20)) == 12
    assert broker.pops.in_flight.pops.used == 8


async def test_a_changed_message_counts_as_a_pop(narrow, clock):
    broker, caller = narrow
    popper = Popper(caller, clock)
    received = await popper.pop(10)
    moved = [await popper.change(each, 5_000) for each in received[:7]]
    assert broker.pops.in_flight.pops.used == 8
    assert "unfinished pops" in (await popper.change(received[7], 5_000, code=ResponseCode.POLLING_FULL)).remark
    again = await popper.change(moved[0], 6_000)
    await popper.ack(again, *moved[1:], *received[7:])
    assert (broker.pops.in_flight.pops.used, broker.pops.in_flight.count) == (0, 0)


async def test_a_waiting_pop_is_refused_when_the_limit_is_reached_meanwhile(narrow, clock):
    _, caller = narrow
    popper = Popper(caller, clock)
    for _ in range(4):
        await popper.pop(5)
    waiting = popper.pop_soon()
    assert await popper.waiting() == 1
    other = Popper(caller, clock, topic="more")
    await caller.create_topic("more", queues=1)
    await send(caller, *"abcd", topic="more")
    for _ in range(4):
        await other.pop(1)
    await send(caller, "late")
    assert (await waiting).code == ResponseCode.POLLING_FULL


async def test_groups_and_topics_with_equal_joined_names_do_not_share_retries(orders, clock):
    await orders.create_topic("b_c")
    await orders.create_topic("c")
    one, other = Popper(orders, clock, "a", "b_c"), Popper(orders, clock, "a_b", "c")
    await send(orders, "one", topic="b_c")
    await send(orders, "other", topic="c")
    for each in (one, other):
        assert len(await each.pop(invisible_ms=1_000)) == 1
    await after(clock, 1)
    assert bodies(await other.pop()) == [b"other"]
    assert bodies(await one.pop()) == [b"one"]


async def test_retries_of_a_deleted_topic_are_deleted(broker, orders, popper, clock):
    await send(orders, "a")
    await popper.pop(invisible_ms=1_000)
    await after(clock, 2)
    assert [each.body for each in await popper.pop()] == [b"a"]
    await after(clock, 70)
    await orders.ask(DeleteTopic("orders"))
    assert broker.topics.find("%RETRY%g_orders") is None
    await orders.create_topic("orders")
    assert await popper.pop() == []


async def test_retries_that_a_deleted_topic_shares_with_another_stay(broker, orders, clock):
    one, other = Popper(orders, clock, "a_b", "c"), Popper(orders, clock, "a", "b_c")
    for popper in (one, other):
        await orders.create_topic(popper.topic, queues=1)
        await send(orders, popper.topic, topic=popper.topic)
        await popper.pop(invisible_ms=1_000)
    await after(clock, 2)
    assert bodies(await other.pop(invisible_ms=1_000)) == [b"b_c"]
    await after(clock, 2)
    await orders.ask(DeleteTopic("b_c"))
    assert bodies(await one.pop()) == [b"c"]


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"count": 0}, 1, "maxMsgNums=0: a pop returns 1 to 32 messages"),
        ({"count": 33}, 1, "maxMsgNums=33"),
        ({"invisible_ms": -1}, 1, "invisibleTime=-1: it must be 0 to 43200000 ms"),
        ({"invisible_ms": 43_200_001}, 1, "invisibleTime=43200001"),
        ({"renewed_for": "x" * 256}, 1, "renewedFor has 256 characters"),
        ({"order": True, "attempt_id": "x" * 256}, 1, "attemptId has 256 characters: an id has 1 to 255"),
        ({"queue_id": 4}, 1, "queueId[4] is illegal"),
        ({"queue_id": -2}, 1, "queueId[-2] is illegal"),
        ({"topic": "nowhere"}, ResponseCode.TOPIC_NOT_EXIST, "topic[nowhere] not exist"),
        ({"expression_type": "XPATH"}, 1, "does not support consumer to filter message by XPATH"),
        ({"expression_type": "SQL92", "expression": "a >"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, ""),
    ],
)
async def test_a_pop_that_cannot_be_is_refused(orders, popper, fields, code, text):
    response = await orders.ask(popper.header(**fields), code=code)
    assert text in response.remark


async def test_a_group_whose_retry_topic_would_be_too_long_is_refused(orders, clock):
    popper = Popper(orders, clock, "g" * 120)
    response = await orders.ask(popper.header(), code=1)
    assert "would have 134 characters; the limit is 127: use shorter names" in response.remark


FORGED = "0 1 60000 0 0 broker-a 0 9223372036854775807"


@pytest.mark.parametrize(("text", "offset"), [(FORGED, (1 << 63) - 1), ("7 1 60000 0 0 broker-a 0 3", 3)])
async def test_a_handle_that_no_pop_has_made_is_refused(orders, popper, text, offset):
    for header in (
        AckMessage("g", "orders", 0, text, offset),
        ChangeInvisibleTime("g", "orders", 0, text, offset, 1_000),
    ):
        response = await orders.ask(header, code=ResponseCode.INVALID_PARAMETER)
        assert f"has offset {offset}; send the handle that came with the message" in response.remark


async def test_one_wrong_entry_of_a_batch_stops_no_others(broker, orders, popper):
    await send(orders, "a", "b")
    a, _ = await popper.pop()
    entries = [
        BatchAck(group, topic, "0", start, 0, 0, a.handle.pop_ms, 60_000, bits)
        for group, topic, start, bits in (
            *(("g", "orders", 0, "AQ=="), ("g", "nowhere", 0, "AQ=="), ("g", "orders", 0, "?")),
            *(("g", "orders", -(1 << 63), "/w=="), ("g", "orders", (1 << 63) - 1, "/w=="), ("g", "orders", 0, "Ag==")),
        )
    ]
    response = await orders.ask(
        BatchAckMessage(), encode_body(BatchAcks("broker-a", entries)), code=ResponseCode.TOPIC_NOT_EXIST
    )
    assert "nowhere" in response.remark
    assert await committed(orders) == 2


async def test_thousands_of_expired_entries_let_other_requests_run(orders, popper):
    await send(orders, "a")
    entries = [BatchAck("g", "orders", "0", n, 0, 0, 1, 1, "AQ==") for n in range(3_000)]
    body = encode_body(BatchAcks("broker-a", entries))
    slow = orders.channel.call_soon(BatchAckMessage(), body, timeout=30)
    assert bodies(await popper.pop()) == [b"a"]
    assert (await slow).code == EXPIRED


@pytest.mark.parametrize("text", ["", "x", "0 1 2 3 4 5 6 7", "9 1 60000 0 0 broker-a 0 1"])
async def test_a_handle_of_another_message_is_refused(orders, popper, text):
    await send(orders, "a")
    response = await orders.ask(AckMessage("g", "orders", 0, text, 0), code=ResponseCode.INVALID_PARAMETER)
    assert "receipt handle" in response.remark
