"""Data folders of a genuine broker: ours opens them and tells clients what that broker told them."""

import gzip
import json
import tarfile
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.record import decode_all
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    AllConsumerOffsets,
    AllGroups,
    AllTopics,
    EarliestStoreTime,
    EarliestStoreTimeResponse,
    MaxOffset,
    MinOffset,
    OffsetResponse,
    QueryMessage,
)
from pyromq.store.config import StoreConfig

FOLDER = Path(__file__).parent / "store"


@pytest.fixture(params=["store-java", "store-java-crashed"])
async def recorded(request, tmp_path):
    """A question to our broker on a recorded folder, and what the genuine one said."""
    with tarfile.open(FOLDER / f"{request.param}.tar.gz") as archive:
        for member in filter(tarfile.TarInfo.isfile, archive):
            path = tmp_path / member.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.extractfile(member).read())
    with gzip.open(FOLDER / f"{request.param}.expected.json.gz") as file:
        expected = json.load(file)
    root = tmp_path / request.param
    store = StoreConfig(root, segment_bytes=65536, consume_queue_entries=30, index_slots=64, index_entries=200)
    async with Broker(BrokerConfig(root, port=0, store=store)) as broker:
        channel = await connect(broker.address, Dispatcher(), SystemClock())
        yield channel, expected
        await channel.close()


async def test_tables_are_those_of_the_genuine_broker(recorded):
    channel, expected = recorded
    topics = json.loads((await channel.call(AllTopics(), timeout=5)).body)["topicConfigTable"]
    without_names = {name: {k: v for k, v in topic.items() if k != "topicName"} for name, topic in topics.items()}
    assert without_names == expected["topicConfig"]
    groups = json.loads((await channel.call(AllGroups(), timeout=5)).body)
    assert groups["subscriptionGroupTable"] == expected["subscriptionGroup"]
    offsets = json.loads((await channel.call(AllConsumerOffsets(), timeout=5)).body)
    assert offsets["offsetTable"] == expected["consumerOffset"]


async def test_bounds_of_queues_are_those_of_the_genuine_broker(recorded):
    channel, expected = recorded
    for name, bounds in expected["queues"].items():
        topic, queue_id = name.rsplit(" ", 1)
        queue = {"topic": topic, "queue_id": int(queue_id)}
        begin = (await channel.call(MinOffset(**queue), timeout=5)).header(OffsetResponse).offset
        end = (await channel.call(MaxOffset(**queue), timeout=5)).header(OffsetResponse).offset
        earliest = (await channel.call(EarliestStoreTime(**queue), timeout=5)).header(EarliestStoreTimeResponse)
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
        response = await channel.call(header, timeout=5)
        found = [message.offset_message_id for message in decode_all(response.body)]
        assert found == query.get("offsetMsgIds", []), query["key"]
