"""The broker's settings over the wire: shown, changed while running, kept over a restart."""

import pytest

from pyromq.broker.admin.settings_admin import merge_properties
from pyromq.broker.broker import Broker
from pyromq.remoting.headers import BrokerSettings, BrokerSettingsResponse, SaveBrokerSettings
from pyromq.remoting.properties import parse_properties


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


async def test_changes_are_kept_in_the_file_the_broker_was_started_with(config, clock, caller_to, tmp_path):
    config.config_file = tmp_path / "broker.conf"
    config.config_file.write_text("# mine\nbrokerPermission=6\n")
    async with Broker(config, clock) as broker:
        await save(await caller_to(broker), "brokerPermission=4\nrejectTransactionMessage=true\n")
    assert config.config_file.read_text() == "# mine\nbrokerPermission=4\nrejectTransactionMessage=true\n"


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


async def test_a_new_permission_is_a_new_version_of_all_topics(caller, broker):
    before = broker.topics.version.counter
    await save(caller, "longPollingEnable=false")
    assert broker.topics.version.counter == before
    await save(caller, "brokerPermission=4")
    assert broker.topics.version.counter == before + 1


def test_merging_keeps_comments_and_order():
    text = "# a\nfirst=1\n\nsecond=2\nfirst=3\n"
    assert merge_properties(text, {"first": "9", "third": "3"}) == "# a\nfirst=9\n\nsecond=2\nthird=3\n"
