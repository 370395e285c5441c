"""`consume --last`: the newest messages of all queues, in the order they were stored."""

import json
import threading
import zlib

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq import ConsumerConfig, Message, MessageQueue, Producer
from pyromq.cli.commands.messages.topic_reader import FIRST_BLOCK
from pyromq.nameserver.routes import BrokerIdentity
from pyromq.remoting.bodies import BrokerRegistration, TopicConfig, TopicConfigTable


@pytest.fixture
def send(cli, served):
    """Send bodies in order, one a millisecond, to queues in turn."""

    def send_each(topic, bodies, *options):
        for body in bodies:
            served.pass_time(1)
            assert cli("send", topic, body, *options).code == 0

    return send_each


@pytest.mark.parametrize("queues", ["1", "3", "8"])
def test_the_newest_of_all_queues_come_in_the_order_they_were_stored(cli, send, queues):
    topic = f"last-order-{queues}"
    cli("topic", "create", topic, "--queues", queues)
    send(topic, map(str, range(20)))

    assert cli("consume", topic, "--last", "10").lines == [str(number) for number in range(10, 20)]
    assert cli("consume", topic, "-l", "1").lines == ["19"]
    assert cli("consume", topic, "-l", "100").lines == [str(number) for number in range(20)]
    assert cli("tail", topic).lines == [str(number) for number in range(10, 20)]


def test_one_queue_has_its_own_newest(cli, served):
    cli("topic", "create", "last-queue", "--queues", "8")
    cli("send", "last-queue", stdin=b"\n".join([b"old"] * 8 + [bytes([letter]) for letter in b"abcdefgh"]))
    of_each = [cli("consume", "last-queue", "--last", "1", "--queue", str(queue)).out for queue in range(8)]
    assert sorted(of_each) == [f"{body}\n" for body in "abcdefgh"]


def test_nothing_is_printed_of_an_empty_topic_and_it_is_said(cli, served):
    cli("topic", "create", "last-empty")
    shown = cli("consume", "last-empty", "--last", "3", "-o", "json")
    assert (shown.code, shown.out, shown.err) == (0, "", "no messages\n")


@pytest.mark.parametrize("number", ["0", "-1", "ten", "100001", "1e3"])
def test_a_number_out_of_range_is_wrong_usage(cli, number):
    refused = cli("consume", "last-any", "--last", number)
    assert (refused.code, refused.out) == (2, "")
    assert "1 to 100,000" in refused.err


def test_a_negative_offset_as_other_programs_have_it_is_told_the_option(cli):
    assert "for the newest messages write --last 10" in cli("consume", "last-any", "--from", "-10").err


def test_what_is_filtered_is_searched_for_behind_many_others(cli, served):
    wanted = [f"wanted {number}" for number in range(3)]
    cli("send", "last-filter", "--tags", "rare", "--ordering-key", "k", stdin="\n".join(wanted).encode())
    others = "\n".join(["other"] * FIRST_BLOCK * 5).encode()
    cli("send", "last-filter", "--tags", "common", "--ordering-key", "k", stdin=others)

    assert cli("consume", "last-filter", "--last", "2", "--tags", "rare").lines == wanted[1:]


def test_times_bound_what_is_the_newest(cli, served, send):
    send("last-time", ["old"])
    served.pass_time(1000)
    middle = served.now_ms()
    send("last-time", ["a", "b", "c"])

    assert cli("consume", "last-time", "--last", "2", "--until", str(middle + 2)).lines == ["a", "b"]
    assert cli("consume", "last-time", "--last", "9", "--from", str(middle)).lines == ["a", "b", "c"]
    assert cli("consume", "last-time", "--last", "9", "--from", "start").lines == ["old", "a", "b", "c"]


def test_bodies_come_as_they_were_sent(cli, served):
    large = "x" * 10_000  # is compressed
    with Producer("last-bodies", served.namesrv) as producer:
        producer.send(Message("last-bodies", large.encode()))
        producer.send_batch([Message("last-bodies", body) for body in (b"one", b"two")])
        producer.send(Message("last-bodies", zlib.compress(b"bytes")))
    shown = [json.loads(line) for line in cli("consume", "last-bodies", "--last", "4", "-o", "json").lines]
    assert [each.get("body") for each in shown] == [large, "one", "two", None]
    assert shown[3]["body_base64"]


def test_of_a_group_it_is_wrong_usage(cli):
    refused = cli("consume", "last-any", "--last", "3", "--group", "g")
    assert (refused.code, refused.out) == (2, "")
    assert "--last" in refused.err


def test_with_follow_it_goes_on(cli, served, send):
    send("last-follow", ["a", "b", "c"])
    found = []
    thread = threading.Thread(
        target=lambda: found.append(cli("consume", "last-follow", "--last", "2", "-F", "--count", "3"))
    )
    thread.start()
    while thread.is_alive():  # whichever arrives after its start is the third
        with Producer("last-follow", served.namesrv) as producer:
            producer.send(Message("last-follow", b"new"))
        thread.join(0.05)
    thread.join(PATIENCE_SECONDS)
    assert found[0].code == 0
    assert found[0].lines[-1] == "new"


def test_of_two_brokers_the_one_away_is_named_and_the_other_is_read(cli, served_with, monkeypatch):
    served = served_with()
    monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)
    cli("topic", "create", "last-two", "--queues", "4")
    for body in "abc":
        served.pass_time(1)
        assert cli("send", "last-two", body).code == 0
    topics = {"last-two": TopicConfig(name="last-two", read_queues=4, write_queues=0)}
    served.cluster.name_server.routes.register(
        BrokerIdentity("DefaultCluster", "gone", 0, "127.0.0.1:1"),
        BrokerRegistration(topics=TopicConfigTable(topics=topics)),
        now=1e12,
    )

    _, *others = ConsumerConfig.__init__.__defaults__
    monkeypatch.setattr(ConsumerConfig.__init__, "__defaults__", (0.2, *others))  # requests are retried for so long

    shown = cli("consume", "last-two", "--last", "2")

    assert (shown.code, shown.lines) == (1, ["b", "c"])
    assert shown.err.count("is left out") == 1
    assert "gone" in shown.err


def test_two_brokers_are_one_sequence(cli, served_with, monkeypatch):
    served = served_with(brokers=2)
    monkeypatch.setenv("NAMESRV_ADDR", served.namesrv)
    cli("topic", "create", "last-both", "--queues", "2")
    with Producer("last-both", served.namesrv) as producer:
        for number, body in enumerate("abcdefgh"):
            served.pass_time(1)
            broker = ("broker-a", "broker-b")[number % 2]
            producer.send(Message("last-both", body.encode()), queue=MessageQueue("last-both", broker, 0))
    shown = [json.loads(line) for line in cli("consume", "last-both", "-l", "5", "-o", "json").lines]
    assert [each["body"] for each in shown] == list("defgh")
    assert len({each["broker"] for each in shown}) == 2
