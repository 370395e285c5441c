"""The same odd requests at the genuine servers and at ours: the same codes, texts and fields."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from tests.interop.peers.servers import GenuineServers, OurServers
from tests.waiting import PATIENCE_SECONDS, REQUEST_SECONDS

from pyromq.clock import SystemClock
from pyromq.net.channel import Channel, connect
from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    CreateTopic,
    KvNamespace,
    KvValue,
    PullMessage,
    PutKv,
    QueryDataVersion,
    RegisterBroker,
    RouteOfTopic,
    SaveGroup,
    SendBatchMessage,
    SendMessageV2,
)

pytestmark = pytest.mark.interop

Asked = tuple[str, Any, bytes]  # what it is about, header, body
Found = dict[str, tuple[int, str, dict[str, str]]]  # by that: code, text, fields


def send(form: type[Any] = SendMessageV2, **changes: Any) -> Any:
    fields = {
        "producer_group": "p",
        "topic": "refused",
        "default_topic": "TBW102",
        "default_topic_queue_count": 4,
        "queue_id": 0,
        "sys_flag": 0,
        "born_ms": 1,
        "flag": 0,
        "properties": "a\x011",
    }
    return form(**(fields | changes))


def pull(offset: int = 0, **changes: Any) -> Any:
    fields = {
        "consumer_group": "c",
        "topic": "refused",
        "queue_id": 0,
        "queue_offset": offset,
        "max_count": 32,
        "sys_flag": 4,
        "commit_offset": 0,
        "suspend_ms": 0,
        "subscription_version": 0,
        "subscription": "*",
    }
    return PullMessage(**(fields | changes))


MEMBER = encode_batch([BatchMember(0, b"a", "")])
AT_BROKER: list[Asked] = [
    ("make topic", CreateTopic(topic="refused", read_queues=4, write_queues=4, permission=6), b""),
    ("make pull topic", CreateTopic(topic="pulled", read_queues=1, write_queues=1, permission=6), b""),
    ("make closed topic", CreateTopic(topic="closed", read_queues=1, write_queues=1, permission=2), b""),
    ("make closed group", SaveGroup(), encode_body(GroupConfig(name="closed", consume_enabled=False))),
    ("blank topic", send(topic=" "), b"x"),
    ("illegal topic", send(topic="no blanks"), b"x"),
    ("long topic", send(topic="t" * 128), b"x"),
    ("long topic in batch", send(SendBatchMessage, topic="t" * 128), MEMBER),
    *((f"send to {topic}", send(topic=topic), b"x") for topic in ("SCHEDULE_TOPIC_XXXX", "SELF_TEST_TOPIC")),
    ("no pattern", send(topic="new", default_topic="none"), b"x"),
    ("queue 4", send(queue_id=4), b"x"),
    ("queue 4 in batch", send(SendBatchMessage, queue_id=4), MEMBER),
    ("large body", send(), bytes((4 << 20) + 1)),
    ("large properties", send(properties="a\x01" + "v" * 32_768), b"x"),
    ("closed topic", send(topic="closed"), b"x"),
    ("empty queue", pull(topic="pulled"), b""),
    ("behind an empty queue", pull(1, topic="pulled"), b""),
    ("first message", send(topic="pulled"), b"x"),
    ("at the end", pull(1, topic="pulled"), b""),
    ("behind the end", pull(2, topic="pulled"), b""),
    ("before the begin", pull(-1, topic="pulled"), b""),
    ("unwanted tag", pull(topic="pulled", subscription="Z"), b""),
    ("unknown topic", pull(topic="nowhere"), b""),
    ("unreadable topic", pull(topic="closed"), b""),
    ("closed group", pull(consumer_group="closed"), b""),
    ("queue 9", pull(queue_id=9), b""),
    ("queue -1", pull(queue_id=-1), b""),
    ("silent group", pull(sys_flag=0), b""),
    ("kind of filter", pull(subscription="a > 1", expression_type="X"), b""),
]
BROKER = {"broker_name": "x", "broker_address": "10.9.9.9:1", "cluster": "x", "broker_id": 0}
AT_NAME_SERVER: list[Asked] = [
    ("route", RouteOfTopic(topic="nowhere"), b""),
    ("value", KvValue(namespace="n", key="k"), b""),
    ("namespace", KvNamespace(namespace="n"), b""),
    ("key missing", PutKv(namespace="n", key=None, value="v"), b""),
    ("checksum", RegisterBroker(**BROKER, ha_address="10.9.9.9:2", body_crc=1), b"{}"),
    ("version", QueryDataVersion(**BROKER), b'{"counter":1,"timestamp":1}'),
]


async def answers(address: str, asked: list[Asked]) -> Found:
    """Return what is answered, with addresses and ids of the moment left out."""
    channel = await connect(address, Dispatcher(), SystemClock())
    found = {}
    for name, header, body in asked:
        response = await channel.call(header, body, timeout=REQUEST_SECONDS)
        if name == "first message":
            await until_queued(channel)
        remark = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", (response.remark or "") if response.code else "")
        # Ours names the topic and says how long it may be, as Java's client does.
        remark = re.sub(r"^The specified topic\[.*?\]", "The specified topic", remark)
        remark = remark.replace("topic max length 127.", "topic max length.")
        fields = {key: text for key, text in response.fields.items() if key != "msgId"}
        found[name] = response.code, remark, fields
    await channel.close()
    return found


async def until_queued(channel: Channel) -> None:
    """Wait until a pull finds the first message: the genuine broker fills its queues later than it answers."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while (await channel.call(pull(topic="pulled"), timeout=REQUEST_SECONDS)).code:
            await asyncio.sleep(0.05)


def compare(theirs: Found, ours: Found) -> None:
    differing = [f"{name}:\n  {theirs[name]}\n  {ours[name]}" for name in theirs if theirs[name] != ours[name]]
    assert not differing, "\n".join(differing)


def test_brokers_refuse_alike(genuine: GenuineServers, ours: OurServers) -> None:
    theirs, mine = (asyncio.run(answers(each.broker, AT_BROKER)) for each in (genuine, ours))
    compare(theirs, mine)


def test_name_servers_refuse_alike(genuine: GenuineServers, ours: OurServers) -> None:
    theirs, mine = (asyncio.run(answers(each.namesrv, AT_NAME_SERVER)) for each in (genuine, ours))
    compare(theirs, mine)
