"""What brokers, clients and operators are answered: texts, codes, bodies."""

import zlib

import pytest
from tests.nameserver.conftest import announcement

from pyromq.clock import SystemClock
from pyromq.nameserver.nameserver import NameServer
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import DataVersion, TopicConfig, encode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.frame import BINARY
from pyromq.remoting.headers import (
    AddWritePermission,
    Cluster,
    DeleteKv,
    DeleteTopicName,
    KvNamespace,
    KvValue,
    NamesrvSettings,
    PutKv,
    QueryDataVersion,
    RegisterBroker,
    RouteOfTopic,
    SaveNamesrvSettings,
    SystemTopicNames,
    TopicNames,
    TopicNamesOfCluster,
    UnitSubscriptionOnlyTopicNames,
    UnitSubscriptionTopicNames,
    UnitTopicNames,
    UnregisterBroker,
    WipeWritePermission,
)

NO_ROUTE = (
    "No topic route info in name server for the topic: {}\n"
    "See http://rocketmq.apache.org/docs/faq/ for further details."
)
MASTER = {"broker_name": "a", "broker_address": "10.0.0.1:10911", "cluster": "c", "broker_id": 0}


# -- brokers


@pytest.mark.parametrize("compressed", [False, True])
async def test_what_a_broker_announces_is_routed(broker, client, compressed):
    topic = TopicConfig(name="t", read_queues=3, write_queues=2, permission=6)
    await broker.register(announcement(topic), compressed=compressed)
    response = await client.ask(RouteOfTopic(topic="t"))
    assert b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in response.body  # quoted, which every client reads
    (queues,) = (await client.route("t")).queues
    assert (queues.broker_name, queues.read_queues, queues.write_queues, queues.permission) == ("a", 3, 2, 6)


async def test_a_new_topic_is_routed_at_once(broker, client):
    await broker.register(announcement("t"))
    await client.ask(RouteOfTopic(topic="u"), code=17)
    await broker.register(announcement("t", "u", version=2))
    assert (await client.route("u")).queues[0].broker_name == "a"


async def test_an_unknown_topic_has_no_route(client):
    response = await client.ask(RouteOfTopic(topic="nowhere"), code=17)
    assert response.remark == NO_ROUTE.format("nowhere")


async def test_binary_headers_are_answered_with_binary_headers(name_server, broker):
    await broker.register(announcement("t"))
    channel = await connect(
        name_server.address, Dispatcher(), SystemClock(), connections=ConnectionConfig(serialization=BINARY)
    )
    assert (await channel.call(RouteOfTopic(topic="t"), timeout=5)).code == 0
    assert (await channel.call(RouteOfTopic(topic="größe"), timeout=5)).remark == NO_ROUTE.format("größe")
    await channel.close()


@pytest.mark.parametrize("compressed", [False, True])
async def test_an_announcement_damaged_on_the_way_is_refused(broker, client, compressed):
    response = await broker.register(announcement("t"), compressed=compressed, body_crc=1, code=1)
    assert response.remark == "crc32 not match"
    await client.ask(RouteOfTopic(topic="t"), code=17)


async def test_without_a_checksum_nothing_is_compared(broker, client):
    await broker.register(announcement("t"), body_crc=0)
    await client.route("t")


async def test_an_announcement_that_cannot_be_read_is_refused(broker, client):
    await broker.register(announcement("t"))
    for body, compressed in (
        (b"no zlib", True),
        (zlib.compress(b"no table"), True),
        (b"{no json", False),
        (b"[]", False),
    ):
        await broker.ask(RegisterBroker(**MASTER, compressed=compressed), body, code=1)
    assert (await client.route("t")).queues[0].broker_name == "a"


async def test_slaves_are_answered_with_their_masters_addresses(broker):
    master = await broker.register(announcement("t"))
    assert master.fields == {}
    slave = await broker.register(announcement("t"), address="10.0.0.2:10911", broker_id=1)
    assert slave.fields == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


async def test_brokers_are_told_the_order_topics(broker, client):
    assert (await broker.register(announcement("t"))).body == b""
    await client.ask(PutKv(namespace="ORDER_TOPIC_CONFIG", key="t", value="a:4"))
    assert (await broker.register(announcement("t"))).body == b'{"table":{"t":"a:4"}}'


async def test_a_broker_that_says_goodbye_is_gone(broker, client):
    await broker.register(announcement("t"))
    await broker.ask(UnregisterBroker(**MASTER))
    await client.ask(RouteOfTopic(topic="t"), code=17)
    await broker.ask(UnregisterBroker(**MASTER))


async def test_a_broker_may_ask_whether_its_version_is_known(broker):
    version, other = (encode_body(DataVersion(counter=counter, timestamp=1)) for counter in (1, 2))
    response = await broker.ask(QueryDataVersion(**MASTER), version)
    assert (response.fields, response.body) == ({"changed": "true"}, b"")
    await broker.register(announcement("t"))
    response = await broker.ask(QueryDataVersion(**MASTER), version)
    assert response.fields == {"changed": "false"}
    assert b'"counter":1' in response.body
    assert (await broker.ask(QueryDataVersion(**MASTER), other)).fields == {"changed": "true"}
    await broker.ask(QueryDataVersion(**MASTER), b"", code=1)


# -- clients and operators


async def test_clusters_are_answered_with_all_brokers(broker, client):
    await broker.register(announcement())
    await broker.register(announcement(), name="b", address="10.0.0.3:10911")
    table = await client.body(Cluster())
    assert table.clusters == {"c": ["a", "b"]}
    assert table.brokers["b"].addresses == {0: "10.0.0.3:10911"}


async def test_topics_are_listed(broker, client):
    flags = {"none": 0, "unit": 1, "subscription": 2, "both": 3}
    await broker.register(announcement(*[TopicConfig(name=name, sys_flag=flag) for name, flag in flags.items()]))
    assert set((await client.body(TopicNames())).topics) == set(flags)
    assert set((await client.body(TopicNamesOfCluster(cluster="c"))).topics) == set(flags)
    assert (await client.body(TopicNamesOfCluster(cluster="nowhere"))).topics == []
    assert set((await client.body(UnitTopicNames())).topics) == {"unit", "both"}
    assert set((await client.body(UnitSubscriptionTopicNames())).topics) == {"subscription", "both"}
    assert set((await client.body(UnitSubscriptionOnlyTopicNames())).topics) == {"subscription"}
    system = await client.body(SystemTopicNames())
    assert (system.topics, system.broker_address) == (["c", "a"], "10.0.0.1:10911")


async def test_a_topic_can_be_forgotten(broker, client):
    await broker.register(announcement("t", "u"))
    await client.ask(DeleteTopicName(topic="t", cluster="elsewhere"))
    await client.route("t")
    await client.ask(DeleteTopicName(topic="t", cluster="c"))
    await client.ask(DeleteTopicName(topic="u"))
    for topic in "tu":
        await client.ask(RouteOfTopic(topic=topic), code=17)


async def test_write_permission_can_be_taken_and_given(broker, client):
    await broker.register(announcement("t", "u"))
    assert (await client.ask(WipeWritePermission(broker_name="a"))).fields == {"wipeTopicCount": "2"}
    assert (await client.route("t")).queues[0].permission == 4
    assert (await client.ask(AddWritePermission(broker_name="a"))).fields == {"addTopicCount": "2"}
    assert (await client.route("t")).queues[0].permission == 6


# -- key-value settings


async def test_a_value_is_kept(client):
    await client.ask(PutKv(namespace="n", key="k", value="v"))
    assert (await client.ask(KvValue(namespace="n", key="k"))).fields == {"value": "v"}
    assert (await client.body(KvNamespace(namespace="n"))).table == {"k": "v"}
    await client.ask(DeleteKv(namespace="n", key="k"))
    response = await client.ask(KvValue(namespace="n", key="k"), code=22)
    assert response.remark == "No config item, Namespace: n Key: k"
    await client.ask(DeleteKv(namespace="n", key="k"))


async def test_an_unknown_namespace_is_refused(client):
    response = await client.ask(KvNamespace(namespace="n"), code=22)
    assert response.remark == "No config item, Namespace: n"


async def test_a_value_needs_its_name(client):
    for header in PutKv(namespace="n", value="v"), PutKv(namespace="", key="k", value="v"):
        response = await client.ask(header, code=1)
        assert response.remark == "namespace or key is null"


async def test_order_topics_are_told_where_that_is_switched_on(name_server, broker, client):
    await client.ask(PutKv(namespace="ORDER_TOPIC_CONFIG", key="t", value="a:4"))
    await broker.register(announcement("t", "u"))
    assert (await client.route("t")).order_conf is None
    await client.ask(SaveNamesrvSettings(), b"orderMessageEnable=true\n")
    assert (await client.route("t")).order_conf == "a:4"
    assert (await client.route("u")).order_conf is None


# -- the server's own settings


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
        (await channel.call(SaveNamesrvSettings(), b"orderMessageEnable=true\n", timeout=5)).check()
        await channel.close()
    async with NameServer(config) as again:
        assert again.config.order_message_enabled
    assert not config.order_message_enabled, "the caller's own settings are left alone"


async def test_unknown_settings_are_ignored(client):
    await client.ask(SaveNamesrvSettings(), b"# nothing\nclusterTest=true\n")
