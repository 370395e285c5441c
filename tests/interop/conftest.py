"""Fixtures: the genuine jars, servers of both kinds shared by the session, and a topic of its own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.peers.clients import JavaClient, OurClient
from tests.interop.peers.java import Driver, JavaMissing, build
from tests.interop.peers.servers import GenuineServers, OurServers


@pytest.fixture(scope="session")
def jars() -> None:
    try:
        build()
    except JavaMissing as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def home(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that Java programs take for the user's."""
    return tmp_path_factory.mktemp("java-home")


@pytest.fixture(scope="session")
def genuine(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GenuineServers]:
    folder = tmp_path_factory.mktemp("genuine")
    servers = GenuineServers(folder, folder / "store")
    try:
        servers.start()
        yield servers
    finally:
        servers.kill()  # an orderly end takes the genuine broker seconds, and nobody opens this store again


@pytest.fixture(scope="session")
def ours(jars: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurServers]:
    servers = OurServers(tmp_path_factory.mktemp("ours"))
    try:
        servers.start()
        yield servers
    finally:
        servers.stop()


@pytest.fixture
def topic() -> str:
    return f"interop-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def java(request: pytest.FixtureRequest, home: Path) -> JavaClient:
    """The Java client 4.9.8 at our servers."""
    return JavaClient(Driver(home, request.getfixturevalue("ours").namesrv))


@pytest.fixture
def python(genuine: GenuineServers) -> OurClient:
    """Our client at the genuine servers."""
    return OurClient(genuine.namesrv)
