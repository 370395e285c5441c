"""A broker with permissions and three accounts, and connections that sign."""

import pytest
from tests.broker.conftest import Caller, Notices

from pyromq.broker.broker import Broker
from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.dispatch import Dispatcher

from .asking import secret_of, signer

ACCOUNTS = f"""
accounts:
- {{accessKey: admin-1, secretKey: {secret_of("admin-1")}, admin: true}}
- {{accessKey: writer-1, secretKey: {secret_of("writer-1")}, topicPerms: [orders=PUB]}}
- {{accessKey: reader-1, secretKey: {secret_of("reader-1")}, topicPerms: [orders=SUB], groupPerms: [c=SUB]}}
"""


@pytest.fixture
def acl_file(config):
    path = config.permissions_folder / "plain_acl.yml"
    path.parent.mkdir(parents=True)
    path.write_text(ACCOUNTS)
    return path


@pytest.fixture
async def guarded(config, clock, acl_file):
    config.permissions = True
    async with Broker(config, clock) as broker:
        yield broker


@pytest.fixture
async def account_at():
    """Connect to a broker as an account; without a name nobody signs."""
    channels = []

    async def connected(broker, name=None, secret=None):
        connections = ConnectionConfig(signer=signer(name, secret) if name is not None else None)
        notices = Notices()
        channel = await connect(broker.address, Dispatcher(notices), SystemClock(), connections=connections)
        channels.append(channel)
        return Caller(channel, notices)

    yield connected
    for channel in channels:
        await channel.close()


@pytest.fixture
def account(guarded, account_at):
    """Connect to the broker as an account: `await account("writer-1")`."""

    async def connected(name=None, secret=None):
        return await account_at(guarded, name, secret)

    return connected
