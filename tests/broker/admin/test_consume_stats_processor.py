"""How far groups are in topics."""

import pytest

from pyromq.broker.broker import Broker
from pyromq.message import MessageQueue
from pyromq.net.slow_replies import SLICE_SECONDS
from pyromq.remoting.bodies import GroupConfig, encode_body
from pyromq.remoting.headers import (
    BrokerConsumeStatistics,
    ConsumeStatistics,
    ConsumeTimeSpan,
    MaxOffset,
    SaveGroup,
    TopicConsumers,
    TopicStatistics,
    UpdateConsumerOffset,
)
from pyromq.testing import FakeClock


def queue(queue_id, topic="orders"):
    return MessageQueue(topic, "broker-a", queue_id)


async def commit(caller, offset, *, group="g", topic="orders", queue_id=0):
    header = UpdateConsumerOffset(consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset)
    await caller.ask(header)


async def test_topic_statistics_list_every_queue_with_bounds_and_last_time(caller, clock):
    await caller.create_topic("orders", queues=2)
    await caller.send("orders", queue_id=1)
    await clock.advance(5)
    await caller.send("orders", queue_id=1)
    queues = (await caller.body(TopicStatistics(topic="orders"))).queues
    assert set(queues) == {queue(0), queue(1)}
    assert (queues[queue(0)].max_offset, queues[queue(0)].last_update_ms) == (0, 0)
    assert (queues[queue(1)].min_offset, queues[queue(1)].max_offset) == (0, 2)
    assert queues[queue(1)].last_update_ms == clock.now_ms()


async def test_statistics_of_an_unknown_topic_are_refused(caller):
    assert (await caller.ask(TopicStatistics(topic="nothing"), code=17)).remark == "topic[nothing] not exist"
    assert (await caller.ask(ConsumeTimeSpan(topic="nothing", group="g"), code=17)).code == 17


async def test_consume_statistics_put_offsets_beside_ends(caller, clock):
    sent_ms = clock.now_ms()
    await caller.send("orders")
    await clock.advance(5)
    await caller.send("orders")
    await commit(caller, 1)
    stats = await caller.body(ConsumeStatistics(consumer_group="g"))
    first = stats.queues[queue(0)]
    assert (first.broker_offset, first.consumer_offset, first.last_ms) == (2, 1, sent_ms)
    assert len(stats.queues) == 4


async def test_consume_statistics_of_an_unknown_group_are_empty(caller):
    assert (await caller.body(ConsumeStatistics(consumer_group="nobody"))).queues == {}


async def test_a_topic_that_a_connected_group_has_left_does_not_count(caller):
    await caller.send("orders")
    await caller.send("left")
    await commit(caller, 0)
    await commit(caller, 0, topic="left")
    await caller.beat("one", group="g", topics=("orders",))
    stats = await caller.body(ConsumeStatistics(consumer_group="g"))
    assert {q.topic for q in stats.queues} == {"orders"}
    asked = await caller.body(ConsumeStatistics(consumer_group="g", topic="left"))
    assert asked.queues == {}


async def test_statistics_of_all_groups_sum_up_the_lag(caller, broker):
    broker.groups.put(GroupConfig(name="g"))
    for _ in range(3):
        await caller.send("orders")
    await commit(caller, 1)
    stats = await caller.body(BrokerConsumeStatistics())
    listed = {group: stats for entry in stats.groups for group, stats in entry.items()}
    assert listed["TOOLS_CONSUMER"] == []
    assert listed["g"][0].queues[queue(0)].consumer_offset == 1
    assert (stats.total_lag, stats.broker_address) == (2, broker.address)
    ordered = await caller.body(BrokerConsumeStatistics(order=True))
    assert ordered.total_lag == 0


async def test_time_spans_tell_first_last_consumed_and_delay(caller, clock):
    first_ms = clock.now_ms()
    for _ in range(3):
        await caller.send("orders")
        await clock.advance(10)
    await commit(caller, 1)
    spans = (await caller.body(ConsumeTimeSpan(topic="orders", group="g"))).spans
    span = next(span for span in spans if span.queue.queue_id == 0)
    assert (span.min_ms, span.consumed_ms, span.max_ms) == (first_ms, first_ms, first_ms + 20_000)
    assert span.delay_ms == 20_000
    assert span.min_text.endswith(f":{first_ms % 1000:03d}")
    assert len(spans) == 4


async def test_consumers_of_a_topic_are_connected_or_have_offsets(caller):
    await caller.create_topic("orders")
    await caller.create_topic("more")
    await caller.beat("one", group="connected", topics=("orders",))
    await commit(caller, 1, group="stored")
    await commit(caller, 1, group="other", topic="more")
    assert (await caller.body(TopicConsumers(topic="orders"))).groups == ["connected", "stored"]
    assert (await caller.body(TopicConsumers(topic="nothing"))).groups == []


class Ticking(FakeClock):
    """A clock on which every look takes the time of a slice."""

    def monotonic(self):
        self._move_to(self._seconds + SLICE_SECONDS)
        return super().monotonic()


@pytest.mark.parametrize(
    "header",
    [
        TopicStatistics(topic="orders"),
        ConsumeStatistics(consumer_group="g"),
        BrokerConsumeStatistics(),
        ConsumeTimeSpan(topic="orders", group="g"),
    ],
    ids=["topic", "group", "all groups", "times"],
)
async def test_while_statistics_of_many_queues_are_collected_others_are_served(config, caller_to, header):
    async with Broker(config, Ticking()) as broker:
        asking, other = await caller_to(broker), await caller_to(broker)
        await asking.create_topic("orders", queues=100)
        await asking.ask(SaveGroup(), encode_body(GroupConfig(name="g")))
        await commit(asking, 0)
        answered = asking.channel.call_soon(header, timeout=20)
        await other.ask(MaxOffset(topic="orders", queue_id=0))
        assert not answered.done()
        (await answered).check()
