"""A store written by one side, ended in order or by kill, is opened by the other and loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from .clients import JavaClient, OurClient, Received, received
from .java import Driver
from .samples import ordered_samples, samples
from .servers import GenuineServers, OurServers, Servers

pytestmark = pytest.mark.interop


class House(NamedTuple):
    """Both kinds of servers on one store, never at the same time."""

    writer: Servers
    opener: Servers


@pytest.fixture(params=["ours-then-genuine", "genuine-then-ours"])
def house(request: pytest.FixtureRequest, home: Path, tmp_path: Path) -> Iterator[House]:
    ours = OurServers(tmp_path / "data")
    genuine = GenuineServers(tmp_path / "genuine", ours.store)
    house = House(ours, genuine) if request.param == "ours-then-genuine" else House(genuine, ours)
    yield house
    house.writer.kill()
    house.opener.kill()


def java_at(servers: Servers, home: Path) -> JavaClient:
    return JavaClient(Driver(home, servers.namesrv))


def write(servers: Servers, home: Path, topic: str) -> list[Received]:
    """Send with both clients; return what Java reads then."""
    for client in (java_at(servers, home), OurClient(servers.namesrv)):
        client.send("sync", samples(topic))
        client.send("batch", samples(topic))
        client.send("ordered", ordered_samples(topic))
    return java_at(servers, home).pull(topic, "writes")


@pytest.fixture(params=["stop", "kill"])
def end(request: pytest.FixtureRequest) -> str:
    """The verb that ends the writing servers."""
    return request.param


def test_every_message_is_there_for_both_clients(house: House, home: Path, topic: str, end: str) -> None:
    house.writer.start()
    written = write(house.writer, home, topic)
    getattr(house.writer, end)()

    house.opener.start()

    assert len(written) == 2 * (2 * len(samples(topic)) + 200)
    assert java_at(house.opener, home).pull(topic, "java-reads") == written
    assert OurClient(house.opener.namesrv).pull(topic, "our-reads") == written


def test_messages_are_found_by_key_and_id(house: House, home: Path, topic: str, end: str) -> None:
    house.writer.start()
    sent = java_at(house.writer, home).send("sync", samples(topic))[3]
    getattr(house.writer, end)()

    house.opener.start()

    ask = java_at(house.opener, home).driver.run
    [by_key] = received(ask("query-key", topic, "schlüssel"))
    [by_unique_id] = received(ask("view", topic, sent.message_id))
    assert by_key == by_unique_id
    assert (by_key.message_id, by_key.offset_message_id) == (sent.message_id, sent.offset_message_id)
    assert (by_key.queue_id, by_key.queue_offset) == (sent.queue_id, sent.queue_offset)


def test_offsets_are_found_by_time(house: House, home: Path, topic: str, end: str) -> None:
    house.writer.start()
    java_at(house.writer, home).send("batch", samples(topic))
    written = java_at(house.writer, home).pull(topic, "writes")
    getattr(house.writer, end)()

    house.opener.start()

    ask = java_at(house.opener, home).driver.run
    place = (topic, "broker-a", written[0].queue_id)
    assert ask("search-offset", *place, written[0].store_ms) == [{"offset": 0}]


def test_both_go_on_writing_where_the_other_stopped(house: House, home: Path, topic: str, end: str) -> None:
    house.writer.start()
    java_at(house.writer, home).send("ordered", ordered_samples(topic))
    getattr(house.writer, end)()
    house.opener.start()
    java_at(house.opener, home).send("ordered", ordered_samples(topic))
    getattr(house.opener, end)()
    house.writer.start()
    java_at(house.writer, home).send("ordered", ordered_samples(topic))

    arrived = java_at(house.writer, home).pull(topic, "reads")

    assert [(m.queue_id, m.queue_offset) for m in arrived] == sorted((m.queue_id, m.queue_offset) for m in arrived)
    bodies = [message.content.body for message in arrived if message.content.keys == "key-3"]
    assert bodies == [b"key-3 %d" % number for _ in range(3) for number in range(20)]


def test_committed_offsets_and_topics_come_along(house: House, home: Path, topic: str) -> None:
    house.writer.start()
    java = java_at(house.writer, home)
    java.driver.run("create-topic", topic, 3)
    java.send("sync", samples(topic))
    java.pull(topic, "reads")
    house.writer.stop()

    house.opener.start()

    java = java_at(house.opener, home)
    assert [part["writeQueues"] for part in java.driver.run("route", topic)] == [3]
    assert java.pull(topic, "reads") == []
    java.send("sync", samples(topic)[:2])
    assert len(java.pull(topic, "reads")) == 2
