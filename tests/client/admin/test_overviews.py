"""All topics and groups at a glance, and what tools export."""

import pytest

from pyromq.client.admin.async_admin import AsyncAdmin
from pyromq.errors import ConsumerNotOnline, QueryNotFound, TopicNotFound, Unavailable
from pyromq.message import Message, MessageQueue
from pyromq.net.channel import connect
from pyromq.remoting.bodies import BrokerRegistration, GroupConfig, encode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import RegisterBroker


@pytest.fixture
async def admin(pair):
    admin = await pair.admin()
    await admin.create_topic("orders", 2)
    return admin


@pytest.fixture
async def filled(pair, admin):
    """Six messages at two brokers, of which a group has consumed those of one, ten seconds ago."""
    producer = await pair.producer()
    for number in range(6):
        await producer.send(Message("orders", b"%d" % number))
    for each in await admin.topic_status("orders"):
        offset = each.max_offset if each.queue.broker_name == "broker-a" else 0
        await admin.create_group(GroupConfig(name="readers"), replace=True)
        await admin.commit_offset("readers", each.queue, offset)
    await pair.clock.advance(10)
    return admin


async def test_topics_are_added_up_over_brokers(pair, filled):
    counts = []
    topics = {each.topic: each for each in await filled.overviews.topics(shown=counts.append)}

    found = topics["orders"]
    assert (found.brokers, found.queues, found.messages) == (["broker-a", "broker-b"], 4, 6)
    assert found.last_store_ms == pair.clock.now_ms() - 10_000
    assert counts == list(range(1, len(topics) + 1))
    assert topics["broker-a"].last_store_ms == 0


async def test_groups_show_lag_and_how_old_the_oldest_message_is_that_is_not_consumed(filled):
    found = {each.group: each for each in await filled.overviews.groups()}["readers"]

    at_b = [each for each in await filled.topic_status("orders") if each.queue.broker_name == "broker-b"]
    assert (found.members, found.lag) == (0, sum(each.max_offset for each in at_b))
    assert found.delay_seconds == 10


async def test_groups_without_lag_have_no_delay(pair, filled):
    consumer = await pair.consumer("others")
    await consumer.assign(await consumer.queues("orders"))
    found = {each.group: each for each in await filled.overviews.groups()}["others"]
    assert (found.members, found.lag, found.delay_seconds) == (1, 0, 0)


async def test_rates_are_those_of_each_group_of_a_topic(filled):
    (found,) = await filled.overviews.rates("orders")
    at_b = [each for each in await filled.topic_status("orders") if each.queue.broker_name == "broker-b"]
    assert (found.group, found.lag) == ("readers", sum(each.max_offset for each in at_b))
    rows = await filled.overviews.rates()
    assert [row.group for row in rows if row.topic == "broker-a"] == [None]
    with pytest.raises(TopicNotFound):
        await filled.overviews.rates("nothing")


async def test_offsets_are_cloned(filled):
    cloned = await filled.clone_offsets("readers", "copies", "orders")

    assert sorted(cloned) == [each.queue for each in await filled.topic_status("orders")]
    progress = await filled.group_progress("copies", "orders")
    assert {each.queue: each.consumer_offset for each in progress} == cloned


async def test_queues_are_allocated_as_members_would(filled):
    found = await filled.allocation("orders", ["b", "a", "c"])
    assert {member: len(queues) for member, queues in found.items()} == {"a": 2, "b": 1, "c": 1}


async def test_entries_and_messages_are_found_by_place(filled):
    status = next(each for each in await filled.topic_status("orders") if each.max_offset)
    entries = await filled.queue_entries(status.queue, 0, 5)
    assert (entries.min_index, entries.max_index, len(entries.entries)) == (0, status.max_offset, status.max_offset)
    assert (await filled.view_at(status.queue, 0)).queue_offset == 0


async def test_exports_have_the_form_of_mqadmin_s(pair, filled):
    settings = await filled.exports.settings("DefaultCluster")
    assert settings["clusterScale"] == {"namesrvSize": 1, "masterBrokerSize": 2, "slaveBrokerSize": 0}
    assert settings["brokerConfigs"]["broker-a"]["useTLS"] == "false"
    assert len(settings["brokerConfigs"]["broker-a"]) == 16

    metadata = await filled.exports.metadata()
    assert metadata["topicConfigTable"]["orders"]["writeQueueNums"] == 4
    assert metadata["subscriptionGroupTable"]["readers"]["retryQueueNums"] == 2
    assert "TBW102" not in metadata["topicConfigTable"]

    metrics = await filled.exports.metrics()
    assert set(metrics["evaluateReport"]) == {"broker-a", "broker-b"}
    assert set(metrics["totalData"]["totalTps"]) == {
        *("totalNormalInTps", "totalNormalOutTps", "totalTransInTps", "totalScheduleInTps")
    }
    assert metrics["evaluateReport"]["broker-a"]["runtimeQuota"]["groupSize"] >= 1


async def test_a_place_without_a_message_is_named(filled):
    with pytest.raises(QueryNotFound, match="no message at offset 99"):
        await filled.view_at(MessageQueue("orders", "broker-a", 0), 99)


async def test_figures_of_a_broker_come_in_one_answer(pair, filled):
    table = await filled.overviews.figures((await filled.cluster()).brokers["broker-b"].addresses[0])

    orders = next(each for each in table.topics if each.name == "orders")
    readers = next(each for each in table.groups if each.name == "readers")
    assert (orders.messages, readers.topics[0].lag, readers.topics[0].delay_ms) == (orders.sent, orders.sent, 10_000)


async def test_figures_of_a_broker_that_knows_no_such_question_are_put_together(pair, filled):
    address = (await filled.cluster()).brokers["broker-b"].addresses[0]
    known = await filled.overviews.figures(address)
    # Both forms are asked at the same broker, of which one is what a broker of RocketMQ would be asked.
    table = await filled.overviews._figures_one_by_one(address)

    assert [(each.name, each.messages) for each in table.topics] == [(e.name, e.messages) for e in known.topics]
    listed = {each.name for each in table.groups}
    assert [(g.name, [t.lag for t in g.topics]) for g in table.groups] == [
        (g.name, [t.lag for t in g.topics]) for g in known.groups if g.name in listed
    ]


@pytest.fixture
async def silent_broker(cluster):
    """Register a broker at a port where nothing listens, beside a running one."""
    channel = await connect(cluster.namesrv, Dispatcher(), cluster.clock)
    registration = RegisterBroker(broker_name="gone", broker_address="127.0.0.1:1", cluster="c", broker_id=0)
    (await channel.call(registration, encode_body(BrokerRegistration()), timeout=30)).check()
    yield
    await channel.close()


async def test_what_is_listed_goes_without_a_broker_out_of_reach_which_is_named_once(cluster, silent_broker, caplog):
    async with AsyncAdmin(cluster.namesrv) as admin:
        await admin.create_topic("orders", broker="broker-a")
        assert "orders" in [each.topic for each in await admin.overviews.topics()]
        assert await admin.overviews.rates("orders")
        assert "TOOLS_CONSUMER" in [each.group for each in await admin.overviews.groups()]
        assert await admin.groups()
        assert await admin.members.groups_of_topic("orders") == []
        assert await admin.delay_levels.all()
        with pytest.raises(ConsumerNotOnline):
            await admin.consumer_connection("g")
        assert await admin.group_progress("g", partial=True) == []
    assert [record.message for record in caplog.records if "is left out" in record.message] == [
        "broker 127.0.0.1:1 is left out, it cannot be reached: 127.0.0.1:1 refuses connections: nothing listens there"
    ]


async def test_a_broker_out_of_reach_is_asked_again_after_a_while(cluster, silent_broker, caplog):
    async with AsyncAdmin(cluster.namesrv, clock=cluster.clock) as admin:
        asked = []

        async def ask(address):
            asked.append(address)
            if address == "127.0.0.1:1" and asked.count(address) < 3:
                raise Unavailable("it hangs")
            return address

        masters = (await admin._cluster.masters()).values()
        for _ in range(2):
            assert "127.0.0.1:1" not in await admin._cluster.ask_reachable(masters, ask)
        assert asked.count("127.0.0.1:1") == 1
        await cluster.clock.advance(11)
        assert "127.0.0.1:1" not in await admin._cluster.ask_reachable(masters, ask)
        await cluster.clock.advance(11)
        assert "127.0.0.1:1" in await admin._cluster.ask_reachable(masters, ask)
        with pytest.raises(Unavailable, match="it hangs"):
            await admin._cluster.ask_reachable(["127.0.0.1:2"], lambda address: hang())
    assert len([record for record in caplog.records if "127.0.0.1:1 is left out" in record.message]) == 1


async def hang():
    raise Unavailable("it hangs")


async def test_what_is_changed_everywhere_is_refused_where_a_broker_is_out_of_reach(cluster, silent_broker):
    async with AsyncAdmin(cluster.namesrv) as admin:
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1"):
            await admin.alter_group("TOOLS_CONSUMER", retries=3)
        assert (await admin.group_configs("TOOLS_CONSUMER"))["broker-a"].retry_max_times == 16
