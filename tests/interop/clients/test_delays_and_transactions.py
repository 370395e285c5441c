"""Delays and transactions: either client at the other broker, and what either broker leaves pending in its store."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.peers.clients import JavaClient, OurClient, Received, read
from tests.interop.peers.java import Driver
from tests.interop.peers.servers import GenuineServers, OurServers, Servers

from pyromq import Decision, Message, StoredMessage, TransactionProducer

pytestmark = pytest.mark.interop
short = pytest.mark.interop_short

CHECKS = {"transactionCheckInterval": 2_000, "transactionTimeOut": 1_000}  # ms
PENDING_SECONDS = 10  # of delay level 3


def line(topic: str, key: str, **more: Any) -> dict[str, Any]:
    return {"topic": topic, "body": base64.b64encode(key.encode()).decode(), "keys": key, **more}


def transaction(topic: str, key: str, local: str, check: str | None = None) -> dict[str, Any]:
    return line(topic, key, properties={"local": local} | ({"check": check} if check else {}))


def keys(messages: list[Received]) -> list[str]:
    return sorted(message.content.keys for message in messages)


# -- the Java client at our broker


@pytest.fixture(scope="module")
def checking(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    servers = OurServers(tmp_path_factory.mktemp("checking"), **CHECKS)
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.mark.parametrize("major", [pytest.param(4, marks=short), 5])
def test_transactions_of_the_java_client(checking: OurServers, home: Path, topic: str, major: int) -> None:
    driver = Driver(home, checking.namesrv, major=major)
    told = driver.run(
        *("transact", f"tx-{topic}", 30),
        lines=[
            transaction(topic, "committed", "commit"),
            transaction(topic, "rolled-back", "rollback"),
            transaction(topic, "committed-on-check", "unknown", "commit"),
            transaction(topic, "rolled-back-on-check", "unknown", "rollback"),
        ],
    )
    checked = sorted(each["checked"] for each in told if "checked" in each)
    assert checked == ["committed-on-check", "rolled-back-on-check"]
    assert {each["topic"] for each in told} == {topic}
    assert keys(read(OurClient(checking.namesrv), topic, "reads", 2)) == ["committed", "committed-on-check"]
    time.sleep(3)  # a round of checks
    assert OurClient(checking.namesrv).pull(topic, "reads") == []


def test_delays_of_the_java_client(checking: OurServers, home: Path, topic: str) -> None:
    java = JavaClient(Driver(home, checking.namesrv))
    java.driver.run("send", "sync", "delays", lines=[line(topic, str(level), delayLevel=level) for level in (2, 1)])
    messages = read(java, topic, "reads", 2)
    assert keys(messages) == ["1", "2"]
    delays = {message.content.keys: message for message in messages}
    assert abs(delays["2"].store_ms - delays["1"].store_ms - 4_000) < 500


def test_timers_of_the_java_client(checking: OurServers, home: Path, topic: str) -> None:
    """Of 5.x: the 4.x client has none."""
    java = JavaClient(Driver(home, checking.namesrv, major=5))
    now_ms = time.time_ns() // 1_000_000
    wishes = [
        line(topic, "deliver", setDeliverTimeMs=now_ms + 9_000),
        line(topic, "milliseconds", setDelayTimeMs=3_000),
        line(topic, "seconds", setDelayTimeSec=2),
        line(topic, "past", setDeliverTimeMs=now_ms - 1_000),
    ]
    java.driver.run("send", "sync", "timers", lines=wishes)
    java.driver.run("send", "recalled", "timers", lines=[line(topic, "recalled", setDelayTimeMs=8_000)])

    messages = read(java, topic, "reads", 4)

    arrived = {message.content.keys: message.store_ms for message in messages}
    assert set(arrived) == {"past", "seconds", "milliseconds", "deliver"}
    assert now_ms + 2_000 <= arrived["seconds"] < arrived["past"] + 3_500  # "past" was sent behind it
    assert now_ms + 3_000 <= arrived["milliseconds"] < arrived["past"] + 4_500
    assert now_ms + 9_000 <= arrived["deliver"] < now_ms + 10_000
    time.sleep(max(0.0, 2 + (now_ms + 9_000) / 1000 - time.time()))
    assert OurClient(checking.namesrv).pull(topic, "reads") == []


# -- our client at the genuine broker


@pytest.fixture(scope="module")
def genuine_checking(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenuineServers]:
    folder = tmp_path_factory.mktemp("genuine-checking")
    servers = GenuineServers(folder, folder / "store", **CHECKS)
    try:
        servers.start()
        yield servers
    finally:
        servers.kill()


def test_transactions_of_our_client(genuine_checking: GenuineServers, home: Path, topic: str) -> None:
    checked: list[str] = []

    def check(half: StoredMessage) -> Decision:
        checked.append(half.keys[0])
        return Decision.COMMIT if half.keys[0] == "committed-on-check" else Decision.ROLLBACK

    decisions = {
        "committed": Decision.COMMIT,
        "rolled-back": Decision.ROLLBACK,
        "committed-on-check": Decision.UNKNOWN,
        "rolled-back-on-check": Decision.UNKNOWN,
    }
    with TransactionProducer(f"tx-{topic}", genuine_checking.namesrv, check=check) as producer:
        for key, decision in decisions.items():
            result = producer.send_in_transaction(Message(topic, key.encode(), keys=key), lambda _, d=decision: d)
            assert result.confirmed == (decision is not Decision.UNKNOWN)
        java = JavaClient(Driver(home, genuine_checking.namesrv))
        assert keys(read(java, topic, "reads", 2)) == ["committed", "committed-on-check"]
        deadline = time.monotonic() + 20
        while "rolled-back-on-check" not in checked and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(3)  # a round of checks
    assert {"committed-on-check", "rolled-back-on-check"} == set(checked)
    assert OurClient(genuine_checking.namesrv).pull(topic, "reads") == []


def test_delays_of_our_client(genuine_checking: GenuineServers, topic: str) -> None:
    client = OurClient(genuine_checking.namesrv)
    client.send("sync", [Message(topic, b"x", keys=str(level), delay_level=level) for level in (2, 1)])
    messages = read(client, topic, "reads", 2)
    delays = {message.content.keys: message for message in messages}
    assert sorted(delays) == ["1", "2"]
    assert abs(delays["2"].store_ms - delays["1"].store_ms - 4_000) < 1_000


# -- one broker's pending messages, delivered by the other


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("first", [OurServers, GenuineServers])
def test_what_one_broker_left_pending_the_other_delivers(
    home: Path, tmp_path: Path, topic: str, first: type, end: str
) -> None:
    ours = OurServers(tmp_path / "data", **CHECKS)
    genuine = GenuineServers(tmp_path / "genuine", ours.store, **CHECKS)
    writer, opener = (ours, genuine) if first is OurServers else (genuine, ours)
    try:
        writer.start()
        leave_pending(writer, home, topic)
        getattr(writer, end)()
        opener.start()
        assert delivered_by(opener, home, topic) == ["delayed-0", "delayed-1", "delayed-2", "late-commit"]
    finally:
        ours.kill()
        genuine.kill()


def leave_pending(servers: Servers, home: Path, topic: str) -> None:
    """Send three messages that wait, and two half messages that nobody decides on while this broker runs."""
    client = OurClient(servers.namesrv)
    client.send("sync", [Message(topic, b"before", keys="before")])
    client.send("sync", [Message(topic, b"x", keys=f"delayed-{number}", delay_level=3) for number in range(3)])
    lines = [
        transaction(topic, "late-commit", "unknown", "commit"),
        transaction(topic, "late-rollback", "unknown", "rollback"),
    ]
    Driver(home, servers.namesrv).run("transact", "late", 0, lines=lines)


def delivered_by(servers: Servers, home: Path, topic: str) -> list[str]:
    """Return the keys of what becomes visible when a producer of the group is there to be asked."""
    mine = transaction(topic, "before", "rollback", "commit")
    checks = Driver(home, servers.namesrv).run("transact", "late", 10, lines=[mine, mine])
    assert {"late-commit", "late-rollback"} <= {each.get("checked") for each in checks}
    deadline = time.monotonic() + 3 * PENDING_SECONDS
    messages: list[Received] = []
    while time.monotonic() < deadline and len(messages) < 5:
        messages += OurClient(servers.namesrv).pull(topic, "reads")
    return [key for key in keys(messages) if key != "before"]
