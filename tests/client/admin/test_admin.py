"""The async admin client at real servers."""

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig, ConfiguredRole
from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.client_hooks import Decision
from pyromq.client.producer.transaction_producer import AsyncTransactionProducer
from pyromq.errors import (
    AlreadyExists,
    GroupNotFound,
    IllegalName,
    MQError,
    NoNameServer,
    NotRunning,
    QueryNotFound,
    TopicNotFound,
    Unavailable,
    UsageError,
)
from pyromq.message import Message, MessageQueue
from pyromq.nameserver.routes import BrokerIdentity
from pyromq.remoting.bodies import BrokerRegistration, GroupConfig, TopicConfig, TopicConfigTable
from pyromq.testing.cluster import Cluster


@pytest.fixture
async def admin(cluster):
    return await cluster.admin()


async def test_a_created_topic_is_routed_and_listed_at_once(pair):
    admin = await pair.admin()
    await admin.create_topic("orders", 3, read_queues=5)
    route = await admin.topic_route("orders")
    assert [(q.broker_name, q.read_queues, q.write_queues) for q in route.queues] == [
        ("broker-a", 5, 3),
        ("broker-b", 5, 3),
    ]
    assert "orders" in await admin.topics()
    assert (await admin.topic_config("orders")).read_queues == 5


async def test_a_topic_may_be_created_at_one_broker(pair):
    admin = await pair.admin()
    await admin.create_topic("orders", broker="broker-b")
    assert [q.broker_name for q in (await admin.topic_route("orders")).queues] == ["broker-b"]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"permission": "x"}, "permission 'x'"),
        ({"message_type": "FIFO"}, "message type 'FIFO' is unknown; use one of normal, fifo"),
        ({"cluster": "other"}, "cluster 'other' does not exist; there is DefaultCluster"),
        ({"broker": "b"}, "broker 'b' is not registered; there is broker-a"),
    ],
)
async def test_impossible_settings_of_a_topic_are_named(admin, options, text):
    with pytest.raises(UsageError, match=text):
        await admin.create_topic("orders", **options)


async def test_the_type_of_a_topic_is_kept_until_it_is_changed(pair):
    admin = await pair.admin()
    await admin.create_topic("orders", message_type="fifo")
    await admin.alter_topic("orders", read_queues=9)
    assert {each.message_type for each in (await admin.topic_configs("orders")).values()} == {"fifo"}
    await admin.alter_topic("orders", message_type="mixed", broker="broker-b")
    found = await admin.topic_configs("orders")
    assert [found[name].message_type for name in ("broker-a", "broker-b")] == ["fifo", "mixed"]
    assert found["broker-b"].read_queues == 9


async def test_an_illegal_topic_name_is_refused(admin):
    with pytest.raises(IllegalName):
        await admin.create_topic("a b")


async def test_an_order_topic_keeps_its_queues_at_the_name_server(admin):
    await admin.create_topic("orders", 4, order=True)
    assert await admin.kv("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4"


async def test_creating_a_topic_that_exists_is_refused_unless_it_is_to_be_replaced(pair):
    admin = await pair.admin()
    await admin.create_topic("orders", 3, permission="r", broker="broker-a")
    with pytest.raises(
        AlreadyExists, match=r"orders exists already: broker-a has 3 queues to read .* alter or replace it"
    ):
        await admin.create_topic("orders", 1)
    with pytest.raises(TopicNotFound):
        await (await pair.admin()).alter_topic("orders", broker="broker-b")
    assert (await admin.topic_config("orders")).read_queues == 3

    await admin.create_topic("orders", 1, replace=True)
    configs = await admin.topic_configs("orders")
    assert [(c.read_queues, c.permission) for c in configs.values()] == [(1, 6), (1, 6)]


async def test_creating_a_group_that_exists_is_refused_unless_it_is_to_be_replaced(admin):
    await admin.create_group(GroupConfig(name="g", retry_max_times=3))
    with pytest.raises(AlreadyExists, match="group g exists already, at broker-a; alter or replace it"):
        await admin.create_group(GroupConfig(name="g"))
    assert (await admin.group_configs("g"))["broker-a"].retry_max_times == 3
    await admin.create_group(GroupConfig(name="g", retry_max_times=5), replace=True)
    assert (await admin.group_configs("g"))["broker-a"].retry_max_times == 5


async def test_altering_a_topic_keeps_what_is_not_named_at_each_broker(pair):
    admin = await pair.admin()
    await admin.create_topic("orders", 16, permission="r", broker="broker-a")
    await admin.create_topic("orders", 4, broker="broker-b")

    await admin.alter_topic("orders", write_queues=2)

    configs = await admin.topic_configs("orders")
    assert [(c.read_queues, c.write_queues, c.permission) for c in configs.values()] == [(16, 2, 4), (4, 2, 6)]
    assert list(configs) == ["broker-a", "broker-b"]
    with pytest.raises(TopicNotFound, match="topic absent does not exist at broker-a, broker-b"):
        await admin.alter_topic("absent", write_queues=2)
    assert await admin.topic_configs("absent") == {}


async def test_fixed_queues_follow_the_brokers_one_by_one(pair):
    admin = await pair.admin()
    await admin.create_topic("orders", 4, order=True, broker="broker-a")
    await admin.create_topic("orders", 2, order=True, broker="broker-b")
    assert await admin.kv("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4;broker-b:2"

    await admin.alter_topic("orders", write_queues=3, broker="broker-a")
    assert await admin.kv("ORDER_TOPIC_CONFIG", "orders") == "broker-a:3;broker-b:2"
    await admin.alter_topic("orders", order=False)
    assert await admin.kv("ORDER_TOPIC_CONFIG", "orders") is None


async def test_altering_a_group_keeps_what_is_not_named_and_reaches_every_master(pair):
    admin = await pair.admin()
    pair.brokers[0].groups.put(GroupConfig(name="billing", retry_max_times=3, broadcast_enabled=False))

    await admin.alter_group("billing", retries=5)

    configs = await admin.group_configs("billing")
    assert [(c.retry_max_times, c.broadcast_enabled) for c in configs.values()] == [(5, False), (5, False)]
    with pytest.raises(GroupNotFound, match="group absent does not exist"):
        await admin.alter_group("absent", retries=1)


async def test_a_deleted_topic_is_gone_everywhere(cluster, admin):
    await admin.create_topic("orders")
    await admin.delete_topic("orders")
    assert cluster.broker.topics.find("orders") is None
    assert "orders" not in await admin.topics()
    with pytest.raises(TopicNotFound):
        await admin.topic_status("orders")
    with pytest.raises(TopicNotFound):
        await admin.delete_topic("orders")


@pytest.fixture
async def clusters(cluster, tmp_path):
    """A name server with broker-a, and broker-o of the cluster `other`."""
    config = BrokerConfig(tmp_path, "broker-o", cluster="other", port=0, namesrv=(cluster.namesrv,))
    async with Broker(config):
        yield cluster


async def test_a_topic_may_be_deleted_in_one_cluster(clusters):
    admin = await clusters.admin()
    await admin.create_topic("orders", 4, order=True)
    await admin.delete_topic("orders", cluster="other")
    assert list(await admin.topic_configs("orders")) == ["broker-a"]
    assert [each.broker_name for each in (await admin.topic_route("orders")).queues] == ["broker-a"]
    assert await admin.kv("ORDER_TOPIC_CONFIG", "orders") == "broker-a:4"
    with pytest.raises(TopicNotFound, match="topic orders does not exist in cluster other"):
        await admin.delete_topic("orders", cluster="other")
    await admin.delete_topic("orders", cluster="DefaultCluster")
    assert await admin.kv("ORDER_TOPIC_CONFIG", "orders") is None
    assert "orders" not in await admin.topics()


@pytest.mark.parametrize("place", [{"cluster": "other"}, {"broker": "broker-o"}])
async def test_groups_may_be_changed_in_one_cluster_or_at_one_broker(clusters, place):
    admin = await clusters.admin()
    await admin.create_group(GroupConfig(name="g", retry_max_times=3))
    await admin.create_group(GroupConfig(name="g", retry_max_times=4), replace=True, **place)
    await admin.alter_group("g", retry_queues=2, **place)
    configs = await admin.group_configs("g")
    assert [(each.retry_max_times, each.retry_queues) for each in configs.values()] == [(3, 1), (4, 2)]
    assert list(await admin.group_configs("g", **place)) == ["broker-o"]
    await admin.create_topic("%RETRY%g", 1)
    await admin.delete_group("g", **place)
    assert list(await admin.group_configs("g")) == ["broker-a"]
    left = ["broker-a"] if "cluster" in place else ["broker-a", "broker-o"]
    assert list(await admin.topic_configs("%RETRY%g")) == left


async def test_topic_status_shows_bounds_and_last_store_time(cluster, admin):
    producer = await cluster.producer()
    result = await producer.send(Message("orders", b"1"))
    status = await admin.topic_status("orders")
    assert [s.queue.queue_id for s in status] == [0, 1, 2, 3]
    written = status[result.queue.queue_id]
    assert (written.min_offset, written.max_offset, written.last_store_ms) == (0, 1, cluster.clock.now_ms())


async def test_groups_are_created_changed_listed_and_deleted(admin):
    await admin.create_group(GroupConfig(name="g", retry_max_times=3))
    assert {g.name: g.retry_max_times for g in await admin.groups()}["g"] == 3
    await admin.delete_group("g")
    assert "g" not in {g.name for g in await admin.groups()}


async def test_progress_is_what_is_committed_against_what_is_stored(cluster, admin):
    producer = await cluster.producer()
    queue = (await producer.send(Message("orders", b"1"), ordering_key="k")).queue
    await producer.send(Message("orders", b"2"), ordering_key="k")
    await admin.create_group(GroupConfig(name="g"))
    await admin.commit_offset("g", queue, 1)
    [progress] = [p for p in await admin.group_progress("g", "orders") if p.queue == queue]
    assert (progress.broker_offset, progress.consumer_offset, progress.lag) == (2, 1, 1)
    assert await admin.group_progress("unknown") == []


async def test_offsets_without_members_are_reset_at_the_broker(cluster, admin):
    producer = await cluster.producer()
    queue = (await producer.send(Message("orders", b"1"), ordering_key="k")).queue
    await cluster.clock.advance(10)
    await producer.send(Message("orders", b"2"), ordering_key="k")
    assert (await admin.reset_offset("g", "orders", None))[queue] == 2
    assert (await admin.reset_offset("g", "orders", cluster.clock.now_ms()))[queue] == 1
    consumer = await cluster.consumer("g")
    assert await consumer.committed(queue) == 1


@pytest.mark.parametrize("has_master", [True, False])
async def test_a_broker_out_of_reach_or_without_master_is_named_before_a_reset(cluster, admin, has_master):
    producer = await cluster.producer()
    queue = (await producer.send(Message("orders", b"1"))).queue
    registration = BrokerRegistration(topics=TopicConfigTable(topics={"orders": TopicConfig(name="orders")}))
    gone = [BrokerIdentity("DefaultCluster", "gone", broker_id, f"127.0.0.1:{broker_id + 1}") for broker_id in (0, 1)]
    for each in gone:
        cluster.name_server.routes.register(each, registration, now=1e12)
    if not has_master:
        cluster.name_server.routes.unregister(gone[0])
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1|no master of broker gone is registered"):
        await admin.reset_offset("g", "orders", None)
    consumer = await cluster.consumer("g")
    assert await consumer.committed(queue) is None


@pytest.mark.parametrize("is_online", [True, False])
async def test_a_group_that_pops_is_reset(cluster, admin, is_online):
    await admin.create_topic("orders", 1)
    producer = await cluster.producer()
    await producer.send(Message("orders", b"1"))
    first = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    consumer = await cluster.simple_consumer("g", config=first)
    consumer.subscribe("orders")
    await consumer.ack(await consumer.receive(wait_seconds=PATIENCE_SECONDS))
    if not is_online:
        await consumer.close()

    assert list((await admin.reset_offset("g", "orders", -1)).values()) == [0]  # a time in 1969
    if not is_online:
        consumer = await cluster.simple_consumer("g", config=first)
        consumer.subscribe("orders")
    (again,) = await consumer.receive(wait_seconds=PATIENCE_SECONDS)
    await producer.send(Message("orders", b"2"))
    await producer.send(Message("orders", b"3"))
    await admin.reset_offset("g", "orders", None)
    await producer.send(Message("orders", b"4"))
    (behind,) = await consumer.receive(wait_seconds=PATIENCE_SECONDS)

    assert (again.body, behind.body) == (b"1", b"4")


async def test_negative_offsets_are_refused(admin):
    with pytest.raises(UsageError, match="-1 is negative"):
        await admin.commit_offset("g", MessageQueue("t", "b", 0), -1)


async def test_the_cluster_names_its_brokers(pair):
    table = await (await pair.admin()).cluster()
    assert table.clusters == {"DefaultCluster": ["broker-a", "broker-b"]}
    assert table.brokers["broker-b"].addresses == {0: pair.brokers[1].address}


async def test_a_broker_tells_its_state_and_settings(cluster, admin):
    assert (await admin.broker_runtime(cluster.broker.address))["brokerVersionDesc"]
    assert (await admin.broker_config(cluster.broker.address))["brokerName"] == "broker-a"


async def test_a_broker_without_write_permission_leaves_the_routes(pair):
    admin = await pair.admin()
    await admin.create_topic("orders")
    assert await admin.wipe_write_permission("broker-a") > 0
    producer = await pair.producer()
    assert {q.broker_name for q in await producer.queues("orders")} == {"broker-b"}
    assert await admin.add_write_permission("broker-a") > 0
    other = await pair.producer("other")
    assert {q.broker_name for q in await other.queues("orders")} == {"broker-a", "broker-b"}


async def test_values_are_kept_by_namespace_and_key(admin):
    await admin.put_kv("n", "k", "v")
    assert await admin.kv("n", "k") == "v"
    assert await admin.kv_namespace("n") == {"k": "v"}
    await admin.delete_kv("n", "k")
    assert await admin.kv("n", "k") is None
    assert await admin.kv_namespace("other") == {}


async def test_a_message_is_found_by_each_of_its_ids(cluster, admin):
    producer = await cluster.producer()
    sent = await producer.send(Message("orders", b"1"))
    assert (await admin.view(sent.offset_message_id)).body == b"1"
    assert (await admin.view(sent.message_id)).queue == sent.queue
    assert (await admin.view(sent.message_id, "orders")).queue == sent.queue
    assert (await admin.view(sent.offset_message_id, "orders")).body == b"1"


async def test_an_id_of_nothing_says_so(cluster, admin):
    sent = await (await cluster.producer()).send(Message("orders", b"1"))
    beyond = sent.offset_message_id[:-4] + "FFFF"
    with pytest.raises(QueryNotFound, match=f"no message has id {beyond}"):
        await admin.view(beyond)
    with pytest.raises(Unavailable, match=r"points at broker 127\.0\.0\.1:1"):
        await admin.view("7F00000100000001" + "0" * 16)
    with pytest.raises(QueryNotFound, match="no message of any topic has id 'xyz'"):
        await admin.view("xyz")


async def test_messages_are_found_by_key_newest_first(cluster, admin):
    producer = await cluster.producer()
    for n in range(3):
        await producer.send(Message("orders", b"%d" % n, keys=["all", f"k{n}"]))
        await cluster.clock.advance(1)
    assert [m.body for m in await admin.query_by_key("orders", "all")] == [b"2", b"1", b"0"]
    assert [m.body for m in await admin.query_by_key("orders", "all", 2)] == [b"2", b"1"]
    assert [m.body for m in await admin.query_by_key("orders", "k1")] == [b"1"]
    assert await admin.query_by_key("orders", "none") == []


@pytest.mark.parametrize("size", [30, 60_000])
async def test_damaged_messages_are_found_and_marked(cluster, admin, caplog, size):
    producer = await cluster.producer()
    await producer.send(Message("orders", b"sound", keys="k"))
    sent = await producer.send(Message("orders", b"b" * size, keys="k"))
    while not cluster.broker.store.index_step(1.0):
        pass
    (path,) = (cluster.broker.config.data / "commitlog").iterdir()
    with path.open("r+b") as file:
        place = int(sent.offset_message_id[-16:], 16) + 88 + 20
        file.seek(place)
        (found,) = file.read(1)
        file.seek(place)
        file.write(bytes([found ^ 1]))

    assert [m.is_damaged for m in await admin.query_by_key("orders", "k")] == [True, False]
    assert (await admin.view(sent.message_id, "orders")).is_damaged
    assert (await admin.view(sent.offset_message_id)).is_damaged
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(told) == 3 and all(sent.message_id in text and "checksum" in text for text in told)


async def test_a_delayed_message_is_found_by_key_and_id_once_it_is_there(cluster, admin):
    producer = await cluster.producer()
    sent = await producer.send(Message("orders", b"1", keys="k", delay=10))
    assert await admin.query_by_key("orders", "k") == []
    await cluster.clock.advance(10)
    (found,) = await admin.query_by_key("orders", "k")
    assert (found.body, found.message_id) == (b"1", sent.message_id)
    assert (await admin.view(sent.message_id, "orders")).queue_offset == found.queue_offset == 0


async def test_a_transaction_s_message_is_found_by_key_and_id_once_it_is_committed(cluster, admin):
    async with AsyncTransactionProducer("p", cluster.namesrv, check=lambda _: Decision.UNKNOWN) as producer:
        committed = await producer.send_half(Message("orders", b"1", keys="k"))
        rolled_back = await producer.send_half(Message("orders", b"2", keys="k"))
        assert await admin.query_by_key("orders", "k") == []
        await producer.end(committed, Decision.COMMIT)
        await producer.end(rolled_back, Decision.ROLLBACK)
    assert [message.body for message in await admin.query_by_key("orders", "k")] == [b"1"]
    assert (await admin.view(committed.message_id, "orders")).body == b"1"
    with pytest.raises(MQError):
        await admin.view(rolled_back.message_id, "orders")


async def test_without_a_broker_the_name_server_is_named():
    async with Cluster(brokers=0) as cluster:
        admin = await cluster.admin()
        with pytest.raises(Unavailable, match=f"no broker is registered at name server {cluster.namesrv}"):
            await admin.create_topic("orders")


async def test_without_a_master_the_slaves_are_named(tmp_path):
    async with Cluster(brokers=0) as cluster:
        config = BrokerConfig(tmp_path, port=0, namesrv=(cluster.namesrv,), role=ConfiguredRole.SLAVE, broker_id=1)
        async with Broker(config):
            admin = await cluster.admin()
            with pytest.raises(Unavailable, match=r"no master is registered at .*, only slaves of broker-a"):
                await admin.create_topic("orders")


async def test_an_admin_that_is_not_running_says_so(cluster):
    admin = AsyncAdmin(cluster.namesrv)
    with pytest.raises(NotRunning):
        await admin.topics()
    async with admin:
        pass
    with pytest.raises(NotRunning):
        await admin.cluster()


async def test_starting_with_nothing_listening_fails():
    with pytest.raises(NoNameServer):
        await AsyncAdmin("127.0.0.1:1").start()
