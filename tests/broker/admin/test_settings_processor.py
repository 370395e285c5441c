"""The broker's settings over the wire: shown, changed while running, kept over a restart."""

import errno
import os

import pytest
from tests.broker.headers import send_header

from pyromq.broker.broker import Broker
from pyromq.broker.config import SETTINGS
from pyromq.remoting.headers import BrokerSettings, BrokerSettingsResponse, SaveBrokerSettings
from pyromq.remoting.properties import parse_properties
from pyromq.server_settings import Change
from pyromq.store.disk import LocalDisk
from pyromq.store.retention import DiskUse


class FullDisk(LocalDisk):
    """A disk that has no room for settings while it is `full`."""

    full = False

    def replace(self, source, target):
        if self.full and target.suffix == ".properties":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        super().replace(source, target)


async def shown(caller):
    return parse_properties((await caller.ask(BrokerSettings())).body.decode())


async def save(caller, text, code=0):
    return await caller.ask(SaveBrokerSettings(), text.encode(), code=code)


async def test_settings_are_shown_under_the_names_of_java(caller, broker):
    settings = await shown(caller)
    assert settings["brokerName"] == "broker-a"
    assert settings["listenPort"] == str(broker.port)
    assert settings["autoCreateTopicEnable"] == "true"
    assert settings["brokerRole"] == "ASYNC_MASTER"


async def test_all_settings_that_javas_tools_export_are_there(caller):
    settings = await shown(caller)
    wanted = "brokerClusterName brokerId brokerName brokerRole fileReservedTime filterServerNums flushDiskType"
    wanted += " maxMessageSize messageDelayLevel msgTraceTopicName slaveReadEnable traceOn traceTopicEnable useTLS"
    wanted += " autoCreateTopicEnable autoCreateSubscriptionGroup"
    assert set(wanted.split()) <= settings.keys()
    assert (settings["useTLS"], settings["slaveReadEnable"]) == ("false", "false")


async def test_a_change_takes_effect_at_once_and_makes_a_new_version(caller, broker):
    before = (await caller.ask(BrokerSettings())).header(BrokerSettingsResponse).version
    await save(caller, "autoCreateTopicEnable=false\nshortPollingTimeMills=5\n")
    assert broker.config.auto_create_topic is False
    assert broker.config.short_polling_ms == 5
    after = (await caller.ask(BrokerSettings())).header(BrokerSettingsResponse).version
    assert after != before
    assert after.startswith('{"counter":1,"timestamp":')


async def test_changes_outlast_a_restart(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        await save(await caller_to(broker), "brokerPermission=4\nflushDiskType=SYNC_FLUSH\n")
        assert broker.store.config.flush.name == "ASYNC"
    async with Broker(config, clock) as broker:
        settings = await shown(await caller_to(broker))
    assert (settings["brokerPermission"], settings["flushDiskType"]) == ("4", "SYNC_FLUSH")
    assert config.permission == 6, "the caller's own settings are left alone"


async def test_settings_of_retention_change_at_once(caller, broker, clock):
    broker.store.retention.measure = lambda path: DiskUse(path, 50 << 20, 50 << 20)
    await caller.create_topic("orders")
    await save(caller, "diskSpaceWarningLevelRatio=40\nfileReservedTime=9")
    assert (await shown(caller))["fileReservedTime"] == "9"
    await clock.advance(2)
    refused = await caller.ask(send_header(topic="orders"), b"x", code=14)
    assert "above 40 % (diskSpaceWarningLevelRatio) messages are refused" in refused.remark
    await save(caller, "diskSpaceWarningLevelRatio=60")
    await clock.advance(2)
    await caller.send("orders")


async def test_changes_are_kept_in_a_file_of_the_brokers_own(config, clock, caller_to):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        await save(caller, "rejectTransactionMessage=true\nregionId=caf\\u00e9 \\\\ x\n")
        await save(caller, "brokerPermission=4\n")
    text = (config.data / "config" / "broker.properties").read_text()
    heading, rest = text.split("\n", 1)
    assert heading.startswith("# Changed while the broker ran")
    assert rest == "brokerPermission=4\nregionId=caf\\u00e9 \\\\ x\nrejectTransactionMessage=true\n"


HOSTILE = (
    r"regionId=x\nbrokerName=forged\nbindAddress=0.0.0.0",
    r"regionId=x\u000abrokerName=forged",
    r"regionId=x\rbrokerName=forged",
    r"region\nId=x",
    r"regionId=\u0001",
    "regionId=" + "x" * 2000,
    "regionId=" + "x" * 300,
    r"longPollingEnable=true\nbrokerName\=forged",
    "# " + "x" * 70_000,
)


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
async def test_no_value_becomes_a_line_of_a_file(config, clock, caller_to, text):
    async with Broker(config, clock) as broker:
        caller = await caller_to(broker)
        response = await save(caller, text, code=1)
        assert response.remark.isprintable()
        assert len(response.remark) < 400
        assert not (config.data / "config" / "broker.properties").exists()


async def test_what_is_fixed_is_so_too_where_somebody_has_put_it_into_the_brokers_file(config, clock, caller_to):
    file = config.data / "config" / "broker.properties"
    file.parent.mkdir(parents=True)
    file.write_text("brokerName=forged\nbindAddress=0.0.0.0\nmaxConnections=1\nbrokerPermission=4\n")
    async with Broker(config, clock) as broker:
        settings = await shown(await caller_to(broker))
    assert (settings["brokerName"], settings["bindAddress"], settings["brokerPermission"]) == (
        "broker-a", "127.0.0.1", "4"
    )  # fmt: skip
    assert settings["maxConnections"] != "1"


@pytest.mark.parametrize("name", sorted(name for name, each in SETTINGS.items() if each.change is Change.NEVER))
async def test_addresses_folders_identity_and_limits_are_fixed(caller, name):
    response = await save(caller, f"{name}=1", code=16)
    assert response.remark == f"setting {name} cannot be changed while the broker runs"


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("rocketmqHome=/x", 16, "Can not update config in black list."),
        ("brokerName=other", 16, "setting brokerName cannot be changed while the broker runs"),
        ("noSuchSetting=1", 1, "setting 'noSuchSetting' is unknown to this broker"),
        ("brokerPermission=99", 1, "broker setting brokerPermission (permission) is 99; it must be 0 to 7"),
        ("defaultTopicQueueNums=few", 1, "property defaultTopicQueueNums is 'few': "),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_changes(caller, broker, text, code, remark):
    response = await save(caller, f"longPollingEnable=false\n{text}\n", code=code)
    assert response.remark.startswith(remark)
    assert broker.config.long_polling is True


async def test_what_the_disk_refuses_is_not_kept_and_nothing_else_in_the_file_is_touched(config, clock, caller_to):
    disk = FullDisk()
    file = config.data / "config" / "broker.properties"
    async with Broker(config, clock, disk=disk) as broker:
        caller = await caller_to(broker)
        disk.full = True
        assert "No space left" in (await save(caller, "transactionCheckMax=7", code=14)).remark
        disk.full = False
        await save(caller, "fileReservedTime=9")
        assert parse_properties(file.read_text()) == {"fileReservedTime": "9"}
        file.write_text("fileReservedTime=11\n")
        await save(caller, "transactionCheckMax=8")
        assert parse_properties(file.read_text()) == {"fileReservedTime": "11", "transactionCheckMax": "8"}


async def test_a_new_permission_is_a_new_version_of_all_topics(caller, broker):
    before = broker.topics.version.counter
    await save(caller, "longPollingEnable=false")
    assert broker.topics.version.counter == before
    await save(caller, "brokerPermission=4")
    assert broker.topics.version.counter == before + 1
