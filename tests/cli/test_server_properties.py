from dataclasses import dataclass
from pathlib import Path

import pytest

from pyromq.cli.server_properties import (
    broker_settings,
    name_server_settings,
    read_properties,
    shared_name_server_settings,
)
from pyromq.errors import UsageError
from pyromq.server_settings import read_settings, setting, settings_by_name, write_settings
from pyromq.store.store_config import StoreConfig

SOURCE = Path("broker.conf")
DATA = Path("data")


def test_file_of_the_java_broker_is_a_good_start(tmp_path, caplog):
    path = tmp_path / "broker.conf"
    path.write_text(
        "# comment\nbrokerName = broker-x\ndeleteWhen=04\nfileReservedTime=48\nsendMessageThreadPoolNums=4\n"
        "listenPort=10999\n"
    )

    settings = broker_settings(read_properties(path), data=DATA, source=path)

    store = StoreConfig(DATA, expire_hours=(4,), reserved_hours=48)
    assert settings == {"name": "broker-x", "port": 10999, "store": store}
    assert caplog.messages == [f"{path}: settings without effect here: sendMessageThreadPoolNums"]


def test_mistyped_setting_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"broker\.conf: setting 'brokerNam' is unknown, did you mean 'brokerName'\?"):
        broker_settings({"brokerNam": "x"}, data=DATA, source=SOURCE)


def test_all_unknown_settings_are_named_at_once():
    with pytest.raises(UsageError) as refused:
        broker_settings({"brokerNam": "x", "brokerName": "x", "qqq": "1"}, data=DATA, source=SOURCE)
    assert str(refused.value) == (
        "broker.conf: setting 'brokerNam' is unknown, did you mean 'brokerName'?; setting 'qqq' is unknown"
    )


def test_names_of_old_versions_which_rocketmq_ignores_are_ignored(caplog):
    old = {"storePathConsumeQueue": "/q", "mapedFileSizeCommitLog": "1024", "abortFile": "/a"}
    assert broker_settings(old, data=DATA, source=SOURCE) == {}
    assert caplog.messages == [
        "broker.conf: settings without effect here: abortFile, mapedFileSizeCommitLog, storePathConsumeQueue"
    ]


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1,b:2", " http://a:1 ; b:2/ ", "a:1;;b:2;"])
def test_name_servers_are_written_as_for_clients(text):
    assert broker_settings({"namesrvAddr": text}, data=DATA, source=SOURCE) == {"namesrv": ("a:1", "b:2")}


@pytest.mark.parametrize(
    "setting",
    [
        *[("enableDLegerCommitLog", "true"), ("enableLmq", "true")],
        *[("enableMultiDispatch", "true"), ("enableConsumeQueueExt", "true"), ("readOnlyCommitLogStorePaths", "/old")],
    ],
)
def test_what_a_user_would_rely_on_is_refused(setting):
    with pytest.raises(UsageError, match=f"{setting[0]}={setting[1]} is not possible"):
        broker_settings(dict([setting]), data=DATA, source=SOURCE)


@pytest.mark.parametrize("setting", [("enableLmq", "false"), ("readOnlyCommitLogStorePaths", "")])
def test_what_asks_for_nothing_special_is_taken(setting):
    assert broker_settings(dict([setting]), data=DATA, source=SOURCE) == {}


def test_a_name_server_without_tls_says_so():
    with pytest.raises(UsageError, match=r"broker\.conf: useTLS=true is not possible"):
        name_server_settings({"useTLS": "true"}, source=SOURCE)


def test_value_that_does_not_fit_names_file_and_setting():
    with pytest.raises(UsageError, match=r"broker\.conf: property listenPort is 'x'"):
        broker_settings({"listenPort": "x"}, data=DATA, source=SOURCE)
    with pytest.raises(
        UsageError, match=r"broker\.conf: property namesrvAddr is 'a:1;b': .* 'b' is not host:port.*; write"
    ):
        broker_settings({"namesrvAddr": "a:1;b"}, data=DATA, source=SOURCE)
    with pytest.raises(UsageError, match=r"broker\.conf: property orderMessageEnable is 'yes': write true or false"):
        name_server_settings({"orderMessageEnable": "yes"}, source=SOURCE)


def test_name_server_has_settings_of_its_own():
    properties = {"listenPort": "9877", "kvConfigPath": "/kv.json", "orderMessageEnable": "true"}

    assert name_server_settings(properties, source=SOURCE) == {
        "port": 9877,
        "kv_path": Path("/kv.json"),
        "order_message_enabled": True,
    }


def test_beside_a_broker_the_listen_port_is_the_brokers():
    properties = {"listenPort": "10999", "orderMessageEnable": "true"}

    assert shared_name_server_settings(properties, source=SOURCE) == {"order_message_enabled": True}


def test_file_that_cannot_be_read_is_named(tmp_path):
    path = tmp_path / "latin"
    path.write_bytes(b"brokerName=\xff\n")

    with pytest.raises(UsageError, match=r"settings file .*latin is not UTF-8 at byte 11; save it as UTF-8"):
        read_properties(path)


@dataclass(frozen=True)
class LimitsConfig:
    members: int = setting(10, "maxMembers", old_names=("memberLimit", "mostMembers"))


LIMITS = settings_by_name(LimitsConfig)


def test_an_old_name_of_a_setting_works_with_a_warning(caplog):
    assert read_settings(LIMITS, {"mostMembers": "7"}) == {"": {"members": 7}}
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "mostMembers" in record.getMessage()
    assert "maxMembers" in record.getMessage()


def test_the_name_of_a_setting_works_without_a_warning(caplog):
    assert read_settings(LIMITS, {"maxMembers": "7"}) == {"": {"members": 7}}
    assert not caplog.records


def test_settings_are_written_by_their_new_names():
    assert write_settings(LIMITS, {"": LimitsConfig(7)}) == {"maxMembers": "7"}
