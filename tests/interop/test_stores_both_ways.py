"""A store written by one side, ended in order or by kill, is opened by the other and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.interop.peers.clients import JavaClient, OurClient, Received, Sent, read, received
from tests.interop.peers.java import Driver
from tests.interop.peers.samples import ordered_samples, samples
from tests.interop.peers.servers import GenuineServers, OurServers, Servers

pytestmark = pytest.mark.interop
short = pytest.mark.interop_short


class House(NamedTuple):
    """Both kinds of servers on one store, never at the same time."""

    writer: Servers
    opener: Servers


ORDERS = ("ours-then-genuine", "genuine-then-ours")
ENDS = ("stop", "kill")


@contextmanager
def house_at(folder: Path, order: str) -> Iterator[House]:
    ours = OurServers(folder / "data")
    genuine = GenuineServers(folder / "genuine", ours.store)
    house = House(ours, genuine) if order == "ours-then-genuine" else House(genuine, ours)
    try:
        yield house
    finally:
        house.writer.kill()
        house.opener.kill()


def java_at(servers: Servers, home: Path) -> JavaClient:
    return JavaClient(Driver(home, servers.namesrv))


def write(servers: Servers, home: Path, topic: str) -> tuple[Sent, int]:
    """Send with both clients; return what Java was told of its fourth message, and how many messages were sent."""
    told = []
    for client in (java_at(servers, home), OurClient(servers.namesrv)):
        told.append(client.send("sync", samples(topic)))
        client.send("batch", samples(topic))
        client.send("ordered", ordered_samples(topic))
    return told[0][3], 4 * len(samples(topic)) + 2 * len(ordered_samples(topic))


def by_place(messages: list[Received]) -> list[Received]:
    return sorted(messages, key=lambda message: (message.queue_id, message.queue_offset))


class Handover(NamedTuple):
    """The servers that opened a store, and what its writers' clients had seen in it."""

    servers: Servers
    sent: Sent
    written: list[Received]


TOPIC = "handed-over"


HANDOVERS = [f"{order}-{end}" for order in ORDERS for end in ENDS]


@pytest.fixture(scope="module", params=HANDOVERS)
def handover(
    request: pytest.FixtureRequest, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Handover]:
    order, _, end = request.param.rpartition("-")
    with house_at(tmp_path_factory.mktemp("handover"), order) as house:
        house.writer.start()
        java = java_at(house.writer, home)
        sent, count = write(house.writer, home, TOPIC)
        written = by_place(read(java, TOPIC, "writes", count))
        assert len(written) == count
        getattr(house.writer, end)()
        house.opener.start()
        yield Handover(house.opener, sent, written)


@pytest.mark.parametrize(
    "handover",
    [pytest.param(each, marks=short) if each.endswith("kill") else each for each in HANDOVERS],
    indirect=True,
    scope="module",
)
def test_every_message_is_there_for_both_clients(handover: Handover, home: Path) -> None:
    assert java_at(handover.servers, home).pull(TOPIC, "java-reads") == handover.written
    assert OurClient(handover.servers.namesrv).pull(TOPIC, "our-reads") == handover.written


def test_messages_are_found_by_key_and_id(handover: Handover, home: Path) -> None:
    ask = java_at(handover.servers, home).driver.run
    expected = [message for message in handover.written if message.message_id == handover.sent.message_id]

    by_key = received(ask("query-key", TOPIC, "schlüssel"))

    assert len(by_key) == 4
    assert expected[0] in by_key
    assert received(ask("view", TOPIC, handover.sent.message_id)) == expected


def test_offsets_are_found_by_time(handover: Handover, home: Path) -> None:
    queue = [message for message in handover.written if message.queue_id == 0]
    ask = java_at(handover.servers, home).driver.run

    [found] = ask("search-offset", TOPIC, "broker-a", 0, queue[-1].store_ms)

    assert queue[found["offset"]].store_ms == queue[-1].store_ms


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("order", ORDERS)
def test_both_go_on_writing_where_the_other_stopped(
    tmp_path: Path, home: Path, topic: str, order: str, end: str
) -> None:
    with house_at(tmp_path, order) as house:
        for servers in (house.writer, house.opener):
            servers.start()
            java_at(servers, home).send("ordered", ordered_samples(topic))
            getattr(servers, end)()
        house.writer.start()
        java_at(house.writer, home).send("ordered", ordered_samples(topic))
        arrived = by_place(read(java_at(house.writer, home), topic, "reads", 3 * len(ordered_samples(topic))))

    places = {(message.queue_id, message.queue_offset) for message in arrived}
    assert len(places) == len(arrived) == 3 * len(ordered_samples(topic))
    bodies = [message.content.body for message in arrived if message.content.keys == "key-3"]
    assert bodies == [b"key-3 %d" % number for _ in range(3) for number in range(20)]


@pytest.mark.parametrize("order", ORDERS)
def test_committed_offsets_and_topics_come_along(tmp_path: Path, home: Path, topic: str, order: str) -> None:
    with house_at(tmp_path, order) as house:
        house.writer.start()
        java = java_at(house.writer, home)
        java.driver.run("create-topic", topic, 3)
        java.send("sync", samples(topic))
        read(java, topic, "reads", len(samples(topic)))
        house.writer.stop()

        house.opener.start()

        java = java_at(house.opener, home)
        assert [part["writeQueues"] for part in java.driver.run("route", topic)] == [3]
        assert java.pull(topic, "reads") == []
        java.send("sync", samples(topic)[:2])
        assert len(read(java, topic, "reads", 2)) == 2
