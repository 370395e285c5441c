"""Data folders of a genuine broker: ours opens them and tells clients what that broker told them."""

import gzip
import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.names import SCHEDULE_TOPIC
from pyromq.net.channel import connect
from pyromq.record import decode, decode_all
from pyromq.remoting.bodies import DelayOffsetTable, HeartbeatBody, ProducerEntry, decode_body, encode_body
from pyromq.remoting.command import Reply
from pyromq.remoting.dispatch import Dispatcher, answers
from pyromq.remoting.headers import (
    AllConsumerOffsets,
    AllGroups,
    AllTopics,
    CheckTransaction,
    EarliestStoreTime,
    EarliestStoreTimeResponse,
    EndTransaction,
    Heartbeat,
    MaxOffset,
    MinOffset,
    OffsetResponse,
    QueryMessage,
)
from pyromq.store.store_config import StoreConfig
from pyromq.testing import FakeClock

FOLDER = Path(__file__).parent / "store"


@pytest.fixture(params=["store-java", "store-java-crashed"])
def folder(request, tmp_path):
    """The settings of a broker on a recorded folder, and what the genuine one said."""
    with tarfile.open(FOLDER / f"{request.param}.tar.gz") as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):
            path = tmp_path / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.extractfile(member).read())
    with gzip.open(FOLDER / f"{request.param}.expected.json.gz") as file:
        expected = json.load(file)
    root = tmp_path / request.param
    store = StoreConfig(root, segment_bytes=65536, consume_queue_entries=30, index_slots=64, index_entries=200)
    return BrokerConfig(root, port=0, store=store), expected


def recorded_at(expected):
    return max(message["storeTimestamp"] for message in expected["messages"])


@pytest.fixture
async def recorded(folder):
    """A question to our broker on the folder, at the time of its last message: nothing is due."""
    config, expected = folder
    async with Broker(config, FakeClock(recorded_at(expected))) as broker:
        channel = await connect(broker.address, Dispatcher(), SystemClock())
        yield channel, expected
        await channel.close()


async def test_tables_are_those_of_the_genuine_broker(recorded):
    channel, expected = recorded
    topics = json.loads((await channel.call(AllTopics(), timeout=30)).body)["topicConfigTable"]
    without_names = {name: {k: v for k, v in topic.items() if k != "topicName"} for name, topic in topics.items()}
    assert without_names == expected["topicConfig"]
    groups = json.loads((await channel.call(AllGroups(), timeout=30)).body)
    assert groups["subscriptionGroupTable"] == expected["subscriptionGroup"]
    offsets = json.loads((await channel.call(AllConsumerOffsets(), timeout=30)).body)
    assert offsets["offsetTable"] == expected["consumerOffset"]


async def test_bounds_of_queues_are_those_of_the_genuine_broker(recorded):
    channel, expected = recorded
    for name, bounds in expected["queues"].items():
        topic, queue_id = name.rsplit(" ", 1)
        queue = {"topic": topic, "queue_id": int(queue_id)}
        begin = (await channel.call(MinOffset(**queue), timeout=30)).header(OffsetResponse).offset
        end = (await channel.call(MaxOffset(**queue), timeout=30)).header(OffsetResponse).offset
        earliest = (await channel.call(EarliestStoreTime(**queue), timeout=30)).header(EarliestStoreTimeResponse)
        assert (begin, end, earliest.timestamp) == (bounds["min"], bounds["max"], bounds["earliestStoreTime"]), name


async def test_key_queries_give_the_same_messages_in_the_same_order(recorded):
    channel, expected = recorded
    for query in expected["keyQueries"]:
        header = QueryMessage(
            topic=query["topic"],
            key=query["key"],
            max_count=query["maxNum"],
            begin_ms=query["begin"],
            end_ms=query["end"],
        )
        response = await channel.call(header, timeout=30)
        found = [message.offset_message_id for message in decode_all(response.body)]
        assert found == query.get("offsetMsgIds", []), query["key"]


async def test_what_the_genuine_broker_left_waiting_is_delivered(folder):
    config, expected = folder
    parked = [
        message
        for message in expected["messages"]
        if message["topic"] == SCHEDULE_TOPIC
        and message["queueOffset"] >= expected_offset(expected, message["queueId"] + 1)
    ]
    assert len(parked) >= 5
    two_hours = 7_200_000
    clock = FakeClock(recorded_at(expected) + two_hours)
    async with Broker(config, clock) as broker:
        store = broker.store
        for _ in range(10):  # a batch a turn of the loop
            await clock.advance(0)
        for message in parked:
            real = message["properties"]["REAL_TOPIC"], int(message["properties"]["REAL_QID"])
            entries = store.entries(*real, expected["queues"].get(f"{real[0]} {real[1]}", {"max": 0})["max"], 100)
            delivered = [store.message_at(entry.log_offset) for entry in entries]
            (copy,) = (copy for copy in delivered if copy.properties["UNIQ_KEY"] == message["properties"]["UNIQ_KEY"])
            assert copy.properties == message["properties"]
            assert (copy.born_ms, copy.reconsume_times) == (message["bornTimestamp"], message["reconsumeTimes"])
        last = {message["queueId"] + 1: message["queueOffset"] + 1 for message in parked}
        assert broker.delay_levels.offsets() == {1: 5, 2: 1, **last}


async def test_transactions_the_genuine_broker_left_open_are_decided_here(folder):
    config, expected = folder
    clock = FakeClock(recorded_at(expected))
    async with Broker(replace(config, transaction_check_interval_ms=10_000), clock) as broker:
        asked = Asked()
        channel = await connect(broker.address, Dispatcher(asked), SystemClock())
        groups = [ProducerEntry(group=group) for group in ("GoldenTxGroup", "GoldenProducer2")]
        beat = HeartbeatBody(client_id="p", producers=groups)
        (await channel.call(Heartbeat(), encode_body(beat), timeout=30)).check()
        end = broker.store.max_offset("GoldenB", 2)
        await clock.advance(10)
        (await channel.call(AllTopics(), timeout=30)).check()  # what was asked before has arrived
        crashed = ["after-pending"] if broker.config.data.name.endswith("crashed") else []
        assert [message.keys for _, message in asked.checks] == [["tx-pending"], *([key] for key in crashed)]
        header, message = asked.checks[0]
        assert message.properties["TRANSACTION_CHECK_TIMES"] == "2"
        commit = EndTransaction(
            producer_group="GoldenTxGroup",
            half_queue_offset=header.half_queue_offset,
            log_offset=header.log_offset,
            decision=8,
            message_id=header.message_id,
            from_check=True,
        )
        (await channel.call(commit, timeout=30)).check()
        (entry,) = broker.store.entries("GoldenB", 2, end, 9)
        assert broker.store.message_at(entry.log_offset).keys == ["tx-pending"]
        await channel.close()


class Asked:
    """A producer that notes what it is asked."""

    def __init__(self):
        self.checks = []

    @answers(CheckTransaction)
    def check(self, header, call):
        self.checks.append((header, decode(call.body)))
        return Reply()


def expected_offset(expected, level):
    """How far the genuine broker had delivered a level. What it said is JSON with unquoted keys."""
    return decode_body(DelayOffsetTable, expected["delayOffset"].encode()).offsets.get(level, 0)
