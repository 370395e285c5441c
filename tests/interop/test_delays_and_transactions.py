"""Delays and transactions: the Java client at our broker, and what either broker leaves pending in its store."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pyromq import Message

from .clients import JavaClient, OurClient, Received, read
from .java import Driver
from .servers import GenuineServers, OurServers, Servers

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
