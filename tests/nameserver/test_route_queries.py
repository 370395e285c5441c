"""What clients and operators are answered about routes, clusters, topics and permissions: texts, codes, bodies."""

from tests.nameserver.conftest import announcement

from pyromq.clock import SystemClock
from pyromq.net.channel import connect
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import TopicConfig
from pyromq.remoting.command import BINARY
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import (
    AddWritePermission,
    BrokerClusterInfo,
    DeleteTopicName,
    PutKv,
    RouteOfTopic,
    SaveNamesrvSettings,
    SystemTopicNames,
    TopicNames,
    TopicNamesOfCluster,
    UnitSubscriptionOnlyTopicNames,
    UnitSubscriptionTopicNames,
    UnitTopicNames,
    WipeWritePermission,
)

NO_ROUTE = (
    "No topic route info in name server for the topic: {}\n"
    "See http://rocketmq.apache.org/docs/faq/ for further details."
)


async def test_an_unknown_topic_has_no_route(client):
    response = await client.ask(RouteOfTopic(topic="nowhere"), code=17)
    assert response.remark == NO_ROUTE.format("nowhere")


async def test_binary_headers_are_answered_with_binary_headers(name_server, broker):
    await broker.register(announcement("t"))
    channel = await connect(
        name_server.address, Dispatcher(), SystemClock(), connections=ConnectionConfig(serialization=BINARY)
    )
    assert (await channel.call(RouteOfTopic(topic="t"), timeout=30)).code == 0
    assert (await channel.call(RouteOfTopic(topic="größe"), timeout=30)).remark == NO_ROUTE.format("größe")
    await channel.close()


async def test_clusters_are_answered_with_all_brokers(broker, client):
    await broker.register(announcement())
    await broker.register(announcement(), name="b", address="10.0.0.3:10911")
    table = await client.body(BrokerClusterInfo())
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


async def test_order_topics_are_told_where_that_is_switched_on(name_server, broker, client):
    await client.ask(PutKv(namespace="ORDER_TOPIC_CONFIG", key="t", value="a:4"))
    await broker.register(announcement("t", "u"))
    assert (await client.route("t")).order_conf is None
    await client.ask(SaveNamesrvSettings(), b"orderMessageEnable=true\n")
    assert (await client.route("t")).order_conf == "a:4"
    assert (await client.route("u")).order_conf is None
