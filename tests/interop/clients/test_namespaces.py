"""Namespaces between Java's clients and ours: both write, read and count by the same names."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.interop.peers.clients import JavaClient
from tests.interop.peers.java import Driver

from pyromq import (
    Admin,
    ConsumeFrom,
    Consumer,
    ConsumerConfig,
    Decision,
    GiveUp,
    Message,
    Producer,
    ProducerConfig,
    PullConsumer,
    StoredMessage,
    TransactionProducer,
)

pytestmark = pytest.mark.interop

SENDING = ProducerConfig(namespace="shop")
CONSUMING = ConsumerConfig(namespace="shop", consume_from=ConsumeFrom.FIRST)
COMPARED = ("WAIT", "INSTANCE_ID")  # properties that clients set, with the same values whoever sends


@pytest.fixture(params=["genuine", "ours"])
def namesrv(request: pytest.FixtureRequest) -> str:
    """Name servers of both kinds, each with its broker."""
    return str(request.getfixturevalue(request.param).namesrv)


@pytest.fixture
def java_shop(home: Path, namesrv: str) -> JavaClient:
    """The Java client in the namespace."""
    return JavaClient(Driver(home, namesrv, options=["-Dnamespace=shop"]))


def stored(namesrv: str, topic: str) -> list[StoredMessage]:
    """Return what a topic holds, by brokers' name, in order of bodies."""
    with PullConsumer("looks", namesrv) as consumer:
        results = [consumer.pull(queue, 0) for queue in consumer.queues(topic)]
    return sorted((message for result in results for message in result.messages), key=lambda message: message.body)


def test_java_and_we_send_the_same_and_read_each_others(java_shop: JavaClient, namesrv: str, topic: str) -> None:
    with Admin(namesrv) as admin:
        admin.create_topic(f"shop%{topic}", queues=4)
    for way, body in (("sync", b"1"), ("batch", b"2"), ("async", b"3")):
        java_shop.send(way, [Message(topic, b"%s of Java" % body)])
    with Producer("sellers", namesrv, config=SENDING) as producer:
        producer.send(Message(topic, b"1 of ours"))
        producer.send_batch([Message(topic, b"2 of ours")])
        sent = producer.send_soon(Message(topic, b"3 of ours"))
        assert sent.result(30).queue.topic == topic
    messages = stored(namesrv, f"shop%{topic}")
    assert [message.body for message in messages] == [
        b"%d of %s" % (n, who) for n in (1, 2, 3) for who in (b"Java", b"ours")
    ]
    for theirs, ours in zip(messages[::2], messages[1::2], strict=True):
        assert [ours.properties.get(name) for name in COMPARED] == [theirs.properties.get(name) for name in COMPARED]
        assert ours.properties["INSTANCE_ID"] == "shop"

    lines: list[dict[str, Any]] = java_shop.driver.run("push", topic, f"{topic}-java", "*", 6, 20)
    assert {line["topic"] for line in lines} == {topic}
    assert len(lines) == 6
    lines = java_shop.driver.run("lite-pull", topic, f"{topic}-lite", 6, 20)
    assert {line["topic"] for line in lines} == {topic}
    with PullConsumer(f"{topic}-java", namesrv, config=CONSUMING) as consumer:
        queues = consumer.queues(topic)
        assert sum(consumer.committed(queue) or 0 for queue in queues) > 0  # where Java stores it


def test_what_java_could_not_consume_comes_back_to_us(java_shop: JavaClient, namesrv: str, topic: str) -> None:
    group = f"{topic}-retries"
    java_shop.send("sync", [Message(topic, b"again")])
    seen: list[tuple[str, int]] = []

    def work(messages: list[StoredMessage]) -> None:
        for message in messages:
            seen.append((message.topic, message.reconsume_times))
            if not message.reconsume_times:
                raise GiveUp("enough")

    consumer = Consumer(group, namesrv, config=CONSUMING)
    consumer.subscribe(topic, work)
    with consumer, Admin(namesrv) as admin:
        for _ in range(200):
            if f"%DLQ%shop%{group}" in admin.topics():
                break
            time.sleep(0.1)
    assert seen == [(topic, 0)]
    (dead,) = stored(namesrv, f"%DLQ%shop%{group}")
    assert (dead.body, dead.properties["RETRY_TOPIC"]) == (b"again", f"shop%{topic}")


def test_a_transaction_of_ours_is_seen_by_java(java_shop: JavaClient, namesrv: str, topic: str) -> None:
    with (
        TransactionProducer(
            f"{topic}-sellers", namesrv, check=lambda message: Decision.COMMIT, config=SENDING
        ) as producer,
        producer.transaction(Message(topic, b"x")),
    ):
        pass
    lines = java_shop.driver.run("push", topic, f"{topic}-java", "*", 1, 20)
    assert [(line["topic"], line["properties"]["PGROUP"]) for line in lines] == [(topic, f"shop%{topic}-sellers")]
