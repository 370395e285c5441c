import pytest

from pyromq.broker.config import BrokerConfig, from_java, java_properties, with_properties
from pyromq.broker.replication.ha.ha_config import HaConfig
from pyromq.errors import UsageError


def test_settings_have_the_names_and_defaults_of_rocketmq(tmp_path):
    properties = java_properties(BrokerConfig(tmp_path))
    assert properties["haSendHeartbeatInterval"] == "5000"
    assert properties["haHousekeepingInterval"] == "20000"
    assert properties["haTransferBatchSize"] == "32768"
    assert properties["haSlaveFallbehindMax"] == str(256 << 20)
    assert properties["slaveTimeout"] == "3000"
    assert "haListenPort" not in properties


def test_settings_are_read_from_properties(config, tmp_path):
    changed = with_properties(config, {"haListenPort": "10999", "haAllowedPeers": "10.0.0.1, ::1"})
    assert changed.ha == HaConfig(port=10999, allowed_peers=("10.0.0.1", "::1"), batch_bytes=config.ha.batch_bytes)
    assert java_properties(changed)["haAllowedPeers"] == "10.0.0.1,::1"


@pytest.mark.parametrize(
    ("name", "value"), [("haListenPort", "65536"), ("haAllowedPeers", "slave.example"), ("slaveTimeout", "0")]
)
def test_a_value_that_cannot_be_used_is_refused_by_name(name, value, tmp_path):
    with pytest.raises(UsageError, match=name):
        from_java({name: value}, data=tmp_path)
