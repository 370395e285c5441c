"""Administrators' changes: topics, groups, offsets."""

import asyncio
import errno
import os
import threading

import pytest
from msgspec import UNSET
from tests.broker.headers import send_header
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.topics import Topics
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import GroupConfig, ResetOffsets, TopicConfig, decode_body, encode_body
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    AllConsumerOffsets,
    AllDelayOffsets,
    AllGroups,
    AllTopics,
    BrokerSystemTopics,
    CleanQueues,
    CleanTopics,
    CloneGroupOffset,
    CorrectionOffsets,
    CreateTopic,
    DeleteExpiredLog,
    DeleteGroup,
    DeleteTopic,
    MaxOffset,
    OffsetResponse,
    ResetClientOffset,
    SaveGroup,
    SendMessageBack,
    TopicSettings,
    UpdateConsumerOffset,
)
from pyromq.store.disk import LocalDisk
from pyromq.store.json_file import JsonFile


class Told:
    """What a member is told of offsets: group, topic, offsets."""

    def __init__(self):
        self.resets = asyncio.Queue()

    @answers(ResetClientOffset)
    def reset(self, header, call):
        self.resets.put_nowait((header.group, header.topic, decode_body(ResetOffsets, call.body).offsets))
        return Reply()


async def commit(caller, group, topic, queue_id, offset):
    await caller.create_topic(topic)
    header = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
    await caller.ask(header)


async def end_of(caller, topic, queue_id=0):
    return (await caller.ask(MaxOffset(topic=topic, queue_id=queue_id))).header(OffsetResponse).offset


async def test_a_created_topic_is_listed_with_its_settings(caller):
    await caller.create_topic("orders", queues=3, permission=4)
    table = await caller.body(AllTopics())
    assert (table.topics["orders"].read_queues, table.topics["orders"].permission) == (3, 4)
    assert table.data_version.counter == 1
    assert await caller.body(TopicSettings(topic="orders")) == table.topics["orders"]


async def test_creating_again_replaces_the_settings(caller, broker):
    await caller.create_topic("orders", queues=3)
    await caller.create_topic("orders", queues=5)
    assert broker.topics.find("orders").write_queues == 5


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("bad name!", "The specified topic[bad name!] contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"),
        ("SCHEDULE_TOPIC_XXXX", "The topic[SCHEDULE_TOPIC_XXXX] is conflict with system topic."),
        ("DefaultCluster", "The topic[DefaultCluster] is conflict with system topic."),
    ],
)
async def test_names_are_checked_with_the_texts_of_java(caller, topic, text):
    created = await caller.ask(CreateTopic(topic=topic, read_queues=1, write_queues=1, permission=6), code=1)
    assert created.remark == text
    deleted = await caller.ask(DeleteTopic(topic=topic), code=1)
    assert deleted.remark == text


@pytest.mark.parametrize("numbers", [(-1, 1, 6), (1, 1 << 20, 6), (1, 1, 16)])
async def test_numbers_out_of_range_are_refused(caller, numbers):
    read_queues, write_queues, permission = numbers
    header = CreateTopic(topic="orders", read_queues=read_queues, write_queues=write_queues, permission=permission)
    assert "must be 0 to" in (await caller.ask(header, code=1)).remark


def typed(name, attributes=None):
    return CreateTopic(topic=name, read_queues=4, write_queues=4, permission=6, attributes=attributes)


async def test_attributes_are_kept_by_changes_that_do_not_name_them_and_by_a_restart(caller, config, clock):
    await caller.ask(typed("orders", "+message.type=fifo"))
    await caller.ask(typed("orders"))
    stored = decode_body(TopicConfig, (await caller.ask(TopicSettings(topic="orders"))).body)
    assert (stored.attributes, stored.message_type) == ({"message.type": "FIFO"}, "fifo")
    again = Topics(config, JsonFile(config.data / "config" / "topics.json"), clock)
    again.load()
    assert again.find("orders").message_type == "fifo"
    await caller.ask(typed("orders", "-message.type"))
    stored = decode_body(TopicConfig, (await caller.ask(TopicSettings(topic="orders"))).body)
    assert (stored.attributes, stored.message_type) == (UNSET, None)


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ("+message.type=ODD", "message.type is 'ODD'; it must be one of DELAY, FIFO"),
        ("+message.type=", "message.type is ''"),
        ("+queue.type=BatchCQ", "attribute 'queue.type' is not supported; pyromq has only message.type"),
        ("-message.type", "has no attribute message.type to delete"),
        ("message.type=FIFO", "'message.type=FIFO' is not a change of an attribute; write +NAME=VALUE or -NAME"),
        ("+message.type", "is not a change"),
        ("-message.type=FIFO", "is not a change"),
        ("+=FIFO", "is not a change"),
        ("+message.type=FIFO,", "'' is not a change"),
        ("+message.type=FIFO,-message.type", "is named twice"),
        ("+" + "x" * 1024, "have 1025 characters; the limit is 1024"),
    ],
)
async def test_changes_of_attributes_that_are_not_possible_change_nothing(caller, attributes, text):
    assert text in (await caller.ask(typed("orders", attributes), code=1)).remark
    await caller.ask(TopicSettings(topic="orders"), code=17)


async def test_settings_of_an_unknown_topic_are_refused(caller):
    await caller.ask(TopicSettings(topic="nothing"), code=17)


async def test_a_deleted_topic_loses_its_queues(caller):
    await caller.send("orders")
    assert await end_of(caller, "orders") == 1
    await caller.ask(DeleteTopic(topic="orders"))
    assert await end_of(caller, "orders") == 0
    assert "orders" not in (await caller.body(AllTopics())).topics
    await caller.ask(DeleteTopic(topic="orders"))


async def test_a_deleted_topic_loses_the_offsets_of_every_group_for_good(caller, broker, config):
    for group in ("g", "other"):
        await commit(caller, group, "orders", 0, 5)
        await commit(caller, group, "kept", 0, 5)
    broker.offsets.persist()
    await caller.ask(DeleteTopic(topic="orders"))
    assert broker.offsets.table().offsets == {"kept@g": {0: 5}, "kept@other": {0: 5}}
    again = ConsumerOffsets(JsonFile(config.data / "config" / "consumerOffset.json"))
    again.load()  # as after a crash
    assert again.table() == broker.offsets.table()


async def test_deleting_a_topic_keeps_the_retries_of_a_group_whose_name_ends_with_the_topic(caller, broker):
    await caller.send("orders")
    await commit(caller, "billing", "orders", 0, 1)
    await caller.beat("one", group="billing_orders")
    (message,) = await caller.messages("orders", 0)
    await caller.ask(SendMessageBack(message.log_offset, "billing_orders", 0, origin_topic="orders"))
    retries = "%RETRY%billing_orders"
    assert broker.topics.find(retries) is not None
    await caller.ask(DeleteTopic(topic="orders"))
    assert broker.topics.find(retries) is not None


class HangingDisk(LocalDisk):
    """A disk that replaces a file of that name when it is told to, or refuses that, and notes what was replaced."""

    def __init__(self, name):
        self.name = name
        self.goes_on = threading.Event()
        self.refuses = False
        self.replaced = []

    def replace(self, source, target):
        if target.name == self.name:
            self.goes_on.wait(PATIENCE_SECONDS)
            if self.refuses:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.replaced.append(target.name)
        super().replace(source, target)


@pytest.fixture
async def hanging(config, clock, caller_to):
    """A broker with topics `orders` and `more`, an offset of the former, and a disk that hangs at its topics."""
    disk = HangingDisk("topics.json")
    disk.goes_on.set()
    async with Broker(config, clock, disk=disk) as broker:
        caller, other = await caller_to(broker), await caller_to(broker)
        for topic in ("orders", "more"):
            await caller.create_topic(topic)
            await caller.send(topic)
        await commit(caller, "g", "orders", 0, 1)
        disk.replaced.clear()
        disk.goes_on.clear()
        yield disk, caller, other
        disk.goes_on.set()


async def test_while_a_topic_is_deleted_others_are_served_and_it_is_gone_already(hanging):
    disk, caller, other = hanging
    deleting = caller.channel.call_soon(DeleteTopic(topic="orders"), timeout=20)
    await other.send("more")
    assert not deleting.done()
    send = send_header(topic="orders")
    assert (await other.ask(send, b"x", code=17)).remark.startswith("topic[orders] is being deleted")
    create = CreateTopic(topic="orders", read_queues=1, write_queues=1, permission=6)
    assert (await other.ask(create, code=1)).remark.startswith("topic[orders] is being deleted")
    disk.goes_on.set()
    (await deleting).check()
    await other.create_topic("orders")
    assert (await other.send("orders")).queue_offset == 0


async def test_offsets_of_a_deleted_topic_go_first_then_its_settings_then_its_queues(hanging, config):
    disk, caller, other = hanging
    deleting = caller.channel.call_soon(DeleteTopic(topic="orders"), timeout=20)
    await other.send("more")
    assert await end_of(other, "orders") == 1
    disk.goes_on.set()
    (await deleting).check()
    tables = [name for name in disk.replaced if name in ("consumerOffset.json", "topics.json", "queues")]
    assert tables == ["consumerOffset.json", "topics.json", "queues"]
    assert not (config.data / "consumequeue" / "orders").exists()


async def test_a_topic_whose_deletion_the_disk_refuses_can_be_deleted_once_it_has_room(hanging, config, clock):
    disk, caller, _ = hanging
    disk.refuses = True
    disk.goes_on.set()
    assert "No space left" in (await caller.ask(DeleteTopic(topic="orders"), code=14)).remark
    disk.refuses = False
    await caller.ask(DeleteTopic(topic="orders"))
    assert await end_of(caller, "orders") == 0
    again = Topics(config, JsonFile(config.data / "config" / "topics.json"), clock)
    again.load()  # as after a crash
    assert again.find("orders") is None


async def test_who_consumes_a_deleted_topic_is_told_to_begin_again(broker, caller_to):
    told = Told()
    consumer = await caller_to(broker, told)
    await consumer.create_topic("orders", queues=2)
    await consumer.beat("one", group="workers", topics=("orders", "more"))
    await consumer.beat("two", group="others", topics=("more",))
    await consumer.ask(DeleteTopic(topic="orders"))
    begin = {MessageQueue("orders", "broker-a", queue_id): 0 for queue_id in range(2)}
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert await told.resets.get() == ("workers", "orders", begin)
    assert told.resets.empty()


async def test_system_topics_are_those_of_java(caller):
    assert set((await caller.body(BrokerSystemTopics())).topics) == {
        "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRACE_TOPIC",
        "DefaultCluster_REPLY_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "BenchmarkTest",
        "TRANS_CHECK_MAX_TIME_TOPIC",
        "OFFSET_MOVED_EVENT",
        "TBW102",
        "broker-a",
        "SELF_TEST_TOPIC",
        "DefaultCluster",
    }


async def test_cleaning_removes_queues_of_unknown_topics_only(caller, broker):
    await caller.send("kept")
    await caller.send("gone")
    broker.topics.delete("gone")
    await caller.ask(CleanTopics())
    assert await end_of(caller, "kept") == 1
    assert await end_of(caller, "gone") == 0


@pytest.mark.parametrize("header", [CleanQueues(), DeleteExpiredLog()])
async def test_cleaning_that_has_nothing_to_do_succeeds(caller, header):
    await caller.ask(header)


async def test_groups_are_saved_listed_and_deleted(caller):
    group = GroupConfig(name="g", retry_max_times=3, consume_enabled=False)
    await caller.ask(SaveGroup(), encode_body(group))
    assert (await caller.body(AllGroups())).groups["g"] == group
    await caller.ask(DeleteGroup(group="g"))
    assert "g" not in (await caller.body(AllGroups())).groups


async def test_a_deleted_group_keeps_its_offsets_unless_asked_otherwise(caller, broker):
    await commit(caller, "g", "orders", 0, 5)
    await caller.ask(DeleteGroup(group="g"))
    assert broker.offsets.find("g", "orders", 0) == 5
    await caller.ask(DeleteGroup(group="g", remove_offsets=True))
    assert broker.offsets.find("g", "orders", 0) is None


async def test_all_offsets_are_listed(caller):
    assert (await caller.body(AllConsumerOffsets())).offsets == {}
    await commit(caller, "g", "orders", 2, 5)
    assert (await caller.body(AllConsumerOffsets())).offsets == {"orders@g": {2: 5}}
    assert (await caller.body(AllDelayOffsets())).offsets == {}


async def test_offsets_are_cloned_without_those_of_retries(caller, broker):
    for topic in ("orders", "more", "%RETRY%g"):
        await commit(caller, "g", topic, 0, 5)
    await caller.ask(CloneGroupOffset(source_group="g", destination_group="one", topic="orders"))
    assert broker.offsets.topics_of("one") == {"orders"}
    await caller.ask(CloneGroupOffset(source_group="g", destination_group="all"))
    assert broker.offsets.topics_of("all") == {"orders", "more"}


async def test_correction_offsets_are_the_lowest_of_all_groups(caller):
    for group, offset in (("slow", 3), ("fast", 9), ("ignored", 1)):
        await commit(caller, group, "orders", 0, offset)
        await commit(caller, group, "orders", 1, 4)
    header = CorrectionOffsets(filter_groups="ignored", compare_group="fast", topic="orders")
    assert (await caller.body(header)).offsets == {0: 3, 1: 4}
    header = CorrectionOffsets(filter_groups="ignored", compare_group="ignored", topic="orders")
    assert (await caller.body(header)).offsets == {0: (1 << 63) - 1, 1: 4}


async def test_bodies_travel_as_java_reads_them(caller):
    await commit(caller, "g", "orders", 2, 5)
    raw = (await caller.ask(AllConsumerOffsets())).body
    assert raw == b'{"offsetTable":{"orders@g":{"2":5}}}'
    assert decode_body(AllConsumerOffsets.reply_body, raw).offsets["orders@g"] == {2: 5}
