from dataclasses import replace
from pathlib import Path

import pytest

from pyromq.broker.config import BrokerConfig, from_java, java_properties, with_properties
from pyromq.broker.replication.failover_config import FailoverConfig, parse_etcd
from pyromq.errors import UsageError

ETCD = ("http://10.0.0.1:2379", "http://10.0.0.2:2379", "http://[::1]:2379")
TLS = ("https://10.0.0.1:2379",)


def test_a_broker_is_no_replica_unless_told(tmp_path):
    properties = java_properties(BrokerConfig(tmp_path))
    assert properties["failoverEtcd"] == ""
    assert properties["minInSyncReplicas"] == "1"
    assert properties["failoverLeaseMillis"] == "3000"
    assert properties["replicaLagMillis"] == "3000"
    assert properties["haMaxTimeSlaveNotCatchup"] == "15000"
    assert properties["enableElectUncleanMaster"] == "false"
    assert properties["catchUpBytesPerSecond"] == "200000000"


def test_settings_are_read_from_properties_and_written_back(config):
    properties = {
        "failoverEtcd": " https://a:1 , https://b.example:2/,",
        "failoverEtcdCa": "/ca.pem",
        "failoverEtcdCert": "/cert.pem",
        "failoverEtcdKey": "/key.pem",
        "replicaId": "3",
        "minInSyncReplicas": "2",
        "failoverLeaseMillis": "5000",
        "replicaLagMillis": "1000",
        "haMaxTimeSlaveNotCatchup": "2000",
        "enableElectUncleanMaster": "true",
        "catchUpBytesPerSecond": "50000000",
    }
    failover = with_properties(config, properties).failover
    assert failover == FailoverConfig(
        etcd=("https://a:1", "https://b.example:2"),
        etcd_authority=Path("/ca.pem"),
        etcd_certificate=Path("/cert.pem"),
        etcd_key=Path("/key.pem"),
        replica_id=3,
        min_in_sync=2,
        lease_ms=5000,
        lag_ms=1000,
        catch_up_ms=2000,
        unclean_election=True,
        catch_up_bytes=50_000_000,
    )
    assert failover.etcd_tls.authority == Path("/ca.pem")
    written = java_properties(replace(config, failover=failover))
    assert written["failoverEtcd"] == "https://a:1,https://b.example:2"
    assert {name: written[name] for name in properties if name != "failoverEtcd"} == {
        name: text for name, text in properties.items() if name != "failoverEtcd"
    }


def test_the_password_of_etcd_is_never_shown(config):
    failover = FailoverConfig(ETCD, etcd_user="broker", etcd_password="se-cret")
    assert "se-cret" not in repr(failover)
    assert "se-cret" not in str(java_properties(replace(config, failover=failover)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("replicaId", "0"),
        ("replicaId", "256"),
        ("replicaId", "one"),
        ("minInSyncReplicas", "0"),
        ("failoverLeaseMillis", "1999"),
        ("failoverLeaseMillis", "60001"),
        ("replicaLagMillis", "99"),
        ("replicaLagMillis", "15001"),
        ("haMaxTimeSlaveNotCatchup", "2999"),
        ("enableElectUncleanMaster", "1"),
        ("catchUpBytesPerSecond", "1000"),
        ("failoverEtcdCa", "/ca.pem"),
        ("failoverEtcd", "10.0.0.1:2379"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_name(name, value, tmp_path):
    with pytest.raises(UsageError, match=name) as refused:
        from_java({"failoverEtcd": ",".join(ETCD), name: value}, data=tmp_path)
    assert value in str(refused.value) or "http:" in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "10.0.0.1:2379",
        "10.0.0.1",
        "http://10.0.0.1",
        "http://:2379",
        "http://h:port",
        "http://h:70000",
        "ftp://h:2379",
        "http://user:word@h:2379",
        "http://h:2379/v3",
        "http://h:2379?x=1",
    ],
)
def test_an_endpoint_is_a_url_with_host_and_port_and_nothing_else(url):
    with pytest.raises(ValueError, match="http://HOST:PORT"):
        parse_etcd(f"http://good:1,{url}")
    with pytest.raises(UsageError, match="failoverEtcd"):
        FailoverConfig((url,))


@pytest.mark.parametrize(
    ("name", "value"),
    [("replicaId", "1"), ("minInSyncReplicas", "2"), ("enableElectUncleanMaster", "true"), ("failoverEtcdKey", "/k")],
)
def test_a_setting_that_would_have_no_effect_without_etcd_is_refused(name, value, tmp_path):
    with pytest.raises(UsageError, match=rf"{name}.*needs failoverEtcd"):
        from_java({name: value}, data=tmp_path)


def test_a_key_needs_its_certificate_and_a_user_its_password():
    with pytest.raises(UsageError, match=r"failoverEtcdKey.*failoverEtcdCert"):
        FailoverConfig(TLS, etcd_key=Path("/key.pem"))
    with pytest.raises(UsageError, match="user and no password"):
        FailoverConfig(TLS, etcd_user="broker")
    with pytest.raises(UsageError, match="password and no user"):
        FailoverConfig(TLS, etcd_password="word")


@pytest.mark.parametrize(
    ("name", "value"),
    [("brokerId", "1"), ("brokerRole", "SLAVE"), ("brokerRole", "ASYNC_MASTER"), ("haMasterAddress", "10.0.0.9:10912")],
)
def test_a_setting_that_fixes_the_master_of_a_set_is_refused(name, value, tmp_path):
    with pytest.raises(UsageError, match=rf"{name} .* is {value}; .*failoverEtcd"):
        with_properties(BrokerConfig(tmp_path), {"failoverEtcd": ETCD[0], name: value})
