"""The genuine clients, 4.9.8 and 5.3.3, at our servers: push, lite pull, binary headers, administration."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path

import pytest
from tests.interop.peers.clients import ORDER, JavaClient, content, contents, read, received
from tests.interop.peers.java import Driver
from tests.interop.peers.samples import ordered_samples, samples
from tests.interop.peers.servers import OurServers

from pyromq import ConsumeFrom, Consumer, ConsumerConfig, RetryLater, StoredMessage

pytestmark = pytest.mark.interop
short = pytest.mark.interop_short

SECONDS = 30  # a push or lite-pull consumer gives up after


@pytest.fixture
def admin(java: JavaClient) -> Driver:
    return java.driver


@pytest.fixture
def java5(home: Path, ours: OurServers) -> JavaClient:
    """The Java client 5.3.3, which asks more than a 4.x server knows (351, 361)."""
    return JavaClient(Driver(home, ours.namesrv, major=5))


@pytest.fixture
def binary_java(home: Path, ours: OurServers) -> JavaClient:
    """The Java client 4.9.8 with binary instead of JSON command headers."""
    return JavaClient(Driver(home, ours.namesrv, options=["-Drocketmq.serialize.type=ROCKETMQ"]))


@pytest.fixture(params=["java", "java5", "binary_java"])
def any_java(request: pytest.FixtureRequest) -> JavaClient:
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("any_java", [pytest.param("java", marks=short), "java5", "binary_java"], indirect=True)
def test_push_consumer_receives_every_message_once(any_java: JavaClient, topic: str) -> None:
    any_java.send("async", samples(topic))

    arrived = received(any_java.driver.run("push", topic, f"push-{topic}", "*", len(samples(topic)), SECONDS))

    assert contents(arrived) == contents(samples(topic))


def test_orderly_push_consumer_receives_each_key_in_order(any_java: JavaClient, topic: str) -> None:
    any_java.send("ordered", ordered_samples(topic))

    arrived = received(any_java.driver.run("push-orderly", topic, f"orderly-{topic}", "*", 200, SECONDS))

    bodies = defaultdict(list)
    for message in arrived:
        bodies[dict(message.content.properties)[ORDER]].append(message.content.body.decode())
    assert bodies == {f"key-{key}": [f"key-{key} {number}" for number in range(20)] for key in range(10)}


def test_push_consumer_goes_on_where_its_group_stopped(java: JavaClient, topic: str) -> None:
    java.send("sync", samples(topic)[:6])
    java.driver.run("push", topic, f"push-{topic}", "*", 6, SECONDS)
    java.send("sync", samples(topic)[6:8])

    arrived = received(java.driver.run("push", topic, f"push-{topic}", "*", 2, SECONDS))

    assert contents(arrived) == contents(samples(topic)[6:8])


def test_push_consumer_receives_a_retry_with_the_reason_of_our_consumer(
    java: JavaClient, ours: OurServers, topic: str
) -> None:
    group, reason = f"push-{topic}", "no such customer: ‘4711’ " + "x" * 1000
    failed = threading.Event()

    def fail(messages: list[StoredMessage]) -> None:
        failed.set()
        raise RetryLater(reason, delay_level=1)

    java.send("sync", samples(topic)[:1])
    consumer = Consumer(group, ours.namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    consumer.subscribe(topic, fail)
    with consumer:
        assert failed.wait(SECONDS)

    [arrived] = received(java.driver.run("push", topic, group, "*", 1, SECONDS))

    (sent,) = samples(topic)[:1]
    properties = dict(arrived.content.properties)
    assert (arrived.content.body, arrived.content.keys) == (sent.body, " ".join(sent.keys))
    assert properties["RETRY_REASON"].startswith("RetryLater: no such customer: ‘4711’ xxx")
    assert len(properties["RETRY_REASON"]) == 500


def test_push_consumer_receives_its_tags_only(java: JavaClient, topic: str) -> None:
    java.send("sync", samples(topic))

    arrived = received(java.driver.run("push", topic, f"push-{topic}", "TagA || TagC", 3, SECONDS))

    assert sorted(str(message.content.tags) for message in arrived) == ["TagA", "TagA", "TagC"]


@pytest.mark.parametrize("major", [4, pytest.param(5, marks=short)])
def test_lite_pull_consumer_receives_every_message(home: Path, ours: OurServers, topic: str, major: int) -> None:
    client = JavaClient(Driver(home, ours.namesrv, major=major))
    client.send("sync", samples(topic))

    arrived = received(client.driver.run("lite-pull", topic, f"lite-{topic}", len(samples(topic)), SECONDS))

    assert contents(arrived) == contents(samples(topic))


@pytest.mark.parametrize("way", ["sync", "oneway", "batch"])
@pytest.mark.parametrize("any_java", ["java5", "binary_java"], indirect=True)
def test_other_kinds_of_header_carry_messages_too(any_java: JavaClient, topic: str, way: str) -> None:
    any_java.send(way, samples(topic))

    arrived = read(any_java, topic, "reads", len(samples(topic)))

    assert contents(arrived) == contents(samples(topic))


def test_administrator_creates_a_topic(admin: Driver, topic: str) -> None:
    admin.run("create-topic", topic, 3)

    route = admin.run("route", topic)
    assert [(part["readQueues"], part["writeQueues"], part["permission"]) for part in route] == [(3, 3, 6)]
    assert topic in admin.run("topics")[0]
    assert {line["queueId"] for line in admin.run("topic-stats", topic)} == {0, 1, 2}


def test_administrator_sees_the_cluster(admin: Driver, ours: OurServers) -> None:
    [cluster] = admin.run("cluster")

    assert {address for broker in cluster["brokers"].values() for address in broker.values()} == {ours.broker}


@pytest.mark.parametrize("client", ["java", "java5"])
def test_administrator_sees_offsets_of_topics(request: pytest.FixtureRequest, client: str, topic: str) -> None:
    java: JavaClient = request.getfixturevalue(client)
    sent = java.send("ordered", ordered_samples(topic))

    statistics = java.driver.run("topic-stats", topic)

    ends = {queue: max(s.queue_offset + 1 for s in sent if s.queue_id == queue) for queue in {s.queue_id for s in sent}}
    assert {line["queueId"]: line["max"] for line in statistics if line["max"]} == ends
    assert {line["min"] for line in statistics} == {0}


def test_administrator_sees_progress_of_a_group(java: JavaClient, topic: str) -> None:
    java.send("sync", samples(topic))
    java.driver.run("push", topic, f"push-{topic}", "*", len(samples(topic)), SECONDS)

    progress = java.driver.run("group-stats", f"push-{topic}")

    lines = [line for line in progress if line["topic"] == topic]
    assert sum(line["consumerOffset"] for line in lines) == len(samples(topic))
    assert sum(line["brokerOffset"] for line in lines) == len(samples(topic))


def test_administrator_finds_a_message_by_both_ids(java: JavaClient, topic: str) -> None:
    sent = java.send("sync", samples(topic)[3:4])[0]

    [by_unique_id] = received(java.driver.run("view", topic, sent.message_id))
    [by_offset_id] = received(java.driver.run("view", topic, sent.offset_message_id))

    assert by_unique_id == by_offset_id
    assert by_offset_id.content == content(samples(topic)[3])


@pytest.mark.parametrize("key, count", [("k1", 1), ("k2", 1), ("k3", 1), ("schlüssel", 1)])
def test_administrator_finds_messages_by_key(java: JavaClient, topic: str, key: str, count: int) -> None:
    java.send("batch", samples(topic))

    found = received(java.driver.run("query-key", topic, key))

    assert len(found) == count
    assert all(key in message.content.keys.split() for message in found)


def test_administrator_resets_a_group_to_a_time(java: JavaClient, topic: str) -> None:
    java.send("sync", samples(topic)[:4])
    before = read(java, topic, f"reads-{topic}", 4)

    java.driver.run("reset-offset", topic, f"reads-{topic}", 0)

    assert java.pull(topic, f"reads-{topic}") == before
