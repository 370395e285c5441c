"""Apache's Go client at our servers: with accounts, and over TLS."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.interop.peers.golang import RELEASE, WITH_TLS, GoClient, GoMissing, build
from tests.interop.peers.servers import OurServers

from pyromq import Admin, ConnectionConfig, TlsConfig

pytestmark = pytest.mark.interop

COUNT = 20
BODIES = sorted(f"body-{number}" for number in range(COUNT))
FILE = """
accounts:
- {accessKey: operators, secretKey: secret-of-operators, admin: true}
- {accessKey: writer-1, secretKey: secret-of-writer-1, defaultTopicPerm: PUB}
- {accessKey: reader-1, secretKey: secret-of-reader-1, defaultTopicPerm: SUB, defaultGroupPerm: SUB}
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def program(version: str) -> Path:
        try:
            return build(tmp_path_factory.mktemp("go"), version)
        except GoMissing as missing:
            pytest.skip(str(missing))

    return program


@pytest.fixture(scope="module")
def release(built: Callable[[str], Path]) -> Path:
    return built(RELEASE)


@pytest.fixture(scope="module")
def guarded(release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    """Our servers with permissions."""
    data = tmp_path_factory.mktemp("go-accounts")
    file = data / "config" / "plain_acl.yml"
    file.parent.mkdir()
    file.write_text(FILE)
    settings = data / "broker.conf"
    settings.write_text("aclEnable=true\n")
    servers = OurServers(data, options=["--config", settings])
    servers.start()
    yield servers
    servers.stop()


@pytest.fixture
def orders(guarded: OurServers, topic: str) -> str:
    """A topic there."""
    operator = ConnectionConfig(access_key="operators", secret_key="secret-of-operators")
    with Admin(guarded.namesrv, connections=operator) as admin:
        admin.create_topic(topic, queues=2)
    return topic


def go_as(servers: OurServers, program: Path, account: str, secret: str | None = None) -> GoClient:
    return GoClient(program, servers.namesrv, account, secret or f"secret-of-{account}")


def test_the_go_client_does_what_its_account_may(guarded: OurServers, release: Path, orders: str) -> None:
    assert go_as(guarded, release, "writer-1").run("send", orders, COUNT) == ["sent"] * COUNT
    assert sorted(go_as(guarded, release, "reader-1").run("consume", orders, COUNT)) == BODIES


@pytest.mark.parametrize(
    ("account", "secret", "reason"),
    [
        ("writer-1", "another-secret", "the signature does not match account writer-1"),
        ("unknown-1", "any-secret-at-all", "account unknown-1 is unknown"),
        ("reader-1", None, "account reader-1 needs PUB on topic"),
    ],
)
def test_the_go_client_is_refused_what_it_may_not(
    guarded: OurServers, release: Path, orders: str, account: str, secret: str | None, reason: str
) -> None:
    with pytest.raises(RuntimeError, match=reason):
        go_as(guarded, release, account, secret).run("send", orders, 1)


def test_a_go_client_that_speaks_tls_sends_and_consumes(
    built: Callable[[str], Path], tmp_path: Path, topic: str
) -> None:
    program, authority = built(WITH_TLS), Authority(tmp_path)
    certificate, key = authority.issue("ours")
    options = ("--tls-cert", certificate, "--tls-key", key, "--tls-mode", "enforcing")
    servers = OurServers(tmp_path / "data", options=options)
    servers.start()
    try:
        with Admin(servers.namesrv, connections=ConnectionConfig(tls=TlsConfig(authority=authority.file))) as admin:
            admin.create_topic(topic, queues=2)
        go = GoClient(program, servers.namesrv)
        assert go.run("send", topic, COUNT) == ["sent"] * COUNT
        assert sorted(go.run("consume", topic, COUNT)) == BODIES
    finally:
        servers.stop()
