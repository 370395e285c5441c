"""Commands while one of two brokers cannot be reached: the other one's answers, a warning, and exit code 1."""

import json
import os
import signal
import time

import pytest
from tests.waiting import REQUEST_SECONDS

from pyromq.nameserver.routes import BrokerIdentity
from pyromq.remoting.bodies import BrokerRegistration, TopicConfig, TopicConfigTable

SHOWING = [
    "cluster show",
    "cluster settings",
    "topic list",
    "topic show orders",
    "topic stats orders",
    "topic rates",
    "topic groups orders",
    "group list",
    "group show billing",
    "group progress billing",
    "group settings billing",
    "member producers",
    "offset show orders",
    "delay list orders",
    "delay count",
    "transaction list",
    "transaction batches",
    "message find orders --key k1",
    "message find orders --key k2",
    "group monitor --rounds 1",
]


@pytest.fixture(scope="module")
def partly(request):
    """A cluster with a topic at a broker, and the same topic at a registered address where nothing listens."""
    from tests.cli.conftest import Served

    served = Served()
    request.addfinalizer(served.close)
    routes = served.cluster.name_server.routes
    topics = {"orders": TopicConfig(name="orders", read_queues=4, write_queues=4)}
    routes.register(
        BrokerIdentity("DefaultCluster", "gone", 0, "127.0.0.1:1"),
        BrokerRegistration(topics=TopicConfigTable(topics=topics)),
        now=1e12,
    )
    return served


@pytest.fixture
def cluster(partly, cli, monkeypatch):
    monkeypatch.setenv("NAMESRV_ADDR", partly.namesrv)
    return partly


def test_setting_up(cluster, cli):
    assert cli("topic", "create", "orders", "--queues", "4", "--broker", "broker-a").code == 0
    assert cli("send", "orders", "found all the same", "--keys", "k2").code == 0


@pytest.mark.parametrize("command", SHOWING)
def test_the_others_are_shown_and_the_exit_code_is_one(cluster, cli, command):
    outcome = cli(*command.split(), "-o", "json")
    assert outcome.code == 1, outcome
    assert "127.0.0.1:1" in outcome.err
    assert outcome.err.count("is left out") <= 1
    if outcome.out:
        json.loads(outcome.out)


@pytest.mark.parametrize(
    "command", ["group alter TOOLS_CONSUMER --retries 3", "topic delete orders --yes", "export metrics"]
)
def test_what_must_be_complete_fails_by_name(cluster, cli, command):
    outcome = cli(*command.split())
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1].startswith("error: ")
    assert "127.0.0.1:1" in outcome.err


@pytest.mark.slow
def test_a_broker_that_is_stopped_is_waited_for_once_and_said_to_be_silent(cli, serve, tmp_path, monkeypatch):
    names = serve()
    ports = ("--broker-port", "0", "--namesrv", names.namesrv, "--broker-name", "broker-b")
    other = serve("broker", data=tmp_path / "other", ports=ports)
    monkeypatch.setenv("NAMESRV_ADDR", names.namesrv)
    assert cli("topic", "create", "orders", "--queues", "4").code == 0
    assert cli("send", "orders", stdin=b"\n".join([b"x"] * 40)).code == 0
    assert len(cli("consume", "orders", "--last", "100").lines) == 40
    os.kill(other.process.pid, signal.SIGSTOP)
    try:
        began = time.monotonic()
        read = cli("consume", "orders", "--last", "100")
        reading, began = time.monotonic() - began, time.monotonic()
        found = cli("doctor", "orders")
        checking, began = time.monotonic() - began, time.monotonic()
        shown = cli("topic", "show", "orders")
        showing = time.monotonic() - began
        sent = cli("send", "orders", stdin=b"\n".join([b"x"] * 8))
    finally:
        os.kill(other.process.pid, signal.SIGCONT)
    assert (read.code, 0 < len(read.lines) < 40) == (1, True)
    assert "broker-b is left out" in read.err and "takes requests, but answers none, for" in read.err
    assert (found.code, "broker-b (id 0): takes connections at" in found.out) == (1, True)
    assert (shown.code, "answers none" in shown.err) == (1, True)
    assert (sent.code, sent.out) == (0, "sent 8 messages\n")  # the other broker takes them
    assert max(reading, checking, showing) < REQUEST_SECONDS / 2  # each waits 2 s, and no request to its own limit
