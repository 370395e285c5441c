"""Traces of messages: Java's are read here, ours by Java's tools."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.interop.peers.clients import JavaClient
from tests.interop.peers.java import Tools
from tests.interop.peers.servers import OurServers

from pyromq import (
    Admin,
    ConsumeFrom,
    ConsumerConfig,
    Message,
    MessageTrace,
    Producer,
    ProducerConfig,
    SimpleConsumer,
)
from pyromq.errors import QueryNotFound

pytestmark = pytest.mark.interop


def life_of(admin: Admin, message_id: str, count: int) -> list[tuple[str, str]]:
    """Return what is told of a message without its topic, once it is so much."""
    found: list[tuple[str, str]] = []
    for _ in range(100):
        try:
            found = [(event.what, event.who) for event in admin.message_life(message_id)]
        except QueryNotFound:
            pass
        if len(found) >= count:
            break
        time.sleep(0.1)
    return found


def test_traces_of_java_clients_are_read(java: JavaClient, ours: OurServers, topic: str) -> None:
    (sent,) = java.send("traced", [Message(topic, b"x", keys="k")])
    java.driver.run("push", topic, "traced-reads", "*", 1, 20)
    with Admin(ours.namesrv) as admin:
        life = life_of(admin, sent.message_id, 5)
    assert life[:4] == [
        ("sent", "java-sends"),
        ("stored", "broker-a"),
        ("delivered", "traced-reads"),
        ("consumed", "traced-reads"),
    ]


def test_our_traces_are_read_by_javas_tools(home: Path, ours: OurServers, topic: str) -> None:
    with MessageTrace(ours.namesrv) as trace:
        config = ProducerConfig(hooks=(trace,))
        with Producer("our-sends", ours.namesrv, config=config) as producer:
            sent = producer.send(Message(topic, b"x", tags="paid", keys="k"))
    with Admin(ours.namesrv) as admin:
        assert life_of(admin, sent.message_id, 2)[0] == ("sent", "our-sends")
    (printed,) = Tools(home, ours.namesrv).run([f"queryMsgTraceById -i {sent.message_id}"])
    assert "Pub" in printed
    assert "our-sends" in printed
    assert "success" in printed


def test_traces_of_our_simple_consumer_are_read_by_javas_tools(home: Path, ours: OurServers, topic: str) -> None:
    group = f"simple-{topic}"
    with MessageTrace(ours.namesrv) as trace:
        with Producer("our-sends", ours.namesrv, config=ProducerConfig(hooks=(trace,))) as producer:
            sent = producer.send(Message(topic, b"x"))
        config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, hooks=(trace,))
        with SimpleConsumer(group, ours.namesrv, config=config) as consumer:
            consumer.subscribe(topic)
            (message,) = consumer.receive(wait_seconds=20, invisible_seconds=30)
            consumer.ack(message)
    with Admin(ours.namesrv) as admin:
        life = life_of(admin, sent.message_id, 4)
    assert life[2:4] == [("delivered", group), ("consumed", group)]
    (printed,) = Tools(home, ours.namesrv).run([f"queryMsgTraceById -i {sent.message_id}"])
    assert "Sub" in printed
    assert group in printed
