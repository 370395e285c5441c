"""Either client sends in all its ways, either reads: through our servers and through the genuine ones."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.peers.clients import (
    ORDER,
    WAYS,
    Client,
    JavaClient,
    OurClient,
    Received,
    Sent,
    content,
    contents,
    read,
)
from tests.interop.peers.java import Driver
from tests.interop.peers.samples import messages_for, ordered_samples, samples
from tests.interop.peers.servers import Servers

from pyromq import Admin
from pyromq.java_hash import java_hash

pytestmark = pytest.mark.interop


class Journey(NamedTuple):
    """Who serves, who sends, who reads."""

    servers: Servers
    sender: Client
    reader: Client


short = pytest.mark.interop_short


def spelled(journey: object) -> str:
    return str(journey).replace(" ", "-")


JOURNEYS = (
    "ours java java",
    "ours java python",
    "ours python java",
    "genuine python python",
    "genuine python java",
    "genuine java python",
)
SHORT = {("ours java python", "sync"), ("genuine python java", "sync"), ("genuine python java", "batch")}
in_short_form = pytest.mark.parametrize(
    "journey",
    [pytest.param(journey, marks=short) if journey == "ours java python" else journey for journey in JOURNEYS],
    ids=spelled,
    indirect=True,
)
SENDS = [
    pytest.param(journey, way, marks=short) if (journey, way) in SHORT else (journey, way)
    for journey in JOURNEYS
    for way in WAYS
]


@pytest.fixture(params=JOURNEYS, ids=spelled)
def journey(request: pytest.FixtureRequest, home: Path) -> Journey:
    servers_name, *client_names = request.param.split()
    servers: Servers = request.getfixturevalue(servers_name)
    clients = {"java": JavaClient(Driver(home, servers.namesrv)), "python": OurClient(servers.namesrv)}
    sender, reader = (clients[name] for name in client_names)
    return Journey(servers, sender, reader)


@pytest.mark.parametrize(("journey", "way"), SENDS, ids=spelled, indirect=["journey"])
def test_what_is_sent_arrives_unchanged(journey: Journey, way: str, topic: str) -> None:
    messages = messages_for(way, topic)
    if way == "oneway":  # nobody would wait for the topic's creation
        with Admin(journey.servers.namesrv) as admin:
            admin.create_topic(topic, queues=4)

    sent = journey.sender.send(way, messages)
    arrived = read(journey.reader, topic, "reads", len(messages))

    assert contents(arrived) == contents(messages)
    assert {result.status for result in sent} <= {"SEND_OK"}
    assert places_told(sent) <= places_seen(arrived)


def places_told(sent: list[Sent]) -> set[tuple[str, str]]:
    """Unique id and offset id of each message, as the answers to its sender had them."""
    return {
        pair
        for result in sent
        for pair in zip(result.message_id.split(","), result.offset_message_id.split(","), strict=True)
    }


def places_seen(arrived: list[Received]) -> set[tuple[str, str]]:
    return {(message.message_id, message.offset_message_id) for message in arrived}


def test_sent_offset_is_where_the_message_is_read(journey: Journey, topic: str) -> None:
    sent = journey.sender.send("sync", samples(topic))

    arrived = read(journey.reader, topic, "reads", len(sent))

    told = {result.message_id: (result.queue_id, result.queue_offset) for result in sent}
    assert {message.message_id: (message.queue_id, message.queue_offset) for message in arrived} == told


@in_short_form
def test_messages_of_one_key_share_a_queue_and_keep_their_order(journey: Journey, topic: str) -> None:
    sent = journey.sender.send("ordered", ordered_samples(topic))

    arrived = read(journey.reader, topic, "reads", len(sent))

    bodies, queues = defaultdict(list), defaultdict(set)
    for message in arrived:
        key = dict(message.content.properties)[ORDER]
        bodies[key].append(message.content.body.decode())
        queues[key].add(message.queue_id)
    assert bodies == {f"key-{key}": [f"key-{key} {number}" for number in range(20)] for key in range(10)}
    assert queues == {key: {abs(java_hash(key)) % 4} for key in bodies}


@in_short_form
def test_large_bodies_travel_compressed(journey: Journey, topic: str) -> None:
    journey.sender.send("sync", samples(topic))

    arrived = read(journey.reader, topic, "reads", len(samples(topic)))

    compressed = {message.content.keys for message in arrived if message.sys_flag & 1}
    assert compressed - {"incompressible"} == {"edge-4096", "compressed"}  # Java compresses what grows by it, too


def test_a_batch_lies_in_one_queue_in_its_order(journey: Journey, topic: str) -> None:
    journey.sender.send("batch", samples(topic))

    arrived = read(journey.reader, topic, "reads", len(samples(topic)))

    assert [message.content for message in arrived] == [content(message) for message in samples(topic)]
    assert len({message.queue_id for message in arrived}) == 1


def test_tags_choose_messages(journey: Journey, topic: str) -> None:
    journey.sender.send("sync", samples(topic))
    read(journey.reader, topic, "looks", len(samples(topic)))
    wanted = ["TagA", "TagA || TagB", "标签", "TagNone"]

    arrived = [journey.reader.pull(topic, f"reads-{number}", tags) for number, tags in enumerate(wanted)]

    assert [sorted(str(m.content.tags) for m in messages) for messages in arrived] == [
        ["TagA", "TagA"],
        ["TagA", "TagA", "TagB"],
        ["标签"],
        [],
    ]


@in_short_form
def test_committed_offsets_hold_for_the_next_reader_of_the_group(journey: Journey, topic: str) -> None:
    journey.sender.send("sync", samples(topic)[:5])
    read(journey.reader, topic, "reads", 5)

    journey.sender.send("sync", samples(topic)[5:8])
    arrived = read(journey.reader, topic, "reads", 3)

    assert contents(arrived) == contents(samples(topic)[5:8])
