"""RocketMQ 5's clients at our proxy while Java's broker is killed, while topics change, and without a right."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest
from tests.interop.peers.accounts import ACCOUNTS, connections
from tests.interop.peers.grpc_clients import GrpcClient, OurProxy, refusal_of
from tests.interop.peers.servers import OurServers
from tests.interop.test_grpc_clients import genuine5, program  # noqa: F401  fixtures
from tests.processes import Program

from pyromq import Admin, Unavailable

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

SECONDS = 90


@pytest.fixture
def at_java(program, genuine5, tmp_path, topic) -> Iterator[GrpcClient]:  # noqa: F811
    with OurProxy(genuine5.namesrv, tmp_path) as proxy:
        yield GrpcClient(*program, proxy.address)


def test_clients_go_on_after_javas_broker_was_killed(at_java, genuine5, topic):  # noqa: F811
    create_topic(genuine5, topic, 2)
    consumer = at_java.start("push", topic, f"killed-{topic}", "*", 1000, 0)
    try:
        before = bodies(at_java.run("send", topic, *(f"before-{number}" for number in range(5))))
        wait_until(lambda: before <= received(consumer), consumer)

        genuine5.kill()
        (refused,) = at_java.run("send", topic, "lost")
        genuine5.start()
        create_topic(genuine5, topic, 2)
        after = bodies(at_java.run("send", topic, *(f"after-{number}" for number in range(5))))

        wait_until(lambda: after <= received(consumer), consumer)
    finally:
        consumer.kill()
    assert "error" in refused


def test_clients_follow_changes_of_a_topic(at_java, genuine5, topic):  # noqa: F811
    create_topic(genuine5, topic, 1)
    consumer = at_java.start("push", topic, f"changed-{topic}", "*", 1000, 0)
    try:
        for queues in (1, 8, 2):
            create_topic(genuine5, topic, queues)
            sent = bodies(at_java.run("send", topic, *(f"of-{queues}-{number}" for number in range(8))))
            wait_until(lambda sent=sent: sent <= received(consumer), consumer)
        with Admin(genuine5.namesrv) as admin:
            admin.delete_topic(topic)
        create_topic(genuine5, topic, 2)
        sent = bodies(at_java.run("send", topic, *(f"again-{number}" for number in range(8))))
        wait_until(lambda: sent <= received(consumer), consumer)
    finally:
        consumer.kill()


def create_topic(servers, topic, queues):
    with Admin(servers.namesrv) as admin:
        for _ in range(SECONDS):  # Java's broker registers some time after it says that it has started
            with suppress(Unavailable):
                admin.create_topic(topic, queues, replace=True)
                return
            time.sleep(1)
    raise AssertionError("no broker has registered")


def bodies(lines):
    assert not [each for each in lines if "error" in each]
    return {each["body"] for each in lines}


def received(consumer: Program) -> set[str]:
    return {part.split('"')[0] for line in consumer.output for part in line.replace(": ", ":").split('"body":"')[1:]}


def wait_until(condition: Callable[[], bool], consumer: Program) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "".join(consumer.output[-50:])
        time.sleep(0.1)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory) -> Iterator[tuple[OurServers, OurProxy]]:
    """Our servers with permissions, and a proxy with the same accounts."""
    data = tmp_path_factory.mktemp("guarded")
    (data / "config").mkdir()
    (data / "config" / "plain_acl.yml").write_text(ACCOUNTS)
    (data / "broker.conf").write_text("aclEnable=true\n")
    servers = OurServers(data, options=["--config", data / "broker.conf", "--grpc-port", "0"])
    servers.start()
    try:
        with OurProxy(servers.namesrv, data / "proxy", "--acl", data / "config") as proxy:
            yield servers, proxy
    finally:
        servers.stop()


def test_an_account_may_do_what_it_has_rights_for(program, guarded, topic):  # noqa: F811
    servers, proxy = guarded
    with Admin(servers.namesrv, connections=connections("operators")) as admin:
        admin.create_topic(topic, 2)

    def run_as(account, *arguments, secret=None):
        keys = {"ACCESS_KEY": account, "SECRET_KEY": secret or f"secret-of-{account}"}
        return GrpcClient(*program, proxy.address, keys).run(*arguments)

    (sent,) = run_as("writer-1", "send", topic, "normal")
    (found,) = run_as("reader-1", "receive", topic, f"readers-{topic}", "*", 1)
    assert found["messageId"] == sent["messageId"]
    assert "account reader-1 needs PUB on topic" in refusal_of(run_as, "reader-1", "send", topic, "normal")
    assert "account writer-1 needs SUB on" in refusal_of(run_as, "writer-1", "receive", topic, "billing", "*", 1)
    hidden = f"failed to fetch topic:{topic}"  # all that Python's client shows of a refused route
    assert re.search(
        f"signature|{hidden}", refusal_of(run_as, "writer-1", "send", topic, "normal", secret="wrong-secret")
    )
    assert re.search(f"unknown|{hidden}", refusal_of(run_as, "nobody-1", "send", topic, "normal"))
