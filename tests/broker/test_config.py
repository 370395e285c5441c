"""Settings of a broker and their names in RocketMQ's properties files."""

from pathlib import Path

import pytest

from pyromq.broker.config import SETTINGS, BrokerConfig, ConfiguredRole, from_java, java_properties, with_properties
from pyromq.errors import UsageError
from pyromq.store.store_config import FlushMode, StoreConfig

DATA = Path("data")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("port", 65536),
        ("permission", 8),
        ("default_topic_queues", 0),
        ("name", "no blanks"),
        ("cluster", "x" * 116),
        ("namesrv", ("localhost",)),
        ("namesrv", ("http://a:1",)),
        ("namesrv", ("http://a/nsaddr", "http://b/nsaddr")),
        ("max_message_bytes", 1 << 30),
        ("advertised_host", "0.0.0.0"),
        ("advertised_host", "localhost"),
        ("register_interval_ms", 120_000),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(UsageError, match=rf"broker setting \w* ?\(?{field}"):
        BrokerConfig(DATA, **{field: value})


def test_settings_survive_the_way_through_properties():
    store = StoreConfig(DATA, flush=FlushMode.SYNC, consume_queue_entries=30, delay_levels_ms=(1_000, 90_000))
    config = BrokerConfig(DATA, name="b", namesrv=("a:1", "b:2"), auto_create_topic=False, store=store)
    properties = java_properties(config)
    assert properties["mappedFileSizeConsumeQueue"] == "600"
    assert properties["messageDelayLevel"] == "1s 90s"
    assert properties["flushDiskType"] == "SYNC_FLUSH"
    fields_again = from_java(properties, data=DATA)
    assert java_properties(BrokerConfig(**fields_again)) == properties


def test_properties_change_only_what_they_name():
    config = BrokerConfig(DATA, store=StoreConfig(DATA, index_slots=100, max_transfer_count=5))
    changed = with_properties(config, {"maxIndexNum": "200", "brokerPermission": "4", "somethingElse": "x"})
    assert changed.permission == 4
    assert changed.store == StoreConfig(DATA, index_slots=100, max_transfer_count=5, index_entries=200)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listenPort", "many"),
        ("autoCreateTopicEnable", "yes"),
        ("flushDiskType", "FAST"),
        ("messageDelayLevel", "1s soon"),
        ("messageDelayLevel", "5"),
    ],
)
def test_a_property_that_does_not_fit_is_named_with_its_value(name, text):
    with pytest.raises(UsageError, match=rf"property {name} is '{text}'"):
        from_java({name: text}, data=DATA)


@pytest.mark.parametrize("name", [name for name in SETTINGS if name != "storePathRootDir"])
def test_no_setting_is_refused_in_pythons_words(name):
    for text in ("", "x", "1_0", "0.5", "-5"):
        try:
            BrokerConfig(DATA, **from_java({name: text}, data=DATA))
        except UsageError as error:
            assert name in str(error)
            assert "invalid literal" not in str(error)


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("listenPort", "write a whole number"),
        ("deleteWhen", "write a whole number"),
        ("storePathRootDir", "write a path"),
    ],
)
def test_a_setting_that_cannot_be_read_says_what_to_write(name, advice):
    text = "" if "Path" in name else "1_0"
    with pytest.raises(UsageError) as refused:
        from_java({name: text}, data=DATA)
    assert str(refused.value) == f"property {name} is {text!r}: {advice}"


@pytest.mark.parametrize("text", ["72h", "1GB", "1.5 GiB"])
def test_a_number_with_a_unit_is_refused_with_the_reason(text):
    with pytest.raises(UsageError, match="write a whole number, without a unit"):
        from_java({"fileReservedTime": text}, data=DATA)


def test_the_advertised_address_is_the_public_one():
    assert BrokerConfig(DATA, port=10911).advertised_address == "127.0.0.1:10911"
    assert BrokerConfig(DATA, port=1, host="::", advertised_host="::1").advertised_address == "[::1]:1"


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("fileReservedTime", "-1", "broker setting fileReservedTime (reserved_hours) is -1; it must be 0"),
        ("deleteWhen", "25", "broker setting deleteWhen (expire_hours) is (25,), must be hours of a day"),
        ("retentionBytes", "5", "broker setting retentionBytes (retained_bytes) is 5, must be at least two log files"),
    ],
)
def test_a_setting_of_the_store_is_refused_by_the_name_that_was_written(tmp_path, name, text, complaint):
    with pytest.raises(UsageError) as refused:
        from_java({name: text}, data=tmp_path)
    assert str(refused.value).startswith(complaint)


def test_a_brokers_name_is_refused_as_a_name(tmp_path):
    with pytest.raises(UsageError, match=r"brokerName \(name\) is 'a b': The specified name\[a b\] contains illegal"):
        BrokerConfig(tmp_path, name="a b")


SLAVE = {"brokerRole": "SLAVE", "brokerId": "1", "namesrvAddr": "a:1"}


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        (SLAVE | {"brokerId": "0"}, r"brokerId \(broker_id\) is 0.* write 1 or more"),
        (SLAVE | {"namesrvAddr": ""}, r"namesrvAddr \(namesrv\) is empty; with brokerRole"),
        (SLAVE | {"haMasterAddress": "10912"}, r"haMasterAddress \(ha_master\) is '10912'; write HOST:PORT"),
        (SLAVE | {"brokerRole": "ASYNC_MASTER"}, r"brokerId \(broker_id\) is 1; a master has id 0"),
        ({"brokerId": "2"}, r"brokerId \(broker_id\) is 2; a master has id 0.* brokerRole \(role\) SLAVE"),
        ({"haMasterAddress": "a:1"}, r"haMasterAddress \(ha_master\) is 'a:1'; only a slave"),
        ({"brokerRole": "slave"}, "property brokerRole is 'slave': write ASYNC_MASTER, SYNC_MASTER, SLAVE"),
        ({"brokerRole": "SYNC_MASTER", "listenPort": "2"}, r"listenPort \(port\) is 2; with brokerRole"),
    ],
)
def test_a_role_that_cannot_work_is_refused_with_what_to_write(properties, text):
    with pytest.raises(UsageError, match=text):
        with_properties(BrokerConfig(DATA), properties)


def test_a_slave_keeps_its_role_through_properties():
    config = with_properties(
        BrokerConfig(DATA), SLAVE | {"haMasterAddress": "10.0.0.1:10912", "slaveReadEnable": "true"}
    )
    assert (config.role, config.broker_id, config.slave_read) == (ConfiguredRole.SLAVE, 1, True)
    assert java_properties(config)["brokerRole"] == "SLAVE"
    assert java_properties(BrokerConfig(**from_java(java_properties(config), data=DATA))) == java_properties(config)


def test_a_slave_with_a_fixed_master_needs_no_name_server():
    assert with_properties(BrokerConfig(DATA), {**SLAVE, "namesrvAddr": "", "haMasterAddress": "a:1"}).broker_id == 1
