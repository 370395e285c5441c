"""The table of brokers and topics: who enters, who leaves, what is answered."""

import pytest

from pyromq.errors import BrokerError, LimitReached
from pyromq.nameserver import routes
from pyromq.nameserver.routes import BrokerIdentity, RouteTable
from pyromq.remoting.bodies import BrokerRegistration, DataVersion, TopicConfig, TopicConfigTable
from pyromq.slow_work import run_blocking

MASTER = BrokerIdentity("c", "a", 0, "10.0.0.1:10911")
SLAVE = BrokerIdentity("c", "a", 1, "10.0.0.2:10911")
OTHER = BrokerIdentity("c", "b", 0, "10.0.0.3:10911")


def announced(*topics, version=1, filter_servers=()):
    configs = [TopicConfig(name=topic) if isinstance(topic, str) else topic for topic in topics]
    table = TopicConfigTable(
        data_version=DataVersion(counter=version, timestamp=1), topics={each.name: each for each in configs}
    )
    return BrokerRegistration(topics=table, filter_servers=list(filter_servers))


@pytest.fixture
def table():
    return RouteTable()


def register(table, broker, *topics, version=1, now=0, connection=None, ha_address=None, filter_servers=()):
    table.register(
        broker,
        announced(*topics, version=version, filter_servers=filter_servers),
        now=now,
        connection=connection,
        ha_address=ha_address,
    )


def names(found):
    return [name for name in found if name is not None]


def addresses(table, topic):
    return {broker.broker_name: broker.addresses for broker in table.route(topic).brokers}


def test_a_topic_is_where_its_brokers_are(table):
    register(table, MASTER, TopicConfig(name="t", read_queues=3, write_queues=2, permission=4, sys_flag=1))
    register(table, SLAVE, "t")
    register(table, OTHER, "t")
    assert addresses(table, "t") == {
        "a": {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"},
        "b": {0: "10.0.0.3:10911"},
    }
    first = table.route("t").queues[0]
    assert (first.broker_name, first.read_queues, first.write_queues) == ("a", 3, 2)
    assert (first.permission, first.sys_flag) == (4, 1)


def test_an_unknown_topic_has_no_route(table):
    register(table, MASTER, "t")
    assert table.route("u") is None


def test_only_a_masters_topics_count(table):
    register(table, SLAVE, "t")
    assert table.route("t") is None
    register(table, MASTER, "t")
    register(table, SLAVE, TopicConfig(name="t", write_queues=1), "u", version=2)
    assert table.route("t").queues[0].write_queues == 16
    assert table.route("u") is None


def test_topics_are_taken_over_when_their_version_is_new(table):
    register(table, MASTER, TopicConfig(name="t", write_queues=1))
    register(table, MASTER, TopicConfig(name="t", write_queues=2))
    assert table.route("t").queues[0].write_queues == 1
    register(table, MASTER, TopicConfig(name="t", write_queues=2), version=2)
    assert table.route("t").queues[0].write_queues == 2


def test_topics_missing_from_an_announcement_stay(table):
    register(table, MASTER, "t", "u")
    register(table, MASTER, "u", version=2)
    assert table.route("t") is not None


def test_an_address_that_comes_back_under_another_id_has_changed_its_role(table):
    register(table, MASTER, "t")
    register(table, SLAVE, "t")
    register(table, BrokerIdentity("c", "a", 0, SLAVE.address), "t")
    assert addresses(table, "t") == {"a": {0: SLAVE.address}}


def test_a_slave_that_becomes_master_brings_its_topics(table):
    register(table, MASTER, "t")
    register(table, SLAVE, "t")
    table.unregister(MASTER)
    register(table, BrokerIdentity("c", "a", 0, SLAVE.address), TopicConfig(name="t", write_queues=5))
    assert table.route("t").queues[0].write_queues == 5


def test_without_its_master_a_topic_can_still_be_read_from_the_slave(table):
    register(table, MASTER, "t")
    register(table, SLAVE, "t")
    table.unregister(MASTER)
    assert addresses(table, "t") == {"a": {1: SLAVE.address}}


def test_with_its_last_address_everything_of_a_broker_goes(table):
    register(table, MASTER, "t", "u", filter_servers=["f:1"])
    register(table, OTHER, "t")
    table.unregister(MASTER)
    assert addresses(table, "t") == {"b": {0: OTHER.address}}
    assert table.route("u") is None
    assert names(table.topics()) == ["t"]
    assert table.cluster_table().clusters == {"c": ["b"]}
    table.unregister(OTHER)
    assert table.cluster_table().clusters == {}
    assert table.cluster_table().brokers == {}
    assert names(table.topics()) == []


def test_a_goodbye_of_somebody_unknown_changes_nothing(table):
    register(table, MASTER, "t")
    table.unregister(OTHER)
    table.unregister(BrokerIdentity("c", "a", 5, "10.9.9.9:1"))
    assert addresses(table, "t") == {"a": {0: MASTER.address}}


def test_silence_removes_a_broker(table):
    register(table, MASTER, "t", now=1)
    register(table, OTHER, "t", now=2)
    assert table.expire(1) == []
    assert table.expire(1.1) == [MASTER.address]
    assert addresses(table, "t") == {"b": {0: OTHER.address}}
    assert list(table.addresses()) == [OTHER.address]


def test_asking_for_the_version_is_a_sign_of_life(table):
    register(table, MASTER, "t", version=7, now=1)
    assert table.version_of(MASTER.address, 5) == DataVersion(counter=7, timestamp=1)
    assert table.expire(5) == []
    assert table.version_of(OTHER.address, 5) is None


def test_the_end_of_a_connection_removes_who_registered_by_it_last(table):
    old, new = object(), object()
    register(table, MASTER, "t", connection=old)
    register(table, OTHER, "t", connection=old)
    register(table, MASTER, "t", connection=new)
    assert table.connection_closed(old) == [OTHER.address]
    assert addresses(table, "t") == {"a": {0: MASTER.address}}
    assert table.connection_closed(old) == []


def test_a_broker_that_comes_back_brings_its_topics_though_their_version_is_old(table):
    register(table, MASTER, "t")
    table.connection_closed(None)
    assert table.route("t") is None
    register(table, MASTER, "t")
    assert table.route("t") is not None


def test_a_broker_gets_its_routes_back_after_another_of_its_name_has_come_and_gone(table):
    register(table, MASTER, "t")
    impostor = BrokerIdentity("c", "a", 0, "10.9.9.9:10911")
    register(table, impostor, "u")
    table.unregister(impostor)
    assert table.route("t") is None
    register(table, MASTER, "t")
    assert addresses(table, "t") == {"a": {0: MASTER.address}}


def test_topics_announced_alone_do_not_hide_that_the_others_are_unknown(table):
    register(table, MASTER, "t", "u")
    table.expire(1)
    register(table, MASTER, "u", now=1)
    register(table, MASTER, "t", "u", now=2)
    assert table.route("t") is not None


def test_a_broker_that_moves_to_another_cluster_leaves_the_old_one(table):
    register(table, MASTER, "t")
    register(table, BrokerIdentity("d", "a", 0, MASTER.address), "t")
    assert table.cluster_table().clusters == {"d": ["a"]}
    table.connection_closed(None)
    assert table.cluster_table().clusters == {}


def test_slaves_are_told_their_master(table):
    assert table.master_of("a") == (None, None)
    register(table, SLAVE)
    assert table.master_of("a") == (None, None)
    register(table, MASTER, ha_address="10.0.0.1:10912")
    assert table.master_of("a") == (MASTER.address, "10.0.0.1:10912")


def test_filter_servers_are_told_with_the_route_until_they_are_gone(table):
    register(table, MASTER, "t", filter_servers=["f:1"])
    assert table.route("t").filter_servers == {MASTER.address: ["f:1"]}
    register(table, MASTER, "t")
    assert table.route("t").filter_servers == {}


def test_write_permission_is_wiped_until_the_broker_announces_a_change(table):
    register(table, MASTER, "t", TopicConfig(name="u", permission=4))
    register(table, OTHER, "t")
    assert run_blocking(table.wipe_write_permission("a")) == 2
    assert [queues.permission for queues in table.route("t").queues] == [4, 6]
    register(table, MASTER, "t")
    assert table.route("t").queues[0].permission == 4
    register(table, MASTER, "t", version=2)
    assert sorted(queues.permission for queues in table.route("t").queues) == [6, 6]
    assert run_blocking(table.wipe_write_permission("nobody")) == 0


def test_adding_write_permission_lets_everything_be_read_and_written(table):
    register(table, MASTER, TopicConfig(name="t", permission=7), TopicConfig(name="u", permission=0))
    assert run_blocking(table.add_write_permission("a")) == 2
    assert [table.route(topic).queues[0].permission for topic in ("t", "u")] == [6, 6]


def test_a_topic_is_forgotten_everywhere_or_in_one_cluster(table):
    elsewhere = BrokerIdentity("d", "x", 0, "10.1.0.1:10911")
    for broker in (MASTER, OTHER, elsewhere):
        register(table, broker, "t", "u")
    table.delete_topic("t", "d")
    assert set(addresses(table, "t")) == {"a", "b"}
    table.delete_topic("t", "c")
    assert table.route("t") is None
    table.delete_topic("u", None)
    table.delete_topic("nothing", "c")
    table.delete_topic("nothing", "nowhere")
    assert names(table.topics()) == []


def test_topics_are_listed_by_cluster_and_by_flag(table):
    register(table, MASTER, TopicConfig(name="t", sys_flag=1), TopicConfig(name="u", sys_flag=2))
    register(table, BrokerIdentity("d", "x", 0, "10.1.0.1:10911"), "v")
    assert names(table.topics()) == ["t", "u", "v"]
    assert names(table.topics(lambda queues: queues.sys_flag == 1)) == ["t"]
    assert names(table.topics_of("c")) == ["t", "u"]
    assert names(table.topics_of("nowhere")) == []


def test_the_names_of_clusters_and_brokers_are_topics_of_the_system(table):
    assert table.system_topics() == ([], None)
    register(table, MASTER)
    register(table, OTHER)
    assert table.system_topics() == (["c", "a", "b"], MASTER.address)


def many(prefix, count):
    return [f"{prefix}-{number}" for number in range(count)]


def test_a_connection_gets_half_of_the_topics_that_others_leave():
    table = RouteTable(max_topics=100)
    register(table, MASTER, *many("t", 40), connection="one")
    register(table, MASTER, *many("t", 50), connection="one", version=2)
    with pytest.raises(LimitReached, match=r"broker a is not registered, it has 51 topics.*raise maxRegisteredTopics"):
        register(table, MASTER, *many("t", 51), connection="one", version=3)
    with pytest.raises(LimitReached):
        register(table, BrokerIdentity("c", "x", 0, "10.0.0.9:1"), *many("u", 1), connection="one")
    register(table, OTHER, *many("t", 25), connection="other")
    with pytest.raises(LimitReached):
        register(table, OTHER, *many("t", 26), connection="other", version=2)
    register(table, MASTER, *many("t", 50), connection="one", version=4)  # what is there goes on
    table.connection_closed("one")
    register(table, OTHER, *many("t", 50), connection="other", version=3)


def test_a_connection_gets_half_of_the_brokers_that_others_leave():
    table = RouteTable(max_brokers=4)
    register(table, MASTER, "t", connection="one")
    register(table, SLAVE, "t", connection="one")
    with pytest.raises(LimitReached, match=r"raise maxRegisteredBrokers \(now 4\)"):
        register(table, OTHER, "t", connection="one")
    register(table, OTHER, "t", connection="other")
    register(table, MASTER, "t", "u", connection="one", version=2)


@pytest.mark.parametrize("where", ["name", "topic", "filter server", "filter servers"])
def test_names_too_long_to_be_kept_are_refused(table, where):
    long = "x" * 256
    servers = {"filter server": [long], "filter servers": ["h:1"] * 17}.get(where, [])
    broker = BrokerIdentity("c", long if where == "name" else "a", 0, "10.0.0.1:1")
    with pytest.raises(BrokerError) as refused:
        register(table, broker, long if where == "topic" else "t", filter_servers=servers)
    assert len(str(refused.value)) < 200
    assert not table.addresses()


def test_who_has_left_with_many_topics_is_forgotten_by_steps_and_told_to_nobody(table, monkeypatch):
    monkeypatch.setattr(routes, "AT_ONCE", 3)
    register(table, MASTER, *many("t", 8), connection="one")
    register(table, OTHER, "t-7", connection="other")
    table.connection_closed("one")
    assert table.is_leaving
    assert table.route("t-0") is None
    assert addresses(table, "t-7") == {"b": {0: OTHER.address}}
    steps = 0
    while table.is_leaving:
        table.remove_some()
        steps += 1
    assert steps == 2
    assert names(table.topics()) == ["t-7"]


def test_queues_of_a_broker_that_is_leaving_are_in_no_route(table, monkeypatch):
    monkeypatch.setattr(routes, "AT_ONCE", 3)
    register(table, MASTER, *many("t", 8), connection="one")
    register(table, OTHER, "t-0", connection="other")
    table.connection_closed("one")
    assert table.is_leaving
    assert [each.broker_name for each in table.route("t-0").queues] == ["b"]


def test_who_comes_back_while_his_topics_leave_has_all_of_them(table, monkeypatch):
    monkeypatch.setattr(routes, "AT_ONCE", 3)
    register(table, MASTER, *many("t", 8), connection="one")
    table.connection_closed("one")
    register(table, MASTER, *many("t", 8), connection="two")
    assert not table.is_leaving
    assert all(addresses(table, topic) == {"a": {0: MASTER.address}} for topic in many("t", 8))


@pytest.mark.parametrize("before", [("one",), ()])
def test_a_broker_that_is_removed_while_it_registers_again_keeps_its_routes(table, monkeypatch, before):
    monkeypatch.setattr(routes, "AT_ONCE", 3)
    for connection in before:
        register(table, MASTER, *many("t", 8), connection=connection)
    registering = table.registering(MASTER, announced(*many("t", 8), version=2), now=1, connection="two")
    for _ in range(2):
        registering.send(None)
    table.connection_closed("one")
    run_blocking(registering)
    while table.is_leaving:
        table.remove_some()
    assert all(addresses(table, topic) == {"a": {0: MASTER.address}} for topic in many("t", 8))
    table.connection_closed("two")
    while table.is_leaving:
        table.remove_some()
    assert not names(table.topics())


@pytest.mark.parametrize("count", [-1, 65_537, 3_000_000, 2_147_483_647])
@pytest.mark.parametrize("field", ["read_queues", "write_queues"])
def test_a_topic_with_more_queues_than_a_broker_may_have_is_left_out_and_told(table, caplog, field, count):
    register(table, MASTER, TopicConfig(name="huge", **{field: count}), "orders")
    assert table.route("huge") is None
    assert table.route("orders") is not None
    assert f"huge has {count if field == 'read_queues' else 16} queues to read" in caplog.text


def test_a_topic_keeps_its_queues_when_its_broker_announces_too_many(table):
    register(table, MASTER, "orders")
    register(table, MASTER, TopicConfig(name="orders", read_queues=65_537), version=2)
    assert table.route("orders").queues[0].read_queues == 16


@pytest.mark.parametrize(
    "absurd",
    [
        {"permission": 1 << 70},
        {"permission": 1 << 40},
        {"permission": -1},
        {"permission": 16},
        {"sys_flag": 1 << 31},
        {"sys_flag": -(1 << 40)},
        {"read_queues": -1},
        {"name": "a\nb"},
        {"name": ""},
    ],
)
def test_a_topic_with_an_absurd_value_is_left_out_and_the_others_enter(table, absurd, caplog):
    topic = TopicConfig(**{"name": "t", **absurd})
    register(table, MASTER, topic, TopicConfig(name="u", permission=15, sys_flag=-(1 << 31)))
    assert names(table.topics()) == ["u"]
    [line] = caplog.messages
    assert line.startswith("1 topics of broker a are left out") and line.isprintable()


@pytest.mark.parametrize(
    "absurd", [("", "a", "h:1"), ("c", "", "h:1"), ("c", "a", ""), ("c", "a\nb", "h:1"), ("c", "a", "h\0:1")]
)
def test_a_broker_without_printable_names_is_refused(table, absurd):
    cluster, name, address = absurd
    with pytest.raises(BrokerError, match="printable"):
        register(table, BrokerIdentity(cluster, name, 0, address), "t")
    assert table.route("t") is None


@pytest.mark.parametrize(
    ("second", "connection", "is_told"),
    [
        (BrokerIdentity("c", "a", 0, "10.0.0.9:10911"), "two", True),
        (BrokerIdentity("c", "a", 0, "10.0.0.9:10911"), "one", False),  # the broker has another address now
        (BrokerIdentity("c", "a", 0, "10.0.0.1:10911"), "two", False),  # and another connection
        (BrokerIdentity("c", "a", 1, "10.0.0.9:10911"), "two", False),  # its slave
        (BrokerIdentity("c", "z", 0, "10.0.0.9:10911"), "two", False),
    ],
)
def test_two_connected_brokers_of_one_name_are_logged(table, caplog, second, connection, is_told):
    register(table, MASTER, "t", connection="one")
    register(table, second, "t", connection=connection)
    text = "registers from 10.0.0.9:10911, and another broker of this name and id is connected from 10.0.0.1:10911"
    assert (text in caplog.text) is is_told


def test_a_broker_that_moved_is_not_logged(table, caplog):
    register(table, MASTER, "t", connection="one")
    table.connection_closed("one")
    register(table, BrokerIdentity("c", "a", 0, "10.0.0.9:10911"), "t", connection="two")
    assert not caplog.messages
