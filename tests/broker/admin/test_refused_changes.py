"""Administrators' changes that the disk refuses: nothing of them shows, now or after a restart."""

import errno
import os

import pytest

from pyromq.broker.broker import Broker
from pyromq.remoting.bodies import (
    AssignmentQuery,
    Assignments,
    GroupConfig,
    MessageRequestMode,
    decode_body,
    encode_body,
)
from pyromq.remoting.headers import (
    AllConsumerOffsets,
    AllGroups,
    AllTopics,
    BrokerSettings,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    QueryAssignment,
    SaveBrokerSettings,
    SaveGroup,
    SetMessageRequestMode,
    UpdateConsumerOffset,
)
from pyromq.store.disk import LocalDisk


def topic(name, queues):
    return CreateTopic(topic=name, read_queues=queues, write_queues=queues, permission=6), b""


def group(name, tries):
    return SaveGroup(), encode_body(GroupConfig(name=name, retry_max_times=tries))


def mode(name, text):
    return SetMessageRequestMode(), encode_body(MessageRequestMode(topic="orders", group=name, mode=text))


CHANGES = {
    "topic created": topic("more", 2),
    "topic changed": topic("orders", 7),
    "topic deleted": (DeleteTopic(topic="orders"), b""),
    "group created": group("others", 3),
    "group changed": group("workers", 3),
    "group deleted": (DeleteGroup(group="workers", remove_offsets=True), b""),
    "settings": (SaveBrokerSettings(), b"transactionCheckMax=7\nfileReservedTime=9\n"),
    "next start": (SaveBrokerSettings(), b"flushDiskType=SYNC_FLUSH\n"),
    "mode": mode("workers", "POP"),
}
TABLES = ("topics", "subscriptionGroup", "consumerOffset", "messageRequestMode", "broker.properties")


class ReadOnlyDisk(LocalDisk):
    """A disk that replaces no file whose name begins with `refused`."""

    refused = "no file"

    def replace(self, source, target):
        if target.name.startswith(self.refused):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        super().replace(source, target)


@pytest.fixture
def disk():
    return ReadOnlyDisk()


async def shown(caller):
    """Return all that administrators can change, without the tables' versions, which may grow."""
    settings = await caller.ask(BrokerSettings())
    query = AssignmentQuery(topic="orders", group="workers", client_id="one", strategy="AVG")
    assigned = await caller.ask(QueryAssignment(), encode_body(query))
    return (
        (await caller.body(AllTopics())).topics,
        (await caller.body(AllGroups())).groups,
        (await caller.body(AllConsumerOffsets())).offsets,
        {line for line in settings.body.decode().splitlines() if "istenPort" not in line},  # each start has another
        settings.fields["nextStart"],
        decode_body(Assignments, assigned.body),
    )


@pytest.mark.parametrize("refused", TABLES)
@pytest.mark.parametrize("name", CHANGES)
async def test_a_refused_change_shows_nowhere(config, clock, caller_to, disk, name, refused):
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        await caller.ask(*topic("orders", 4))
        await caller.ask(*group("workers", 16))
        await caller.send("orders")
        await caller.ask(UpdateConsumerOffset(consumer_group="workers", topic="orders", queue_id=0, commit_offset=1))
        before = await shown(caller)
        disk.refused = refused
        response = await caller.channel.call(*CHANGES[name], timeout=30)
        disk.refused = "no file"
        if response.code == 0:
            return  # this change does not write that table
        assert f"{refused}" in response.remark
        assert "Read-only file system" in response.remark
        assert await shown(caller) == before
    async with Broker(config, clock, disk=disk) as broker:
        assert await shown(await caller_to(broker)) == before


async def test_two_changes_of_one_topic_are_refused_together(config, clock, caller_to, disk):
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        disk.refused = "topics"
        asked = [caller.channel.call_soon(*topic("orders", queues), timeout=30) for queues in (1, 2, 3)]
        assert [(await each).code for each in asked] == [14, 14, 14]
        assert "orders" not in (await caller.body(AllTopics())).topics
        disk.refused = "no file"
        await caller.ask(*topic("orders", 4))
        assert broker.topics.find("orders").write_queues == 4


async def test_changes_of_one_setting_take_effect_in_their_order(config, clock, caller_to, disk):
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        bodies = [b"transactionCheckMax=%d\n" % count for count in range(1, 9)]
        asked = [caller.channel.call_soon(SaveBrokerSettings(), body, timeout=30) for body in bodies]
        for each in asked:
            (await each).check()
        assert broker.config.transaction_check_max == 8
