"""Sends: what is stored, what is answered, what is refused with which code and text; alone and within a burst."""

import asyncio
import errno
import os
import threading
from dataclasses import replace

import pytest
from tests.broker.headers import PLAIN

from pyromq.broker import confirmation
from pyromq.broker.broker import Broker
from pyromq.broker.limits import BrokerLimits
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.bodies import GroupConfig, TopicConfig, TopicConfigTable, decode_body, encode_body
from pyromq.remoting.command import BINARY
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    BrokerState,
    MaxOffset,
    SaveGroup,
    SendBatchMessage,
    SendMessage,
    SendMessageResponse,
    SendMessageV2,
)
from pyromq.store.disk import LocalDisk
from pyromq.store.store_config import FlushMode, StoreConfig

LIMIT = 4 << 20
ILLEGAL = (
    "the message is illegal, maybe msg body or properties length not matched. msg body length limit "
    f"{LIMIT}B, msg properties length limit 32KB."
)
BLANK = "The specified topic is blank."
CHARACTERS = "The specified topic[{}] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
NOT_EXIST = "not exist, apply first please!\nSee http://rocketmq.apache.org/docs/faq/ for further details."


def header(form=SendMessageV2, **changes):
    return form(**(PLAIN | {"born_ms": 1_234, "properties": "a\x011"} | changes))


def batch(*members):
    return encode_batch([BatchMember(0, body, text) for body, text in members])


async def size(caller, topic="orders", queue_id=0):
    response = await caller.ask(MaxOffset(topic=topic, queue_id=queue_id))
    return int(response.fields["offset"])


async def refused(caller, request, body):
    """Return code and text of a refused request, which must be the same alone and in the middle of a burst."""
    alone = await caller.channel.call(request, body, timeout=30)
    good = header(type(request), topic="beside")
    requests = [(good, b"x"), (request, body), (good, b"x")]
    pending = [caller.channel.call_soon(each, content, timeout=30) for each, content in requests]
    first, inside, last = await asyncio.gather(*pending)
    assert (first.code, last.code) == (0, 0)
    assert (inside.code, inside.remark) == (alone.code, alone.remark)
    return alone.code, alone.remark


@pytest.fixture
async def orders(caller):
    await caller.create_topic("orders")
    await caller.create_topic("beside", queues=1)
    return caller


# -- what is stored


@pytest.mark.parametrize("form", [SendMessage, SendMessageV2])
async def test_both_spellings_store_the_message_and_answer_where(orders, form):
    request = header(form, queue_id=3, flag=7, reconsume_times=2, sys_flag=0x100)
    response = await orders.ask(request, b"hello")
    (message,) = await orders.messages(queue_id=3)
    answer = response.header(SendMessageResponse)
    assert (answer.queue_id, answer.queue_offset, answer.message_id) == (3, 0, message.offset_message_id)
    assert (answer.region, answer.trace_on) == ("DefaultRegion", "true")
    assert (message.body, message.flag, message.reconsume_times) == (b"hello", 7, 2)
    assert (message.born_ms, message.sys_flag) == (1_234, 0x100)
    host, port = orders.channel.local_address
    assert message.born_host == f"{host}:{port}"
    assert message.store_host == orders.channel.address


async def test_a_send_without_an_answer_is_stored(orders):
    orders.channel.notify(header(), b"hello")
    orders.channel.notify(header(queue_id=99), b"refused without a word")
    await orders.ask(MaxOffset(topic="orders", queue_id=0))
    assert [message.body for message in await orders.messages()] == [b"hello"]


async def test_binary_headers_are_answered_with_binary_headers(broker, orders, clock):
    channel = await connect(broker.address, Dispatcher(), clock, connections=ConnectionConfig(serialization=BINARY))
    response = await channel.call(header(), b"hello", timeout=30)
    assert response.header(SendMessageResponse).queue_offset == 0
    await channel.close()


async def test_without_a_chosen_queue_the_broker_chooses_a_writable_one(orders):
    chosen = {(await orders.send("orders", queue_id=-1)).queue_id for _ in range(60)}
    assert chosen == {0, 1, 2, 3}


async def test_a_topic_without_queues_to_write_to_refuses_instead_of_choosing(broker, orders):
    broker.topics.put(TopicConfig(name="readable", read_queues=4, write_queues=0))
    code, text = await refused(orders, header(topic="readable", queue_id=-1), b"hello")
    assert code == 1
    assert "writeQueueNums=0" in text


async def test_messages_of_multi_tag_topics_are_marked(broker, orders):
    broker.topics.put(TopicConfig(name="orders", filter_type="MULTI_TAG"))
    await orders.ask(header(), b"one")
    await orders.ask(header(SendBatchMessage, properties=""), batch((b"two", "")))
    assert [message.sys_flag for message in await orders.messages()] == [2, 2]


# -- properties


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("", {}),
        ("a\x011", {"a": "1"}),
        ("a\x011\x02", {"a": "1"}),
        ("WAIT\x01true\x02a\x011", {"a": "1"}),
        ("a\x011\x02WAIT\x01false", {"a": "1"}),
        ("a\x011\x02WAIT\x01false\x02b\x012\x02", {"a": "1", "b": "2"}),
        ("WAIT\x01true\x02a\x011\x02WAIT\x01false", {"a": "1"}),  # doubled
        ("AWAIT\x01true\x02a\x011", {"AWAIT": "true", "a": "1"}),  # another name that ends alike
        ("AWAIT\x01true\x02WAIT\x01true", {"AWAIT": "true"}),
        ("a\x011\x02a\x012", {"a": "2"}),
        ("CLUSTER\x01theirs\x02a\x011", {"a": "1"}),
        ("broken\x02\x01no name\x02no value\x01\x02a\x011", {"a": "1"}),
    ],
)
async def test_the_stored_properties_are_those_sent_without_wait_and_with_the_cluster(orders, sent, kept):
    await orders.ask(header(properties=sent), b"x")
    (message,) = await orders.messages()
    assert message.properties == {**kept, "CLUSTER": "DefaultCluster"}
    assert "WAIT" not in message.properties


async def test_a_message_without_properties_gets_the_cluster(orders):
    await orders.ask(header(properties=None), b"x")
    (message,) = await orders.messages()
    assert message.property_text == "CLUSTER\x01DefaultCluster"


async def test_properties_are_limited_in_bytes_as_stored(orders):
    room = 32_767 - len("a\x01\x02CLUSTER\x01DefaultCluster")
    await orders.ask(header(properties="a\x01" + "v" * room), b"fits")
    await orders.ask(header(properties="a\x01" + "é" * (room // 2)), b"fits")
    for value in ("v" * (room + 1), "é" * (room // 2 + 1)):
        assert await refused(orders, header(properties="a\x01" + value), b"x") == (13, ILLEGAL)
    assert await size(orders) == 2


async def test_a_rewritten_property_text_has_the_same_limit(orders):
    text = "AWAIT\x01" + "v" * 32_767 + "\x02WAIT\x01true"
    assert await refused(orders, header(properties=text), b"x") == (13, ILLEGAL)


# -- bodies and numbers


async def test_a_body_of_four_mebibytes_is_stored_and_a_larger_one_refused(config, clock, caller_to, tmp_path):
    config = replace(config, store=StoreConfig(tmp_path, segment_bytes=6 << 20, index_slots=100, index_entries=1000))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await caller.ask(header(), bytes(LIMIT))
        assert await refused(caller, header(), bytes(LIMIT + 1)) == (13, ILLEGAL)
        assert await size(caller) == 1


async def test_an_empty_body_is_refused(orders):
    code, text = await refused(orders, header(), b"")
    assert code == 13
    assert text == ILLEGAL + " The body is empty."


@pytest.mark.parametrize("name", ["flag", "sys_flag", "reconsume_times"])
async def test_a_number_too_large_for_its_field_is_refused_alone(orders, name):
    code, _ = await refused(orders, header(**{name: 1 << 31}), b"x")
    assert code == 13
    assert await size(orders) == 0


# -- topics


@pytest.mark.parametrize("form", [SendMessage, SendMessageV2, SendBatchMessage])
@pytest.mark.parametrize(
    ("topic", "code", "text"),
    [
        ("", 1, BLANK),
        (" ", 1, BLANK),
        ("or ders", 1, CHARACTERS.format("or ders")),
        ("../orders", 1, CHARACTERS.format("../orders")),
        ("größe", 1, CHARACTERS.format("größe")),
        ("t" * 128, 1, f"The specified topic[{'t' * 40}... (88 more characters)] is longer than topic max length 127."),
        ("SCHEDULE_TOPIC_XXXX", 16, "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."),
        ("RMQ_SYS_TRANS_HALF_TOPIC", 16, "Sending message to topic[RMQ_SYS_TRANS_HALF_TOPIC] is forbidden."),
        ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 16, "Sending message to topic[RMQ_SYS_TRANS_OP_HALF_TOPIC] is forbidden."),
        ("TRANS_CHECK_MAX_TIME_TOPIC", 16, "Sending message to topic[TRANS_CHECK_MAX_TIME_TOPIC] is forbidden."),
        ("SELF_TEST_TOPIC", 16, "Sending message to topic[SELF_TEST_TOPIC] is forbidden."),
        ("OFFSET_MOVED_EVENT", 16, "Sending message to topic[OFFSET_MOVED_EVENT] is forbidden."),
    ],
)
async def test_illegal_and_reserved_topics_are_refused(orders, form, topic, code, text):
    body = batch((b"x", "")) if form is SendBatchMessage else b"x"
    response = await orders.ask(header(form, topic=topic), body, code=code)
    assert response.remark == text
    if form is SendMessageV2:
        assert await refused(orders, header(topic=topic), b"x") == (code, text)


async def test_the_longest_topic_is_stored(orders):
    await orders.ask(header(topic="t" * 127), b"x")
    assert await size(orders, "t" * 127) == 1


async def test_refusals_name_region_and_trace_as_answers_do(orders):
    for response in (
        await orders.ask(header(queue_id=99), b"x", code=1),
        *await asyncio.gather(*[orders.channel.call_soon(header(queue_id=99), b"x", timeout=30) for _ in range(2)]),
        await orders.ask(header(SendBatchMessage), b"x", code=13),
    ):
        assert response.fields == {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.mark.parametrize(("queues", "asked", "made"), [(8, 4, 4), (8, 100, 8), (2, 4, 2), (8, 0, 1)])
async def test_a_topic_is_created_after_its_pattern(broker, orders, queues, asked, made):
    broker.topics.put(TopicConfig(name="TBW102", read_queues=8, write_queues=queues, permission=7))
    await orders.ask(header(topic="new", default_topic_queue_count=asked), b"x")
    new = broker.topics.find("new")
    assert (new.read_queues, new.write_queues, new.permission, new.sys_flag) == (made, made, 6, 0)


async def test_without_automatic_creation_an_unknown_topic_is_refused(broker, orders):
    broker.config.auto_create_topic = False
    assert await refused(orders, header(topic="new"), b"x") == (17, f"topic[new] {NOT_EXIST}")
    assert broker.topics.find("new") is None


async def test_a_pattern_that_does_not_exist_creates_nothing(broker, orders):
    assert await refused(orders, header(topic="new", default_topic="none"), b"x") == (17, f"topic[new] {NOT_EXIST}")


@pytest.mark.parametrize(("topic", "sys_flag"), [("new", 1), ("%RETRY%c", 2)])
async def test_topics_of_units_are_marked(broker, orders, topic, sys_flag):
    await orders.ask(header(topic=topic, unit_mode=True), b"x")
    assert broker.topics.find(topic).sys_flag == sys_flag


@pytest.mark.parametrize("queue_id", [4, 99, 1 << 31])
async def test_a_queue_the_topic_does_not_have_is_refused(orders, queue_id):
    host, port = orders.channel.local_address
    assert await refused(orders, header(queue_id=queue_id), b"x") == (
        1,
        f"request queueId[{queue_id}] is illegal, TopicConfig [topicName=orders, readQueueNums=4, writeQueueNums=4, "
        f"perm=RW-, topicFilterType=SINGLE_TAG, topicSysFlag=0, order=false] Producer: {host}:{port}",
    )


async def test_queues_that_may_only_be_read_still_take_messages(broker, orders):
    broker.topics.put(TopicConfig(name="shrinking", read_queues=4, write_queues=2))
    await orders.ask(header(topic="shrinking", queue_id=3), b"x")
    await orders.ask(header(topic="shrinking", queue_id=4), b"x", code=1)


# -- permissions


async def test_a_broker_that_may_not_be_written_refuses_order_topics_only(broker, orders):
    broker.topics.put(TopicConfig(name="ordered", order=True))
    broker.topics.put(TopicConfig(name="no writing", permission=4))
    broker.config.permission = 4
    text = "the broker[127.0.0.1] sending message is forbidden"
    assert await refused(orders, header(topic="ordered"), b"x") == (16, text)
    await orders.ask(header(), b"x")


async def test_the_permission_of_a_topic_does_not_stop_a_send(broker, orders):
    broker.topics.put(TopicConfig(name="readable", permission=4))
    await orders.ask(header(topic="readable"), b"x")


async def test_order_is_checked_before_the_name(broker, orders):
    broker.topics.put(TopicConfig(name="SELF_TEST_TOPIC", order=True))
    broker.config.permission = 4
    response = await orders.ask(header(topic="SELF_TEST_TOPIC"), b"x", code=16)
    assert response.remark == "the broker[127.0.0.1] sending message is forbidden"


# -- retries and dead letters


@pytest.mark.parametrize(
    ("reconsumed", "own_limit", "topic"),
    [
        (None, None, "%RETRY%c"),
        (15, None, "%RETRY%c"),
        (16, None, "%DLQ%c"),
        (3, 3, "%DLQ%c"),
        (20, 30, "%RETRY%c"),
    ],
)
async def test_what_was_retried_too_often_becomes_a_dead_letter(broker, orders, reconsumed, own_limit, topic):
    await orders.create_topic("%RETRY%c", queues=1)
    request = header(topic="%RETRY%c", reconsume_times=reconsumed, max_reconsume_times=own_limit)
    response = await orders.ask(request, b"x")
    assert response.header(SendMessageResponse).queue_id == 0
    assert await size(orders, topic) == 1
    assert (broker.topics.find("%DLQ%c") is not None) == topic.startswith("%DLQ%")


async def test_the_limit_of_the_group_counts_where_the_sender_has_none(orders):
    await orders.ask(SaveGroup(), encode_body(GroupConfig(name="c", retry_max_times=2)))
    await orders.ask(header(topic="%RETRY%c", reconsume_times=2), b"x")
    assert await size(orders, "%DLQ%c") == 1


async def test_a_retry_topic_is_created_with_one_queue_where_no_pattern_is(broker, orders):
    broker.config.auto_create_topic = False
    await orders.ask(header(topic="%RETRY%c"), b"x")
    assert broker.topics.find("%RETRY%c").write_queues == 1


async def test_a_retry_topic_of_an_unknown_group_is_refused(broker, orders):
    broker.config.auto_create_group = False
    assert await refused(orders, header(topic="%RETRY%nobody"), b"x") == (
        26,
        "subscription group not exist, nobody \nSee http://rocketmq.apache.org/docs/faq/ for further details.",
    )


# -- batches


@pytest.mark.parametrize(("form", "mark"), [(SendBatchMessage, None), (SendBatchMessage, True), (SendMessageV2, True)])
async def test_members_of_a_batch_follow_each_other_and_are_answered_together(orders, form, mark):
    await orders.send("orders", b"before")
    request = header(form, batch=mark, properties="")
    response = await orders.ask(request, batch((b"a", "k\x011"), (b"b", "k\x012\x02"), (b"c", "")))
    members = await orders.messages(offset=1)
    answer = response.header(SendMessageResponse)
    assert (answer.queue_id, answer.queue_offset) == (0, 1)
    assert answer.message_id.split(",") == [message.offset_message_id for message in members]
    assert [(message.body, message.queue_offset) for message in members] == [(b"a", 1), (b"b", 2), (b"c", 3)]
    assert [message.property_text for message in members] == [
        "k\x011\x02CLUSTER\x01DefaultCluster",
        "k\x012\x02CLUSTER\x01DefaultCluster",
        "CLUSTER\x01DefaultCluster",
    ]


async def test_members_keep_wait_in_their_own_text(orders):
    await orders.ask(header(SendBatchMessage, properties=""), batch((b"a", "WAIT\x01true")))
    (member,) = await orders.messages()
    assert member.properties["WAIT"] == "true"


async def test_the_retry_topic_takes_no_batch(orders):
    request = header(SendBatchMessage, topic="%RETRY%c")
    response = await orders.ask(request, batch((b"a", "")), code=13)
    assert response.remark == "batch request does not support retry group %RETRY%c"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"x",
        bytes(100),
        batch((b"a", ""))[:-1],
        batch((b"a", "")) + b"\0",
        batch((b"a", ""), (b"", "")),
        batch((b"a", "k\x01" + "v" * 32_750)),
        batch((b"a", ""), (b"b", "k\x01v"))[:-3] + b"\xff\xff\xff",
        b"\xff" * 40,
    ],
)
async def test_a_broken_batch_stores_nothing(orders, body):
    assert (await refused(orders, header(SendMessageV2, batch=True), body))[0] == 13
    await orders.ask(header(SendBatchMessage), body, code=13)
    assert await size(orders) == 0


async def test_a_batch_may_be_as_large_as_a_body(config, clock, caller_to, tmp_path):
    config = replace(config, store=StoreConfig(tmp_path, segment_bytes=6 << 20, index_slots=100, index_entries=1000))
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        member = bytes((LIMIT - 2 * 22) // 2)
        await caller.ask(header(SendBatchMessage), batch((member, ""), (member, "")))
        response = await caller.ask(header(SendBatchMessage), batch((member, ""), (member + b"x", "")), code=13)
        assert response.remark == ILLEGAL


async def test_a_queue_the_topic_does_not_have_is_refused_for_batches_too(orders):
    await orders.ask(header(SendBatchMessage, queue_id=4), batch((b"a", "")), code=1)


# -- the disk


class Disk:
    """Lets the flusher's sync hang until it is told to go on."""

    def __init__(self, monkeypatch):
        self.works = threading.Event()
        genuine = LocalDisk.sync

        def sync(descriptor):
            if threading.current_thread().name == "store-flush":
                self.works.wait(30)
            genuine(descriptor)

        monkeypatch.setattr(LocalDisk, "sync", staticmethod(sync))


@pytest.fixture
def disk(monkeypatch):
    disk = Disk(monkeypatch)
    yield disk
    disk.works.set()


@pytest.fixture
async def flushing(request, config, clock, caller_to, disk):
    """A caller of a broker that answers when the disk has the message; its disk hangs. The parameter: fails fast."""
    store = replace(config.store, flush=FlushMode.SYNC)
    limits = BrokerLimits(fast_failure=getattr(request, "param", False))
    async with Broker(replace(config, store=store, limits=limits), clock) as broker:
        caller = await caller_to(broker)
        caller.broker = broker
        await caller.create_topic("orders")
        yield caller
        disk.works.set()


@pytest.mark.parametrize("form", [SendMessageV2, SendBatchMessage])
async def test_an_answer_waits_for_the_disk(flushing, disk, form):
    body = batch((b"a", ""), (b"b", "")) if form is SendBatchMessage else b"x"
    waiting = flushing.channel.call_soon(header(form, properties=""), body, timeout=30)
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    assert not waiting.done()
    assert await size(flushing) > 0  # readable all the same
    disk.works.set()
    assert (await waiting).code == 0
    assert flushing.broker.store.flushed_to == flushing.broker.store.max_log_offset


@pytest.mark.parametrize(
    ("properties", "waits"),
    [
        ("", True),
        ("WAIT\x01true", True),
        ("WAIT\x01TRUE", True),
        ("WAIT\x01", True),
        ("WAIT\x01false", False),
        ("WAIT\x01no", False),
        ("a\x011\x02WAIT\x01false\x02b\x012", False),
        ("AWAIT\x01false", True),
        ("WAIT\x01false\x02WAIT\x01true", True),
        ("WAIT\x01true\x02WAIT\x01false", False),
    ],
)
async def test_the_sender_says_whether_to_wait(flushing, disk, properties, waits):
    waiting = flushing.channel.call_soon(header(properties=properties), b"x", timeout=30)
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    assert waiting.done() != waits
    disk.works.set()
    assert (await waiting).code == 0


@pytest.mark.parametrize("form", [SendMessageV2, SendBatchMessage])
async def test_what_the_disk_does_not_confirm_in_time_is_answered_as_stored(flushing, clock, form):
    body = batch((b"a", "")) if form is SendBatchMessage else b"x"
    waiting = flushing.channel.call_soon(header(form), body, timeout=30)
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    await clock.advance(6)
    response = await waiting
    assert response.code == 10
    assert response.header(SendMessageResponse).queue_offset == 0
    assert (await flushing.messages())[0].offset_message_id == response.fields["msgId"]


async def test_a_burst_waits_for_the_disk_and_is_confirmed_as_one(flushing, disk):
    pending = [flushing.channel.call_soon(header(properties=""), b"x", timeout=30) for _ in range(20)]
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    assert not any(waiting.done() for waiting in pending)
    disk.works.set()
    assert [response.code for response in await asyncio.gather(*pending)] == [0] * 20


async def test_sends_that_the_store_does_not_take_are_counted(broker, orders):
    await orders.ask(header(queue_id=9), b"x", code=1)
    broker.store._log.refuse("the disk is broken")
    await orders.ask(header(), b"x", code=14)
    burst = [orders.channel.call_soon(header(), b"x", timeout=30) for _ in range(3)]
    assert [response.code for response in await asyncio.gather(*burst)] == [14] * 3
    assert broker.statistics.failed_puts == 4


# -- the table of topics


class SlowTable(LocalDisk):
    """A disk that replaces the table of topics when it is told to, or says that it is full."""

    def __init__(self):
        self.goes_on = threading.Event()
        self.error = None

    def replace(self, source, target):
        if target.name == "topics.json":
            self.goes_on.wait(30)
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
        super().replace(source, target)


@pytest.fixture
async def creating(config, clock, caller_to):
    """A caller of a broker whose table of topics is not written until its disk goes on, and one more caller."""
    disk = SlowTable()
    disk.goes_on.set()
    async with Broker(config, clock, disk=disk) as broker:
        disk.goes_on.clear()
        yield disk, await caller_to(broker), await caller_to(broker)
        disk.error = None
        disk.goes_on.set()


@pytest.mark.parametrize("form", [SendMessageV2, SendBatchMessage])
async def test_a_new_topic_is_on_disk_when_its_send_is_answered_and_nobody_else_waits(creating, config, form):
    disk, caller, other = creating
    body = batch((b"a", "")) if form is SendBatchMessage else b"a"
    waiting = [caller.channel.call_soon(header(form, topic=f"new{n}"), body, timeout=30) for n in range(20)]
    sent = await other.send("BenchmarkTest")
    assert sent.queue_offset == 0
    assert not any(each.done() for each in waiting)
    disk.goes_on.set()
    assert [(await each).code for each in waiting] == [0] * 20
    stored = decode_body(TopicConfigTable, (config.data / "config" / "topics.json").read_bytes())
    assert {f"new{n}" for n in range(20)} <= stored.topics.keys()


async def test_a_new_topic_that_the_disk_does_not_take_is_no_success(creating):
    disk, caller, _ = creating
    disk.error = errno.ENOSPC
    disk.goes_on.set()
    response = await caller.ask(header(topic="new"), b"x", code=14)
    assert "topics.json: No space left on device" in response.remark
    await caller.ask(header(topic="new"), b"x", code=14)
    disk.error = None
    await caller.ask(header(topic="new"), b"x")


async def test_a_connection_has_its_share_of_topics_and_the_next_one_finds_room(config, clock, caller_to):
    async with Broker(replace(config, limits=BrokerLimits(topics=38)), clock) as broker:
        caller, other = await caller_to(broker), await caller_to(broker)
        for number in range(3):
            await caller.send(f"t{number}")
        response = await caller.ask(header(topic="more"), b"x", code=2)
        assert "this connection created 3 topics" in response.remark
        assert "raise maxTopics (now 38)" in response.remark
        assert broker.topics.find("more") is None
        await caller.send("t0")  # what is there already goes on
        await other.send("more")
        assert (await caller.body(BrokerState())).table["pyromqRefused.maxTopics"] == "1"
        await caller.ask(header(SendBatchMessage, topic="batch"), batch((b"a", "")), code=2)
        burst = [caller.channel.call_soon(header(topic="burst"), b"x", timeout=30) for _ in range(5)]
        assert [(await each).code for each in burst] == [2] * 5
        assert (await caller.body(BrokerState())).table["pyromqRefused.maxTopics"] == "7"


# -- overload


async def test_sends_are_refused_while_the_disk_stands_still(flushing, disk, clock):
    waiting = flushing.channel.call_soon(header(), b"x", timeout=30)
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    await clock.advance(2)
    text = "[REJECTREQUEST]system busy, start flow control for a while"
    assert (await flushing.ask(header(), b"x", code=2)).remark == text
    assert (await flushing.ask(header(SendBatchMessage), batch((b"a", "")), code=2)).remark == text
    disk.works.set()
    assert (await waiting).code == 0
    await flushing.ask(header(), b"x")


@pytest.mark.parametrize(("flushing", "fast_failure"), [(False, False), (True, True)], indirect=["flushing"])
async def test_sends_are_refused_by_the_age_of_those_that_wait_where_that_is_wanted(
    flushing, disk, clock, fast_failure
):
    waiting = flushing.channel.call_soon(header(), b"x", timeout=30)
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    await clock.advance(0.1)
    second = flushing.channel.call_soon(header(), b"x", timeout=30)
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    await clock.advance(0.15)
    third = flushing.channel.call_soon(header(), b"x", timeout=30)
    table = (await flushing.body(BrokerState())).table
    assert table["sendThreadPoolQueueHeadWaitTimeMills"] == "250"
    assert table["sendThreadPoolQueueSize"] == ("2" if fast_failure else "3")
    disk.works.set()
    assert [(await each).code for each in (waiting, second)] == [0, 0]
    refused = await third
    if fast_failure:
        assert refused.remark == (
            "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: 250ms, size of queue: 2"
        )
    assert refused.code == (2 if fast_failure else 0)


async def test_too_many_unconfirmed_sends_are_refused(flushing, disk, monkeypatch):
    monkeypatch.setattr(confirmation, "MAX_UNCONFIRMED", 3)
    pending = [flushing.channel.call_soon(header(), b"x", timeout=30) for _ in range(3)]
    await flushing.ask(MaxOffset(topic="orders", queue_id=0))
    response = await flushing.ask(header(), b"x", code=2)
    assert response.remark == "[OVERLOAD]system busy, start flow control for a while"
    disk.works.set()
    assert [answer.code for answer in await asyncio.gather(*pending)] == [0] * 3
    await flushing.ask(header(), b"x")


async def test_store_times_never_decrease_though_the_clock_is_set_back(broker, caller, clock):
    await caller.create_topic("orders")
    for seconds in (0, 0, -3600, 0):
        clock.jump(seconds)
        await caller.send("orders", properties="a\x011")
    times = [message.store_ms for message in await caller.messages("orders", 0)]
    assert len(times) == 4
    assert times == sorted(times)


async def test_a_queue_that_a_topic_no_longer_has_gets_no_message(caller):
    await caller.create_topic("orders", queues=4)
    for _ in range(3):
        await caller.send("orders", queue_id=3)
    await caller.create_topic("orders", queues=1)
    await caller.ask(header(topic="orders", queue_id=3), b"x", code=1)
