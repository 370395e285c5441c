"""The VIP channel: a port two below the broker's that answers as the broker's own does."""

import pytest
from tests.broker.headers import pull_header, send_header
from tests.certificates import Authority
from tests.processes import free_port

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.clock import SystemClock
from pyromq.errors import MQError, ResponseCode, UsageError
from pyromq.net.channel import connect
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.tls.tls_config import TlsConfig
from pyromq.net.tls.tls_server import ServerTlsConfig, TlsMode
from pyromq.record import decode_all
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.signer import AccessKeySigner

PULL = pull_header()
ACCOUNTS = "accounts:\n- accessKey: writers\n  secretKey: secret-of-writers\n  defaultTopicPerm: PUB|SUB\n"


@pytest.fixture
async def dial():
    """Connect to the port two below a broker's."""
    channels = []

    async def dial(broker, connections=PLAIN):
        channel = await connect(f"127.0.0.1:{broker.port - 2}", Dispatcher(), SystemClock(), connections=connections)
        channels.append(channel)
        return channel

    yield dial
    for channel in channels:
        await channel.close()


async def test_it_takes_messages_and_gives_them(config, clock, dial):
    config.vip_channel = True
    async with Broker(config, clock) as broker:
        channel = await dial(broker)

        sent = await channel.call(send_header(), b"hello", timeout=30)

        assert sent.code == ResponseCode.SUCCESS
        pulled = await channel.call(PULL, timeout=30)
        assert [message.body for message in decode_all(pulled.body)] == [b"hello"]
        assert decode_all(pulled.body)[0].store_host == broker.address


async def test_it_is_closed_unless_asked_for(config, clock, dial):
    config.port = free_port(-2)
    async with Broker(config, clock) as broker:
        with pytest.raises(MQError, match="refuses connections"):
            await dial(broker)


async def test_it_speaks_tls_as_the_brokers_port_does(config, clock, dial, tmp_path):
    authority = Authority(tmp_path)
    certificate, key = authority.issue("server")
    config.vip_channel = True
    config.tls = ServerTlsConfig(mode=TlsMode.ENFORCING, certificate=certificate, key=key)
    async with Broker(config, clock) as broker:
        encrypted = await dial(broker, ConnectionConfig(tls=TlsConfig(authority=authority.file)))
        assert (await encrypted.call(send_header(), b"hello", timeout=30)).code == ResponseCode.SUCCESS

        plain = await dial(broker)

        assert (await plain.call(send_header(), b"hello", timeout=30)).code == ResponseCode.NO_PERMISSION


async def test_it_asks_for_the_same_accounts(config, clock, dial):
    config.vip_channel, config.permissions = True, True
    config.permissions_folder.mkdir(parents=True, exist_ok=True)
    (config.permissions_folder / "plain_acl.yml").write_text(ACCOUNTS)
    async with Broker(config, clock) as broker:
        known = await dial(broker, ConnectionConfig(signer=AccessKeySigner("writers", "secret-of-writers")))
        stranger = await dial(broker)

        assert (await known.call(send_header(), b"hello", timeout=30)).code == ResponseCode.SUCCESS
        assert "names no account" in (await stranger.call(send_header(), b"hello", timeout=30)).remark


def test_it_needs_a_port_two_below(tmp_path):
    with pytest.raises(UsageError, match=r"listenPort \(port\) is 2; with vipChannelEnable \(vip_channel\)"):
        BrokerConfig(tmp_path, port=2, vip_channel=True)
