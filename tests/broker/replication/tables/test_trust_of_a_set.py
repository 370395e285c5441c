"""Replicas of a set with TLS and permissions: connections, signed hellos, and accounts that are the same everywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.broker.replication.replica_sets import ReplicaSet, replica_set
from tests.certificates import Authority

from pyromq.broker.config import BrokerConfig
from pyromq.broker.replication.replica_server import ReplicaServer
from pyromq.clock import SystemClock
from pyromq.errors import UsageError
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.net.tls.tls_server import ServerTlsConfig
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import SaveAccount

ADMIN = ConnectionConfig(access_key="replica", secret_key="secret-of-replicas")
ACCOUNTS = """accounts:
- {accessKey: replica, secretKey: secret-of-replicas, admin: true}
- {accessKey: writers, secretKey: secret-of-writers, defaultTopicPerm: PUB}
"""


@pytest.fixture
async def replicas(tmp_path: Path) -> AsyncIterator[ReplicaSet]:
    async with replica_set(tmp_path) as found:
        yield found


async def start(replicas: ReplicaSet, config: BrokerConfig, number: int) -> ReplicaServer:
    server = await ReplicaServer(config, replicas.registry).__aenter__()
    replicas.servers[number] = server
    return server


def guarded(replicas: ReplicaSet, number: int, connections: ConnectionConfig = ADMIN) -> BrokerConfig:
    """Return the configuration of a replica with permissions on and the accounts above."""
    config = replicas.config(number, min_in_sync=1)
    folder = config.data / "config"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plain_acl.yml").write_text(ACCOUNTS)
    return replace(config, permissions=True, connections=connections)


async def test_replicas_connect_by_tls_where_the_brokers_port_has_it(replicas: ReplicaSet, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate, key = authority.issue("broker")
    secured = {
        "tls": ServerTlsConfig(certificate=certificate, key=key),
        "connections": ConnectionConfig(tls=TlsConfig(authority=authority.file)),
    }
    replicas.namesrv = "127.0.0.1:1"  # a name server without TLS could not be reached
    for number in (1, 2):
        server = await start(replicas, replace(replicas.config(number), **secured), number)  # type: ignore[arg-type]
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    connections = [each for each in server._links._connections.values()]
    assert connections and all(each.transport.get_extra_info("ssl_object") for each in connections)


async def test_a_replica_without_trust_in_the_certificate_does_not_join(
    replicas: ReplicaSet, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    certificate, key = authority.issue("broker")
    tls = ServerTlsConfig(certificate=certificate, key=key)
    replicas.namesrv = "127.0.0.1:1"
    for number, trusted in ((1, authority), (2, other)):
        config = replace(
            replicas.config(number, min_in_sync=1),
            tls=tls,
            connections=ConnectionConfig(tls=TlsConfig(authority=trusted.file)),
        )
        await start(replicas, config, number)
        await replicas.until(lambda: replicas.in_sync == [1])
    await replicas.until(lambda: "no connection with replica 1 at" in caplog.text)
    assert replicas.in_sync == [1]


async def test_replicas_sign_their_hellos_and_share_accounts(replicas: ReplicaSet) -> None:
    for number in (1, 2):
        await start(replicas, guarded(replicas, number), number)
    await replicas.until(lambda: replicas.in_sync == [1, 2])
    master = replicas.master_server
    assert master is not None
    follower = replicas.servers[3 - master.number]
    channel = await connect(master.broker.address, Dispatcher(), SystemClock(), connections=ADMIN)
    (await channel.call(SaveAccount("readers", "secret-of-readers", topic_perms="a=SUB"), timeout=30)).check()
    refused_by = await connect(follower.broker.address, Dispatcher(), SystemClock(), connections=ADMIN)
    refused = await refused_by.call(SaveAccount("others-1", "secret-of-others"), timeout=30)
    await channel.close()
    await refused_by.close()
    assert "readers" in follower.broker.permissions.in_force.accounts
    assert "readers" in (follower.config.data / "config" / "plain_acl.yml").read_text()
    assert master.broker.address in refused.remark


@pytest.mark.parametrize(
    ("connections", "fault"),
    [
        (ConnectionConfig(access_key="replica", secret_key="another-secret"), "signature of replica 2 by account"),
        (ConnectionConfig(access_key="strangers", secret_key="secret-of-replicas"), "account 'strangers' of replica 2"),
        (
            ConnectionConfig(access_key="writers", secret_key="secret-of-writers"),
            "'writers' of replica 2 is not an admin",
        ),
    ],
    ids=["wrong secret", "unknown account", "no administrator"],
)
async def test_a_replica_that_is_not_trusted_is_refused_by_name(
    replicas: ReplicaSet, caplog: pytest.LogCaptureFixture, connections: ConnectionConfig, fault: str
) -> None:
    await start(replicas, guarded(replicas, 1), 1)
    await replicas.until(lambda: replicas.master_server is not None)
    await start(replicas, guarded(replicas, 2, connections), 2)
    await replicas.until(lambda: fault in caplog.text)
    assert replicas.in_sync == [1]


async def test_an_unsigned_hello_is_refused(replicas: ReplicaSet, caplog: pytest.LogCaptureFixture) -> None:
    await start(replicas, guarded(replicas, 1), 1)
    await replicas.until(lambda: replicas.master_server is not None)
    await replicas.start(2, min_in_sync=1)
    await replicas.until(lambda: "the hello of replica 2 is not signed" in caplog.text)
    assert replicas.in_sync == [1]


async def test_with_permissions_on_a_replica_needs_an_account(replicas: ReplicaSet) -> None:
    with pytest.raises(UsageError, match="a replica of a set needs an account"):
        ReplicaServer(guarded(replicas, 1, ConnectionConfig()), replicas.registry)
