"""Accounts and rights between the genuine clients, tools and servers, and ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.interop.peers.accounts import ACCOUNTS, connections
from tests.interop.peers.clients import WAYS, JavaClient, OurClient, contents
from tests.interop.peers.java import Driver, Tools
from tests.interop.peers.samples import ordered_samples
from tests.interop.peers.servers import GenuineServers, OurServers

from pyromq import Admin, ConnectionConfig
from pyromq.errors import AccessDenied
from pyromq.permissions.acl_files import parse_acl_file

pytestmark = pytest.mark.interop

SECONDS = 60


def options(account: str) -> list[str]:
    return [f"-DaccessKey={account}", f"-DsecretKey=secret-of-{account}"]


@pytest.fixture(scope="module")
def accounts(tmp_path_factory: pytest.TempPathFactory, jars: None) -> Iterator[tuple[OurServers, Path]]:
    """Our servers with permissions, and their file."""
    data = tmp_path_factory.mktemp("accounts")
    file = data / "config" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(ACCOUNTS)
    servers = OurServers(data, options=["--config", _config(data)])
    try:
        servers.start()
        yield servers, file
    finally:
        servers.stop()


def _config(folder: Path) -> Path:
    path = folder / "broker.conf"
    path.write_text("aclEnable=true\n")
    return path


@pytest.fixture
def java_as(accounts: tuple[OurServers, Path], home: Path) -> Callable[[str], JavaClient]:
    return lambda account: JavaClient(Driver(home, accounts[0].namesrv, options=options(account)))


def test_the_java_client_does_what_its_account_may(java_as: Callable[[str], JavaClient], topic: str) -> None:
    java_as("operators").driver.run("create-topic", topic, 3)
    messages = ordered_samples(topic)
    for way in WAYS:
        java_as("writer-1").send(way, messages)
    reader = java_as("reader-1")
    assert len(reader.pull(topic, f"{topic}-pull")) == len(WAYS) * len(messages)
    for push in ("push", "push-orderly"):
        lines = reader.driver.run(push, topic, f"{topic}-{push}", "*", len(WAYS) * len(messages), SECONDS)
        assert len(lines) >= len(WAYS) * len(messages)


@pytest.mark.parametrize(
    ("account", "verb", "reason"),
    [
        ("reader-1", "send", "account reader-1 needs PUB on topic"),
        ("writer-1", "create", "account writer-1 is not an administrator"),
        ("unknown-1", "send", "account unknown-1 is unknown to this server"),
    ],
)
def test_the_java_client_is_told_what_its_account_may_not(
    java_as: Callable[[str], JavaClient], topic: str, account: str, verb: str, reason: str
) -> None:
    java_as("operators").driver.run("create-topic", topic, 1)
    client = java_as(account)
    with pytest.raises(RuntimeError, match=reason):
        client.send("sync", ordered_samples(topic)) if verb == "send" else client.driver.run("create-topic", topic, 2)


def test_the_java_client_without_an_account_gets_nothing(accounts: tuple[OurServers, Path], home: Path) -> None:
    with pytest.raises(RuntimeError, match="the request names no account"):
        JavaClient(Driver(home, accounts[0].namesrv)).driver.run("create-topic", "nothing", 1)


def test_mqadmin_administers_accounts(accounts: tuple[OurServers, Path], tmp_path: Path) -> None:
    servers, file = accounts
    tools = Tools(tmp_path, servers.namesrv)
    (tmp_path / "conf" / "tools.yml").write_text("accessKey: operators\nsecretKey: secret-of-operators\n")
    broker = f"-b {servers.broker}"
    made, version, white, deleted = tools.run(
        [
            f"updateAclConfig {broker} -a another-1 -s secret-of-another-1 -t orders=PUB,bills=SUB -g shop=SUB -i DENY",
            f"clusterAclConfigVersion {broker}",
            f"updateGlobalWhiteAddr {broker} -g 10.9.9.*,10.8.8.8",
            f"deleteAclConfig {broker} -a another-1",
        ]
    )
    assert "create or update plain access config to" in made
    assert "get broker's plain access config version success" in version
    assert "success" in white
    assert "success" in deleted
    left = parse_acl_file(file, file.read_bytes())
    assert [account.access_key for account in left.accounts] == ["operators", "writer-1", "reader-1"]
    assert [pattern.text for pattern in left.white_list] == ["10.9.9.*", "10.8.8.8"]
    assert left.version.counter == 3


def test_our_client_does_at_the_genuine_broker_what_its_account_may(jars: None, tmp_path: Path, topic: str) -> None:
    servers = GenuineServers(tmp_path / "home", tmp_path / "store", aclEnable="true")
    file = tmp_path / "home" / "conf" / "plain_acl.yml"
    file.write_text(ACCOUNTS)
    try:
        servers.start()
        with Admin(servers.namesrv, connections=connections("operators")) as admin:
            admin.create_topic(topic, queues=2)
        messages = ordered_samples(topic)
        writer = OurClient(servers.namesrv, connections("writer-1"))
        for way in WAYS:
            writer.send(way, messages)
        reader = OurClient(servers.namesrv, connections("reader-1"))
        found = reader.pull(topic, f"{topic}-pull")
        assert contents(found) == contents(messages * len(WAYS))
        with Admin(servers.namesrv, connections=connections("reader-1")) as admin:
            first = found[0]
            assert [each.message_id for each in admin.query_by_key(topic, messages[0].keys[0])]
            assert admin.view(first.message_id, topic)
        with pytest.raises(AccessDenied, match="No default permission for topic"):
            reader.send("sync", messages)
        wrong = ConnectionConfig(access_key="writer-1", secret_key="another-secret")
        with pytest.raises(AccessDenied, match="Check signature failed"):
            OurClient(servers.namesrv, wrong).send("sync", messages)
        with pytest.raises(AccessDenied, match="No accessKey is configured"):
            OurClient(servers.namesrv).send("sync", messages)
    finally:
        servers.kill()
