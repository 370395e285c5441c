"""Namespaces: how names are written and read, and that clients of one keep to it in all they do."""

import pytest

from pyromq.client.cluster.namespace import Namespace, namespace_of
from pyromq.errors import IllegalName, UsageError
from pyromq.message import MessageQueue

SHOP = Namespace("shop")

# Source: RocketMQ 4.9.8, NamespaceUtil and what its tests expect.
WRITTEN = [
    ("orders", "shop%orders"),
    ("%RETRY%billing", "%RETRY%shop%billing"),
    ("%DLQ%billing", "%DLQ%shop%billing"),
    ("TBW102", "TBW102"),
    ("RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    ("rmq_sys_anything", "rmq_sys_anything"),
    ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ("DefaultCluster_REPLY_TOPIC", "DefaultCluster_REPLY_TOPIC"),  # ours: Java's clients reply by plain producers
]


@pytest.mark.parametrize(("name", "wire"), WRITTEN)
def test_names_are_written_as_java_does_and_read_back(name, wire):
    assert SHOP.wrap(name) == SHOP.wrap(wire) == wire
    assert SHOP.unwrap(wire) == SHOP.unwrap(name) == name
    assert SHOP.unwrap_queue(MessageQueue(wire, "a", 1)) == MessageQueue(name, "a", 1)
    assert SHOP.wrap_queue(MessageQueue(name, "a", 1)) == MessageQueue(wire, "a", 1)


@pytest.mark.parametrize("name", ["other%orders", "%RETRY%other%billing", "shopping%orders"])
def test_names_of_others_are_left_to_them(name):
    assert SHOP.unwrap(name) == name
    assert Namespace("").wrap(name) == Namespace("").unwrap(name) == name


def test_names_must_be_legal_and_short_with_their_namespace():
    assert SHOP.checked_topic("shop%orders") == "orders"
    assert SHOP.checked_group("billing") == "shop%billing"
    with pytest.raises(IllegalName, match="topic max length 127"):
        SHOP.checked_topic("o" * 123)
    with pytest.raises(IllegalName, match="group max length 255"):
        SHOP.checked_group("g" * 251)
    with pytest.raises(IllegalName, match="namespace 'a%b' contains illegal characters"):
        Namespace("a%b")


@pytest.mark.parametrize(
    ("namesrv", "name"),
    [
        ("MQ_INST_1_x.example.com:80", "MQ_INST_1_x"),
        ("http://MQ_INST_1_x.example.com:80", "MQ_INST_1_x"),
        ("MQ_INST_1.example.com:80", ""),
        ("127.0.0.1:9876", ""),
    ],
)
def test_the_first_of_setting_environment_and_address_says_which(monkeypatch, namesrv, name):
    monkeypatch.delenv("PYROMQ_NAMESPACE", raising=False)
    assert namespace_of(None, namesrv).name == name
    monkeypatch.setenv("NAMESRV_ADDR", namesrv)
    assert namespace_of(None, None).name == name
    monkeypatch.setenv("PYROMQ_NAMESPACE", "shop")
    assert namespace_of(None, namesrv).name == "shop"
    assert namespace_of("mine", namesrv).name == "mine"
    assert namespace_of("", namesrv).name == ""
    with pytest.raises(UsageError, match="namespace=5 is int"):
        namespace_of(5, namesrv)
