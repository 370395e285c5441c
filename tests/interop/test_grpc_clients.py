"""RocketMQ 5's clients of Java, Node, Go and Python at our proxy, before our broker and Java's 5.3.3 and 4.9.7."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest
from tests.interop.peers.grpc_clients import CLIENTS, ClientMissing, GrpcClient, OurProxy
from tests.interop.peers.java import JavaMissing
from tests.interop.peers.servers import GenuineServers, OurServers, Servers

from pyromq import Admin, ConsumeFrom, ConsumerConfig, Message, Producer, SimpleConsumer, Unavailable
from pyromq.remoting.bodies import GroupConfig

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

CHECKS = {"transactionTimeOut": 3000, "transactionCheckInterval": 3000}  # ms: orphans are asked about soon
CONTENT = {"tag": "paid", "keys": ["k1", "k2"], "properties": {"amount": "7"}}


@pytest.fixture(scope="module")
def genuine5(home, tmp_path_factory) -> Iterator[GenuineServers]:
    folder = tmp_path_factory.mktemp("genuine5")
    servers = GenuineServers(folder, folder / "store", major=5, enablePropertyFilter="true", **CHECKS)
    try:
        servers.start()
        with Admin(servers.namesrv) as admin:
            for _ in range(100):  # its broker registers some time after it says that it has started
                with suppress(Unavailable):
                    admin.create_topic("ready", 1)
                    break
                time.sleep(0.3)
        yield servers
    finally:
        servers.kill()


@pytest.fixture(scope="module")
def checking(tmp_path_factory) -> Iterator[OurServers]:
    servers = OurServers(tmp_path_factory.mktemp("ours"), options=("--grpc-port", "0"), **CHECKS)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture(scope="module", params=["pyromq", "5.3.3"])
def servers(request) -> Servers:
    return request.getfixturevalue("checking" if request.param == "pyromq" else "genuine5")


@pytest.fixture(scope="module")
def proxy(servers, tmp_path_factory) -> Iterator[OurProxy]:
    with OurProxy(servers.namesrv, tmp_path_factory.mktemp("proxy")) as proxy:
        yield proxy


@pytest.fixture(scope="module", params=sorted(CLIENTS))
def program(request, tmp_path_factory):
    home = tmp_path_factory.mktemp(f"{request.param}-home")
    try:
        return CLIENTS[request.param](home), home
    except (ClientMissing, JavaMissing) as missing:
        pytest.skip(str(missing))


@pytest.fixture
def client(program, proxy) -> GrpcClient:
    return GrpcClient(*program, proxy.address)


@pytest.fixture
def admin(servers) -> Iterator[Admin]:
    with Admin(servers.namesrv) as admin:
        yield admin


def content(line):
    return {name: line[name] for name in CONTENT}


def test_messages_of_all_types_are_sent_and_received(client, admin, topic):
    admin.create_topic(topic)
    kinds = ["normal", "fifo", "delay", "commit", "rollback"]

    sent = client.run("send", topic, *kinds)
    found = client.run("receive", topic, f"all-{topic}", "*", 4)

    assert [each.get("error") for each in sent] == [None] * len(kinds)
    assert sorted(each["body"] for each in found) == ["commit", "delay", "fifo", "normal"]
    ids = {each["body"]: each["messageId"] for each in sent}
    for each in found:
        assert (content(each), each["attempt"], each["messageId"]) == (CONTENT, 1, ids[each["body"]])
        assert (each.get("group") or None) == ("customer-3" if each["body"] == "fifo" else None)
    chosen = client.run("receive", topic, f"sql-{topic}", "sql:amount > 5", 4)
    assert len(chosen) == 4


def test_a_message_of_another_type_or_of_no_topic_is_refused(client, admin, topic):
    admin.create_topic(topic, message_type="normal")

    normal, fifo = client.run("send", topic, "normal", "fifo")
    (missing,) = client.run("send", f"no-{topic}", "normal")

    assert "error" not in normal
    assert "not match" in fifo["error"]
    # Python's client does not show the proxy's text
    assert re.search(f"pyromq topic create no-{topic}|failed to fetch topic:no-{topic}", missing["error"])


def test_a_changed_invisible_time_brings_the_message_again(client, admin, topic):
    admin.create_topic(topic)
    client.run("send", topic, "normal")

    found = client.run("again", topic, f"again-{topic}")

    assert [(each["body"], each["attempt"]) for each in found] == [("normal", 1), ("normal", 2)]


def test_failed_messages_are_pushed_again_and_become_dead_letters(client, admin, topic):
    admin.create_topic(topic)
    group = f"push-{topic}"
    admin.create_group(GroupConfig(group, retry_max_times=1))
    client.run("send", topic, "normal", "fifo")

    found = client.run("push", topic, group, "paid||other", 4, 9)

    assert sorted((each["body"], each["attempt"]) for each in found) == [
        *(("fifo", 1), ("fifo", 2), ("normal", 1), ("normal", 2)),
    ]


def test_an_orderly_group_goes_on_in_order_after_a_consumer_died(client, admin, topic):
    admin.create_topic(topic)
    group = orderly_group(admin, topic)
    sent = [f"fifo-{number}" for number in range(5)]
    client.run("send", topic, *sent)

    dying = client.run("abandon", topic, group)
    found = client.run("receive", topic, group, "*", 4)

    assert attempts(dying) == [("fifo-0", 1), ("fifo-1", 1)]
    assert attempts(found) == [("fifo-1", 2), *((each, 1) for each in sent[2:])]


def test_an_orderly_listener_retries_a_message_before_the_next(request, client, admin, topic):
    if request.node.callspec.params["program"] in ("go", "node"):
        pytest.skip("Go's client goes on with the next message; Node's makes a dead letter at the first failure")
    admin.create_topic(topic)
    group = orderly_group(admin, topic)
    sent = [f"fifo-{number}" for number in range(3)]
    client.run("send", topic, *sent)

    found = client.run("push", topic, group, "*", 6, 1)

    assert [each["body"] for each in found] == [each for each in sent for _ in range(2)]


def orderly_group(admin, topic):
    group = f"orderly-{topic}"
    admin.create_group(GroupConfig(group, orderly=True))
    return group


def attempts(lines):
    return [(each["body"], each["attempt"]) for each in lines]


def test_a_producer_is_asked_about_an_undecided_transaction(client, admin, topic):
    admin.create_topic(topic)

    (asked, *_) = client.run("orphan", topic)
    (found,) = client.run("receive", topic, f"orphan-{topic}", "*", 1)

    assert (asked["body"], content(asked)) == ("orphan", CONTENT)
    assert found["messageId"] == asked["messageId"]


def test_brokers_of_4_9_take_all_types_and_refuse_receives(program, genuine, topic, tmp_path):
    with Admin(genuine.namesrv) as admin, OurProxy(genuine.namesrv, tmp_path) as proxy:
        admin.create_topic(topic)
        client = GrpcClient(*program, proxy.address)

        sent = client.run("send", topic, "normal", "fifo", "delay", "commit", "rollback")
        with pytest.raises(RuntimeError, match="has no pop"):
            client.run("receive", topic, "billing", "*", 1)

    assert [each.get("error") for each in sent] == [None] * 5


def test_our_simple_consumer_receives_from_a_broker_of_5_3_3(genuine5, topic):
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    with Admin(genuine5.namesrv) as admin:
        admin.create_topic(topic, 4)
    with Producer("senders", genuine5.namesrv) as producer:
        for number in range(20):
            producer.send(Message(topic, b"%d" % number, tags="paid"))
    with SimpleConsumer(f"simple-{topic}", genuine5.namesrv, config=config) as consumer:
        consumer.subscribe(topic)
        found = {}
        while len(found) < 20:
            for message in consumer.receive(wait_seconds=10, invisible_seconds=30):
                if message.body == b"7" and not message.reconsume_times:
                    consumer.change_invisible_duration(message, 1)
                    continue
                found[message.body] = message.reconsume_times
                consumer.ack(message)
    assert found == {b"%d" % number: int(number == 7) for number in range(20)}
