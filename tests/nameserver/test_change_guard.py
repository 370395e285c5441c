"""A name server with accounts: questions are open, changes want an administrator."""

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.errors import from_response
from pyromq.nameserver.name_server import CHANGES, NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting import headers
from pyromq.remoting.dispatch import Dispatcher

FILE = """
accounts:
- {accessKey: operators, secretKey: secret-of-operators, admin: true}
- {accessKey: shop-app, secretKey: secret-of-shop-app, defaultTopicPerm: PUB|SUB}
"""
OPERATORS = ConnectionConfig(access_key="operators", secret_key="secret-of-operators")
SHOP = ConnectionConfig(access_key="shop-app", secret_key="secret-of-shop-app")
STRANGER = ConnectionConfig()


@pytest.fixture
async def name_server(tmp_path):
    (tmp_path / "plain_acl.yml").write_text(FILE)
    config = NameServerConfig(port=0, permissions_path=tmp_path, kv_path=tmp_path / "kv.json")
    async with NameServer(config) as name_server:
        yield name_server


async def code_of(name_server, connections, header):
    channel = await connect(name_server.address, Dispatcher(), SystemClock(), connections=connections)
    try:
        return await channel.call(header, timeout=30)
    finally:
        await channel.close()


CHANGE = headers.PutKv("space", "key", "value")


@pytest.mark.parametrize(
    ("connections", "code", "reason"),
    [
        (STRANGER, 1, "names no account"),
        (SHOP, 1, "account shop-app is not an administrator, which request 100 (PUT_KV_CONFIG) needs"),
        (
            ConnectionConfig(access_key="operators", secret_key="another"),
            1,
            "signature does not match account operators",
        ),
        (OPERATORS, 0, ""),
    ],
    ids=["stranger", "account", "wrong secret", "administrator"],
)
async def test_changes_want_an_administrator(name_server, connections, code, reason):
    answer = await code_of(name_server, connections, CHANGE)
    assert answer.code == code
    assert reason in str(from_response(code, answer.remark)) if reason else answer.remark is None


@pytest.mark.parametrize(
    "header", [headers.BrokerClusterInfo(), headers.TopicNames(), headers.NamesrvSettings()], ids=repr
)
async def test_questions_are_open(name_server, header):
    assert (await code_of(name_server, STRANGER, header)).code == 0


async def test_a_broker_registers_with_an_account_and_not_without(name_server, tmp_path):
    for connections, registered in ((STRANGER, []), (OPERATORS, ["broker-a"])):
        config = BrokerConfig(tmp_path / "data", port=0, namesrv=(name_server.address,), connections=connections)
        async with Broker(config):
            assert list(name_server.routes.cluster_table().brokers) == registered


def test_every_request_that_changes_something_is_known():
    """Whatever a name server answers and is no question."""
    name_server = NameServer(NameServerConfig(port=0))
    questions = {105, 106, 101, 219, 206, 224, 304, 311, 312, 313, 319}
    assert name_server._server._dispatcher.codes - questions == {int(code) for code in CHANGES}
