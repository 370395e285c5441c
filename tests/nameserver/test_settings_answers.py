"""What operators are answered about the name server's own settings."""

import pytest

from pyromq.clock import SystemClock
from pyromq.nameserver.name_server import NameServer
from pyromq.net.channel import connect
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    NamesrvSettings,
    SaveNamesrvSettings,
)


async def test_settings_are_listed_in_javas_names(name_server, client):
    response = await client.ask(NamesrvSettings())
    lines = response.body.decode().splitlines()
    assert "orderMessageEnable=false" in lines
    assert "scanNotActiveBrokerInterval=5000" in lines


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        (b"kvConfigPath=/x\norderMessageEnable=true", 16, "Can not update config in black list."),
        (b"configStorePath=/x", 16, "Can not update config in black list."),
        (b"configBlackList=", 16, "Can not update config in black list."),
        (b"listenPort=1\norderMessageEnable=true", 1, "listenPort: cannot change while the name server runs"),
        (b"orderMessageEnable=true\\nlistenPort\\=1", 1, r"orderMessageEnable is 'true\nlistenPort=1': write true"),
        (b"orderMessageEnable=1", 1, "orderMessageEnable is '1': write true or false"),
        (b"x" * 70_000, 1, "the settings have 70000 bytes"),
        (b"orderMessageEnable=\xff", 1, "the settings are not UTF-8"),
    ],
)
async def test_settings_that_may_not_change_change_nothing(name_server, client, body, code, text):
    response = await client.ask(SaveNamesrvSettings(), body, code=code)
    assert text in response.remark
    assert not name_server.config.order_message_enabled


async def test_a_changed_setting_outlasts_a_restart(config):
    async with NameServer(config) as server:
        channel = await connect(server.address, Dispatcher(), SystemClock())
        (await channel.call(SaveNamesrvSettings(), b"orderMessageEnable=true\n", timeout=30)).check()
        await channel.close()
    async with NameServer(config) as again:
        assert again.config.order_message_enabled
    assert not config.order_message_enabled, "the caller's own settings are left alone"


async def test_unknown_settings_are_ignored(client):
    await client.ask(SaveNamesrvSettings(), b"# nothing\nclusterTest=true\n")
