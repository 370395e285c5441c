"""Our clients at the genuine name server and broker: administration, positions, and a broker that comes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.peers.clients import JavaClient, OurClient, read
from tests.interop.peers.java import Driver
from tests.interop.peers.samples import ordered_samples, samples
from tests.interop.peers.servers import GenuineServers

from pyromq import (
    Admin,
    BrokerError,
    Consumer,
    ConsumerConfig,
    Message,
    MessageQueue,
    Producer,
    ProducerConfig,
    PullConsumer,
    StoredMessage,
)
from pyromq.errors import TopicNotFound, UsageError
from pyromq.remoting.bodies import GroupConfig

pytestmark = pytest.mark.interop


@pytest.fixture
def admin(genuine: GenuineServers) -> Iterator[Admin]:
    with Admin(genuine.namesrv) as admin:
        yield admin


@pytest.fixture
def consumer(genuine: GenuineServers, topic: str) -> Iterator[PullConsumer]:
    with PullConsumer(f"reads-{topic}", genuine.namesrv) as consumer:
        yield consumer


@pytest.fixture
def java_reader(genuine: GenuineServers, home: Path) -> JavaClient:
    return JavaClient(Driver(home, genuine.namesrv))


def test_topic_is_created_and_deleted(admin: Admin, java_reader: JavaClient, topic: str) -> None:
    admin.create_topic(topic, queues=3)
    [part] = java_reader.driver.run("route", topic)
    assert (part["readQueues"], part["writeQueues"], part["permission"]) == (3, 3, 6)
    assert topic in admin.topics()

    admin.delete_topic(topic)

    assert topic not in admin.topics()


def test_route_names_the_broker(admin: Admin, genuine: GenuineServers, topic: str) -> None:
    admin.create_topic(topic, queues=3, permission="r")

    route = admin.topic_route(topic)

    assert genuine.broker in repr(route)
    assert "broker-a" in repr(route)


def test_topic_status_counts_what_was_sent(admin: Admin, python: OurClient, topic: str) -> None:
    sent = python.send("ordered", ordered_samples(topic))
    read(python, topic, "looks", len(sent))

    status = admin.topic_status(topic)

    assert sum(queue.max_offset - queue.min_offset for queue in status) == len(sent)


def test_cluster_names_the_broker(admin: Admin, genuine: GenuineServers) -> None:
    assert genuine.broker in repr(admin.cluster())
    assert admin.broker_runtime(genuine.broker)
    assert admin.broker_config(genuine.broker)["brokerName"] == "broker-a"


def test_a_broker_without_topic_types_is_named(admin: Admin, topic: str) -> None:
    with pytest.raises(UsageError, match=f"broker broker-a did not store the type fifo of topic {topic}"):
        admin.create_topic(topic, message_type="fifo")


def test_topic_settings_are_the_broker_s(admin: Admin, topic: str) -> None:
    admin.create_topic(topic, read_queues=5, write_queues=3, permission="w", order=True)

    config = admin.topic_config(topic)

    assert (config.read_queues, config.write_queues, config.permission) == (5, 3, 2)
    assert admin.kv("ORDER_TOPIC_CONFIG", topic) == "broker-a:3"  # a 4.x broker hears of the order from there only


def test_group_is_created_changed_and_deleted(admin: Admin, topic: str) -> None:
    admin.create_group(GroupConfig(f"group-{topic}", retry_max_times=3))
    admin.create_group(GroupConfig(f"group-{topic}", retry_max_times=5), replace=True)
    assert [g.retry_max_times for g in admin.groups() if g.name == f"group-{topic}"] == [5]

    admin.delete_group(f"group-{topic}")

    assert f"group-{topic}" not in {group.name for group in admin.groups()}


def test_connected_clients_are_seen(
    admin: Admin, genuine: GenuineServers, consumer: PullConsumer, python: OurClient, topic: str
) -> None:
    python.send("sync", samples(topic)[:1])
    with Producer(f"sends-{topic}", genuine.namesrv) as producer:
        producer.send(samples(topic)[1])
        consumer.assign(consumer.queues(topic), tags="TagA || TagB")

        members = admin.consumer_connection(f"reads-{topic}")
        senders = admin.producer_connection(f"sends-{topic}", topic)

    assert len(members.connections) == len(senders.connections) == 1
    assert set(members.subscriptions[topic].tags) == {"TagA", "TagB"}


@pytest.mark.parametrize("instance", [None, "shop"])
def test_replies_come_after_another_producer_of_the_process_is_closed(
    genuine: GenuineServers, admin: Admin, topic: str, instance: str | None
) -> None:
    def reply(messages: list[StoredMessage]) -> None:
        for message in messages:
            consumer.reply(message, b"reply to " + message.body)

    admin.create_topic(topic, queues=1)
    config = ProducerConfig(instance=instance)
    with (
        Consumer(f"replies-{topic}", genuine.namesrv, config=ConsumerConfig(instance="replies")) as consumer,
        Producer(f"asks-{topic}", genuine.namesrv, config=config) as producer,
    ):
        consumer.subscribe(topic, reply)
        for number in range(20):
            with Producer(f"other-{topic}", genuine.namesrv, config=config) as other:
                assert other.request(Message(topic, b"other")).body == b"reply to other"
            assert producer.request(Message(topic, b"%d" % number)).body == b"reply to %d" % number


def test_clients_that_are_closed_at_once_have_left_their_groups(
    genuine: GenuineServers, admin: Admin, topic: str
) -> None:
    """The first heartbeat is under way when the client leaves."""
    admin.create_topic(topic, queues=1)
    with Producer(f"stays-{topic}", genuine.namesrv) as stays:
        stays.send(Message(topic, b"1"))
        for number in range(20):
            group = f"left-{number}-{topic}"
            with Producer(group, genuine.namesrv) as producer:
                producer.send_one_way(Message(topic, b"2"))
            with pytest.raises(BrokerError, match="not exist"):
                admin.producer_connection(group, topic)


def test_name_server_keeps_values(admin: Admin, topic: str) -> None:
    admin.put_kv(topic, "größe", "naïve 🚀")
    assert admin.kv(topic, "größe") == "naïve 🚀"
    assert admin.kv_namespace(topic) == {"größe": "naïve 🚀"}

    admin.delete_kv(topic, "größe")

    assert admin.kv(topic, "größe") is None


def test_write_permission_is_taken_and_given_back(admin: Admin, topic: str) -> None:
    admin.create_topic(topic)
    assert admin.wipe_write_permission("broker-a") > 0
    assert [queues.permission for queues in admin.topic_route(topic).queues] == [4]

    assert admin.add_write_permission("broker-a") > 0

    assert [queues.permission for queues in admin.topic_route(topic).queues] == [6]


def test_healthy_servers_are_found_healthy(genuine: GenuineServers, python: OurClient, topic: str) -> None:
    python.send("sync", samples(topic)[:1])

    findings = Admin.diagnose(genuine.namesrv, topic)

    assert findings
    assert [finding for finding in findings if not finding.ok] == []


def test_message_is_found_by_both_ids(admin: Admin, python: OurClient, topic: str) -> None:
    sent = python.send("sync", samples(topic)[3:4])[0]

    by_offset_id = admin.view(sent.offset_message_id)
    by_unique_id = admin.view(sent.message_id, topic)

    assert by_offset_id.message_id == by_unique_id.message_id == sent.message_id
    assert by_offset_id.body == by_unique_id.body == samples(topic)[3].body


@pytest.mark.parametrize("key", ["k1", "k2", "k3", "schlüssel"])
def test_messages_are_found_by_key(admin: Admin, python: OurClient, topic: str, key: str) -> None:
    python.send("batch", samples(topic))
    read(python, topic, "looks", len(samples(topic)))

    [found] = admin.query_by_key(topic, key)

    assert key in found.keys


def test_progress_of_a_group_follows_its_commits(admin: Admin, python: OurClient, topic: str) -> None:
    python.send("sync", samples(topic))
    read(python, topic, f"reads-{topic}", len(samples(topic)))
    python.send("sync", samples(topic)[:3])
    read(python, topic, "looks", len(samples(topic)) + 3)

    progress = admin.group_progress(f"reads-{topic}", topic)

    assert sum(queue.lag for queue in progress) == 3
    assert sum(queue.consumer_offset for queue in progress) == len(samples(topic))


def test_group_is_reset_to_a_time(admin: Admin, python: OurClient, topic: str) -> None:
    python.send("sync", samples(topic)[:5])
    first = read(python, topic, f"reads-{topic}", 5)

    admin.reset_offset(f"reads-{topic}", topic, 0)

    assert python.pull(topic, f"reads-{topic}") == first


def test_offset_committed_here_is_the_java_client_s_start(
    admin: Admin, python: OurClient, java_reader: JavaClient, topic: str
) -> None:
    python.send("batch", samples(topic))
    queue = MessageQueue(topic, "broker-a", read(python, topic, "looks", len(samples(topic)))[0].queue_id)

    admin.commit_offset(f"reads-{topic}", queue, 7)

    arrived = java_reader.pull(topic, f"reads-{topic}")
    assert [message.queue_offset for message in arrived] == list(range(7, len(samples(topic))))


def test_positions_are_found_by_time(consumer: PullConsumer, python: OurClient, topic: str) -> None:
    python.send("batch", samples(topic)[:4])
    stored = read(python, topic, "looks", 4)
    queue = MessageQueue(topic, "broker-a", stored[0].queue_id)

    assert consumer.offset_by_time(queue, 0) == 0
    assert consumer.offset_by_time(queue, stored[-1].store_ms + 60_000) in (3, 4)  # the last one or behind it
    consumer.assign([queue])
    consumer.seek_to_time(queue, stored[0].store_ms - 60_000)
    assert [message.queue_offset for message in consumer.poll(timeout=5.0)] == [0, 1, 2, 3]


def test_held_pull_is_answered_by_a_new_message(consumer: PullConsumer, python: OurClient, topic: str) -> None:
    python.send("batch", samples(topic)[:1])
    queue = MessageQueue(topic, "broker-a", read(python, topic, "looks", 1)[0].queue_id)
    consumer.assign([queue])
    consumer.seek_to_end(queue)
    assert consumer.poll(timeout=0.2) == []

    with Producer("our-sends", python.namesrv) as producer:
        producer.send(Message(topic, b"wakes"), queue=queue)

    assert [message.body for message in consumer.poll(timeout=10.0)] == [b"wakes"]


def test_refusals_carry_the_broker_s_words(admin: Admin) -> None:
    with pytest.raises(TopicNotFound, match="NoSuchTopic"):
        admin.topic_route("NoSuchTopic")


def test_restarted_servers_are_found_again(home: Path, tmp_path: Path, topic: str) -> None:
    servers = GenuineServers(tmp_path / "home", tmp_path / "store")
    servers.start()
    try:
        with Producer("our-sends", servers.namesrv) as producer:
            first = producer.send(Message(topic, b"before"))
            servers.kill()
            servers.start()
            second = producer.send(Message(topic, b"after"), queue=first.queue, timeout=30.0)
        assert second.queue_offset == first.queue_offset + 1
    finally:
        servers.stop()
