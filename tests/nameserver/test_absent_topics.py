"""Topics of brokers that left are in the answer about the cluster, until the broker returns or a day has passed."""

import pytest

from pyromq.nameserver import routes as absent_topics
from pyromq.nameserver.routes import KEEP_SECONDS, RouteTable
from pyromq.remoting.bodies import encode_body

from .test_routes import MASTER, OTHER, SLAVE, register


@pytest.fixture
def table():
    table = RouteTable()
    register(table, MASTER, "t", "u", connection="of a", now=5)
    register(table, OTHER, "t", connection="of b", now=5)
    return table


def absent(table):
    found = table.cluster_table().absent or {}
    return {name: sorted(topics) for name, topics in found.items()}


@pytest.mark.parametrize(
    "leave",
    [
        lambda table: table.unregister(MASTER),
        lambda table: table.connection_closed("of a"),
        lambda table: (register(table, OTHER, "t", connection="of b", now=9), table.expire(8)),
    ],
)
def test_a_broker_that_left_is_remembered_with_its_topics(table, leave):
    assert b"absentTopics" not in encode_body(table.cluster_table())
    leave(table)
    assert absent(table) == {"a": ["t", "u"]}
    assert list(table.cluster_table().brokers) == ["b"]


def test_a_broker_that_registers_again_is_no_longer_absent(table):
    table.unregister(MASTER)
    register(table, SLAVE, "t")
    assert absent(table) == {"a": ["t", "u"]}, "a slave's topics do not count"
    register(table, MASTER, "u")
    assert absent(table) == {}


def test_a_name_that_still_has_a_slave_can_be_read(table):
    register(table, SLAVE, "t")
    table.unregister(MASTER)
    assert absent(table) == {}
    table.unregister(SLAVE)
    assert absent(table) == {"a": ["t", "u"]}


@pytest.mark.parametrize(("cluster", "left"), [(None, ["u"]), ("c", ["u"]), ("other", ["t", "u"])])
def test_a_deleted_topic_is_forgotten(table, cluster, left):
    table.unregister(MASTER)
    table.delete_topic("t", cluster)
    assert absent(table) == {"a": left}


def test_a_broker_is_forgotten_a_day_after_its_last_sign_of_life(table):
    table.unregister(MASTER)
    table.expire(5 + KEEP_SECONDS)
    assert "a" in absent(table)
    table.expire(5.1 + KEEP_SECONDS)
    assert "a" not in absent(table)


@pytest.mark.parametrize(("limit", "value"), [("MAX_ABSENT_TOPICS", 2), ("MAX_ABSENT_BROKERS", 1)])
def test_beyond_the_limit_the_oldest_are_forgotten(table, monkeypatch, limit, value):
    monkeypatch.setattr(absent_topics, limit, value)
    table.unregister(MASTER)
    table.unregister(OTHER)
    assert absent(table) == {"b": ["t"]}
