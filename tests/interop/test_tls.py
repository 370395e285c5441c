"""TLS both ways: the genuine client at our ports, our clients at the genuine servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.certificates import Authority
from tests.interop.peers.clients import JavaClient, OurClient, contents, read
from tests.interop.peers.java import Driver
from tests.interop.peers.samples import samples
from tests.interop.peers.servers import GenuineServers, OurServers

from pyromq import Admin, ConnectionConfig, NoNameServer, TlsConfig

pytestmark = pytest.mark.interop

# Java's clients check nothing by default: tls.test.mode.enable is true.
UNCHECKED = ("-Dtls.enable=true",)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def checking(authority: Authority) -> tuple[str, ...]:
    """Java's options to check servers, and to show a certificate to them."""
    certificate, key = authority.issue("java")
    return (
        *("-Dtls.enable=true", "-Dtls.test.mode.enable=false"),
        *("-Dtls.client.authServer=true", f"-Dtls.client.trustCertPath={authority.file}"),
        *(f"-Dtls.client.certPath={certificate}", f"-Dtls.client.keyPath={key}"),
    )


def ours(folder: Path, authority: Authority, *options: str | Path) -> OurServers:
    certificate, key = authority.issue("ours")
    return OurServers(folder, options=("--tls-cert", certificate, "--tls-key", key, *options))


@pytest.fixture(scope="module")
def permissive(jars: None, tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[OurServers]:
    servers = ours(tmp_path_factory.mktemp("permissive"), authority)
    servers.start()
    yield servers
    servers.stop()


@pytest.fixture(scope="module")
def enforcing(jars: None, tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[OurServers]:
    """Takes nobody without a certificate."""
    wanted = ("--tls-client-certs", "require", "--tls-client-ca", authority.file)
    servers = ours(tmp_path_factory.mktemp("enforcing"), authority, "--tls-mode", "enforcing", *wanted)
    servers.start()
    yield servers
    servers.stop()


@pytest.mark.interop_short
def test_java_at_our_permissive_port_with_tls_and_without(permissive: OurServers, home: Path, topic: str) -> None:
    encrypted = JavaClient(Driver(home, permissive.namesrv, options=UNCHECKED))
    plain = JavaClient(Driver(home, permissive.namesrv))

    encrypted.send("async", samples(topic))

    assert contents(read(plain, topic, f"reads-{topic}", len(samples(topic)))) == contents(samples(topic))


@pytest.mark.parametrize("major", [4, 5])
def test_java_checks_us_and_shows_its_certificate(
    enforcing: OurServers, home: Path, topic: str, checking: tuple[str, ...], major: int
) -> None:
    java = JavaClient(Driver(home, enforcing.namesrv, major=major, options=checking))

    java.send("sync", samples(topic))

    assert contents(read(java, topic, f"reads-{topic}", len(samples(topic)))) == contents(samples(topic))


def test_java_that_trusts_another_authority_does_not_come_in(
    enforcing: OurServers, home: Path, checking: tuple[str, ...], tmp_path: Path, topic: str
) -> None:
    other = f"-Dtls.client.trustCertPath={Authority(tmp_path).file}"
    options = [other if option.startswith("-Dtls.client.trustCertPath") else option for option in checking]
    with pytest.raises(RuntimeError, match="unable to find valid certification path"):
        Driver(home, enforcing.namesrv, options=options).run("route", topic)


def test_java_without_tls_is_told_at_our_enforcing_port(enforcing: OurServers, home: Path, topic: str) -> None:
    with pytest.raises(RuntimeError, match="this port accepts TLS connections only"):
        Driver(home, enforcing.namesrv).run("route", topic)


@pytest.fixture(scope="module")
def genuine_certified(
    home: Path, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[GenuineServers]:
    certificate, key = authority.issue("genuine")
    options = (
        *("-Dtls.server.mode=enforcing", "-Dtls.test.mode.enable=false", "-Dtls.enable=true"),
        *(f"-Dtls.server.certPath={certificate}", f"-Dtls.server.keyPath={key}"),
    )
    folder = tmp_path_factory.mktemp("genuine-tls")
    servers = GenuineServers(folder, folder / "store", options=options)
    try:
        servers.start()
        yield servers
    finally:
        servers.kill()


def test_our_clients_at_genuine_servers_with_a_certificate(
    genuine_certified: GenuineServers, authority: Authority, topic: str
) -> None:
    python = OurClient(genuine_certified.namesrv, ConnectionConfig(tls=TlsConfig(authority=authority.file)))

    python.send("sync", samples(topic))

    assert contents(read(python, topic, f"reads-{topic}", len(samples(topic)))) == contents(samples(topic))
    with pytest.raises(NoNameServer, match="not signed"):
        OurClient(genuine_certified.namesrv, ConnectionConfig(tls=TlsConfig())).send("sync", samples(topic)[:1])
    found = Admin.diagnose(genuine_certified.namesrv, connections=ConnectionConfig())
    assert "takes TLS connections only" in found[0].text


def test_our_clients_at_genuine_servers_with_their_test_certificate(genuine: GenuineServers, topic: str) -> None:
    """Which are permissive by default."""
    python = OurClient(genuine.namesrv, ConnectionConfig(tls=TlsConfig(verify=False)))

    python.send("async", samples(topic))

    assert contents(read(OurClient(genuine.namesrv), topic, f"reads-{topic}", len(samples(topic)))) == contents(
        samples(topic)
    )
