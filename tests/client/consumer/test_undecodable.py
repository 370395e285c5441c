"""Messages whose body cannot be decompressed: dead letters with the reason, or delivered as such."""

import zlib
from dataclasses import replace

import pytest
from tests.waiting import until

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.admin.messages.dead_letters import AsyncDeadLetters, Fate
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.errors import UndecodableBody
from pyromq.message import Message, SysFlag
from pyromq.names import AUTO_CREATE_TOPIC
from pyromq.remoting.bodies import GroupConfig
from pyromq.remoting.headers import SendMessageV2

LIMIT = 10_000
BOMB = zlib.compress(bytes(100 * LIMIT))
CASES = {
    "bomb": (BOMB, SysFlag.COMPRESSED, f"decompresses to more than {LIMIT}"),
    "no zlib": (b"no zlib", SysFlag.COMPRESSED, "cannot be decompressed"),
    "unknown": (b"new", SysFlag.COMPRESSED | 0x500, "in a way that is not known here"),
}
each_case = pytest.mark.parametrize(("body", "flag", "reason"), CASES.values(), ids=CASES)
CONFIG = ConsumerConfig(max_body_bytes=LIMIT, commit_seconds=0.01, retry_seconds=0.01)


async def fill(cluster, body, flag):
    """Store `first`, a body as it is given, and `last`, which is compressed, in one queue."""
    producer = await cluster.producer()
    first = await producer.send(Message("orders", b"first"), ordering_key="k")
    route = await producer._cluster.route("orders")
    for stored, sys_flag in ((body, flag), (zlib.compress(b"last"), SysFlag.COMPRESSED)):
        header = SendMessageV2(
            producer_group="strangers",
            topic="orders",
            default_topic=AUTO_CREATE_TOPIC,
            default_topic_queue_count=4,
            queue_id=first.queue.queue_id,
            sys_flag=sys_flag,
            born_ms=1,
            flag=0,
            properties="",
            reconsume_times=0,
            unit_mode=False,
            batch=False,
        )
        (await producer._cluster.ask(route.master(first.queue.broker_name), header, stored, timeout=30)).check()
    return first.queue


async def dead_letters(cluster):
    async with AsyncDeadLetters(cluster.namesrv) as letters:
        return [each async for each in letters.letters("workers")]


@each_case
@pytest.mark.parametrize("orderly", [False, True], ids=["concurrent", "orderly"])
async def test_it_is_a_dead_letter_byte_for_byte_and_others_are_consumed(cluster, orderly, body, flag, reason):
    queue = await fill(cluster, body, flag)
    bodies = []
    async with AsyncConsumer(
        "workers", cluster.namesrv, config=replace(CONFIG, orderly=orderly, concurrency=1, batch=10)
    ) as consumer:
        consumer.subscribe("orders", lambda messages: bodies.extend(each.body for each in messages))
        await until(lambda: bodies == [b"first", b"last"])
        assert consumer.damaged_count == 1
        await until(lambda: consumer._assigned[queue].committed == 3)
    (letter,) = await dead_letters(cluster)
    assert reason in letter.reason
    assert (letter.message.stored_body, letter.message.sys_flag & 0x701) == (body, flag)


@each_case
async def test_a_listener_that_asks_gets_it_as_such(cluster, body, flag, reason):
    await fill(cluster, body, flag)
    seen = []
    async with AsyncConsumer(
        "workers", cluster.namesrv, config=replace(CONFIG, deliver_undecodable=True, concurrency=1)
    ) as consumer:
        consumer.subscribe("orders", seen.extend)
        await until(lambda: len(seen) == 3)
        assert consumer.damaged_count == 0
    strange = seen[1]
    assert reason in str(strange.body_error)
    assert strange.stored_body == body
    with pytest.raises(UndecodableBody):
        _ = strange.body
    assert [each.body_error for each in seen[::2]] == [None, None]


async def test_a_redriven_one_is_passed_on_as_it_is(cluster):
    await fill(cluster, b"no zlib", SysFlag.COMPRESSED)
    async with AsyncConsumer("workers", cluster.namesrv, config=CONFIG) as consumer:
        consumer.subscribe("orders", lambda messages: None)
        await until(lambda: consumer.damaged_count == 1)
        async with AsyncDeadLetters(cluster.namesrv) as letters:
            (outcome,) = [each async for each in letters.redrive("workers")]
        assert outcome.fate is Fate.SENT
        await until(lambda: consumer.damaged_count == 2)
    assert [letter.message.stored_body for letter in await dead_letters(cluster)] == [b"no zlib"] * 2


@each_case
async def test_a_broadcast_consumer_passes_over(cluster, body, flag, reason, tmp_path, caplog):
    await fill(cluster, body, flag)
    bodies = []
    config = replace(CONFIG, broadcast=True, offsets_folder=tmp_path, consume_from=ConsumeFrom.FIRST, concurrency=1)
    async with AsyncConsumer("workers", cluster.namesrv, config=config) as consumer:
        consumer.subscribe("orders", lambda messages: bodies.extend(each.body for each in messages))
        await until(lambda: bodies == [b"first", b"last"])
    assert "is skipped" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("may_have_dead_letters", [True, False])
async def test_a_pull_consumer_goes_on_also_where_its_group_can_have_no_dead_letters(
    cluster, caplog, may_have_dead_letters
):
    queue = await fill(cluster, BOMB, SysFlag.COMPRESSED)
    if not may_have_dead_letters:
        async with AsyncAdmin(cluster.namesrv) as admin:
            await admin.create_group(GroupConfig("readers", retry_queues=0))
        cluster.broker.config.auto_create_topic = False
    async with AsyncPullConsumer("readers", cluster.namesrv, config=CONFIG) as consumer:
        await consumer.assign([queue])
        assert [message.body for message in await consumer.poll()] == [b"first", b"last"]
        assert (consumer.damaged_count, consumer.position(queue)) == (1, 3)
    fate = "now a dead letter" if may_have_dead_letters else "cannot be made a dead letter"
    assert fate in caplog.text


async def test_a_pull_consumer_may_ask_for_it_and_a_single_pull_has_it(cluster):
    queue = await fill(cluster, BOMB, SysFlag.COMPRESSED)
    config = replace(CONFIG, deliver_undecodable=True)
    async with AsyncPullConsumer("readers", cluster.namesrv, config=config) as consumer:
        await consumer.assign([queue])
        polled = await consumer.poll()
        pulled = (await consumer.pull(queue, 0)).messages
    for messages in (polled, pulled):
        assert [each.body_error is None for each in messages] == [True, False, True]
