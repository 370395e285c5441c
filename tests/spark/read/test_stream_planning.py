"""What a stream's driver decides, against a real broker; without Spark."""

import asyncio
import json
import uuid

import pytest
from tests.waiting import wait_until

from pyromq import Admin, AsyncAdmin, Message, Producer
from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.options import STREAM
from pyromq.spark.read.bounds import DataLoss
from pyromq.spark.read.plan import share
from pyromq.spark.read.range_reader import client_of
from pyromq.spark.read.stream_offset import StreamOffset, read_stream_offset
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.testing import Cluster, FakeClock


class Topic:
    """A topic of two queues that a test fills."""

    def __init__(self, namesrv, producer):
        self.name = f"stream-{uuid.uuid4().hex[:8]}"
        self.namesrv = namesrv
        self.producer = producer
        self.create(2)

    def create(self, queues):
        with Admin(self.namesrv) as admin:
            admin.create_topic(self.name, queues, replace=True)

    def delete(self):
        with Admin(self.namesrv) as admin:
            admin.delete_topic(self.name)

    def send(self, count, queue=0):
        place = MessageQueue(self.name, "broker-a", queue)
        for future in [self.producer.send_soon(Message(self.name, b"x" * 100), queue=place) for _ in range(count)]:
            future.result()

    def planning(self, clock=None, **options):
        given = {"namesrvAddr": self.namesrv, "subscribe": self.name, "startingOffsets": "earliest"} | options
        checked = read_options(given, STREAM)
        return StreamPlanning(checked, client_of(checked), clock or FakeClock())

    def at(self, offset):
        return [offset.positions.get(MessageQueue(self.name, "broker-a", number)) for number in range(3)]

    def ranges(self, planning, start, end):
        return [(r.queue.queue_id, r.start, r.end) for r in planning.ranges(start, end) if len(r)]


@pytest.fixture(scope="module")
def producer(namesrv):
    with Producer("stream-test", namesrv) as producer:
        yield producer


@pytest.fixture
def topic(namesrv, producer):
    return Topic(namesrv, producer)


def test_a_batch_goes_from_the_last_end_to_what_is_there(topic):
    topic.send(5)
    planning = topic.planning()
    start = planning.first()
    end = planning.next(start)
    assert (topic.at(start), topic.at(end)) == ([0, 0, None], [5, 0, None])
    assert topic.ranges(planning, start, end) == [(0, 0, 5)]
    assert planning.next(end) == end


def test_a_stream_begins_at_the_end_unless_told_otherwise(topic):
    topic.send(5)
    options = read_options({"namesrvAddr": topic.namesrv, "subscribe": topic.name}, STREAM)
    assert topic.at(StreamPlanning(options, client_of(options), FakeClock()).first()) == [5, 0, None]


@pytest.mark.parametrize("place", ["latest", "table"])
def test_a_restart_before_the_first_message_continues_at_the_end_of_the_first_run(topic, place):
    topic.send(5)
    ends = json.dumps({topic.name: {"broker-a": {"0": -1}}})
    options = {"startingOffsets": ends if place == "table" else place}
    begin = topic.planning(**options).first()
    saved = topic.planning(**options).next(begin)
    assert saved != begin  # Spark plans a micro-batch without rows, which saves the offsets
    topic.send(2)
    assert topic.ranges(topic.planning(**options), saved, topic.planning(**options).next(saved)) == [(0, 5, 7)]


def test_offsets_are_the_same_text_whatever_the_order_they_were_found_in(topic):
    topic.send(3)
    start = topic.planning().first()
    end = topic.planning().next(start)
    backwards = StreamOffset(dict(reversed(end.positions.items())), end.marks, end.began)
    assert json.dumps(backwards.as_json()) == json.dumps(end.as_json())
    assert read_stream_offset(json.loads(json.dumps(end.as_json()))) == end
    assert read_stream_offset(json.loads(json.dumps(start.as_json()))) == start


def test_rows_of_a_batch_are_shared_by_backlog(topic):
    topic.send(30, queue=0)
    topic.send(10, queue=1)
    planning = topic.planning(maxOffsetsPerTrigger="8")
    start = planning.first()
    assert topic.at(planning.next(start)) == [6, 2, None]
    assert topic.at(planning.next(start, limited=False)) == [30, 10, None]


def test_bytes_of_a_batch_count_by_the_mean_size(topic):
    topic.send(100)
    planning = topic.planning(maxBytesPerTrigger="10000")
    (end, *_) = topic.at(planning.next(planning.first()))
    assert 30 < end < 60  # 100 bytes of body, as much again of the record


def test_a_batch_waits_for_rows_but_not_for_ever(topic):
    topic.send(3)
    clock = FakeClock()
    planning = topic.planning(clock, maxTriggerDelay="5s", minOffsetsPerTrigger="4")
    start = planning.first()
    assert planning.next(start) == start
    asyncio.run(clock.advance(5))
    assert topic.at(planning.next(start)) == [3, 0, None]


def test_a_run_over_what_is_available_ends_where_it_was_when_it_began(topic):
    topic.send(5)
    planning = topic.planning(maxOffsetsPerTrigger="3", minOffsetsPerTrigger="3")
    start = planning.first()
    planning.end_here()
    middle = planning.next(start)
    topic.send(5)
    end = planning.next(middle)
    assert (topic.at(middle), topic.at(end)) == ([3, 0, None], [5, 0, None])
    assert planning.next(end) == end


def test_a_run_over_what_is_available_leaves_queues_that_came_later_to_the_next_run(topic):
    topic.send(5)
    planning = topic.planning()
    start = planning.first()
    planning.end_here()
    end = planning.next(start)
    topic.create(3)
    topic.send(4, queue=2)
    later = []

    def is_noticed():
        later.append(planning.next(end))
        return MessageQueue(topic.name, "broker-a", 2) in planning.latest().positions

    wait_until(is_noticed)  # the client keeps routes for 0.2 s
    assert topic.ranges(planning, end, later[-1]) == []


@pytest.mark.parametrize(("policy", "begin"), [("earliest", 0), ("latest", 4)])
def test_a_new_queue_is_noticed(topic, policy, begin):
    start = topic.planning().first()
    topic.create(3)
    topic.send(4, queue=2)
    planning = topic.planning(newQueues=policy, pullTimeoutMs="4000")  # another client: routes are kept for 0.2 s
    end = planning.next(start)
    assert topic.at(end)[2] == 4
    assert topic.ranges(planning, start, end) == ([(2, 0, 4)] if begin == 0 else [])
    topic.send(1, queue=2)
    assert topic.ranges(planning, end, planning.next(end)) == [(2, 4, 5)]


@pytest.mark.parametrize("sent", [2, 9])
def test_a_topic_created_again_is_noticed_however_much_it_holds_by_then(topic, sent):
    topic.send(5)
    planning = topic.planning()
    end = planning.next(planning.first())
    topic.delete()
    topic.create(2)
    topic.send(sent)
    with pytest.raises(DataLoss, match=r"was deleted and created again.*failOnDataLoss"):
        topic.planning().next(end)


@pytest.mark.parametrize("sent", [0, 2, 9])
def test_a_topic_created_again_is_read_from_its_beginning_where_loss_is_allowed(topic, sent):
    topic.send(5)
    planning = topic.planning(failOnDataLoss="false")
    old = planning.next(planning.first())
    topic.delete()
    topic.create(2)
    topic.send(sent)
    end = planning.next(old)
    assert topic.ranges(planning, old, end) == ([(0, 0, sent)] if sent else [])
    assert planning.next(end) == end
    topic.send(1)
    assert topic.ranges(planning, end, planning.next(end)) == [(0, sent, sent + 1)]


def test_an_offset_behind_the_end_is_named(topic):
    topic.send(5)
    planning = topic.planning()
    start = StreamOffset({queue: 50 for queue in planning.first().positions})
    with pytest.raises(DataLoss, match=r"queue 0 of topic .* was read to 50, but ends at 5"):
        planning.next(start)


def test_an_offset_behind_the_end_takes_no_share_of_a_batch_where_loss_is_allowed(topic):
    topic.send(5)
    topic.send(30, queue=1)
    planning = topic.planning(failOnDataLoss="false", maxOffsetsPerTrigger="8")
    first, second = sorted(planning.first().positions)
    start = StreamOffset({first: 50, second: 0})
    end = planning.next(start)
    assert topic.at(end) == [5, 8, None]
    assert topic.ranges(planning, start, end) == [(1, 0, 8)]


def test_a_queue_that_is_gone_is_named(topic):
    planning = topic.planning()
    start = StreamOffset(planning.first().positions | {MessageQueue(topic.name, "broker-a", 9): 7})
    with pytest.raises(DataLoss, match=r"queue 9 of topic .* no longer exists; it was read to 7"):
        planning.next(start)


def test_queues_of_a_broker_that_is_away_wait(topic):
    planning = topic.planning()
    away = MessageQueue(topic.name, "broker-b", 0)
    start = StreamOffset(planning.first().positions | {away: 7})
    topic.send(2)
    assert planning.next(start).positions[away] == 7


def test_a_checkpoint_of_another_topic_is_named(topic):
    with pytest.raises(UsageError, match="the checkpoint is of topic other"):
        topic.planning().next(StreamOffset({MessageQueue("other", "broker-a", 0): 1}))


@pytest.mark.parametrize("loss", ["true", "false"])
def test_a_queue_of_the_checkpoint_that_is_not_assigned_is_named(topic, loss):
    start = topic.planning().first()
    options = read_options(
        {
            "namesrvAddr": topic.namesrv,
            "assign": json.dumps({topic.name: {"broker-a": [0]}}),
            "failOnDataLoss": loss,
        },
        STREAM,
    )
    with pytest.raises(UsageError, match=r"the checkpoint has queue 1 of topic .*, which option assign does not name"):
        StreamPlanning(options, client_of(options), FakeClock()).next(start)


def test_a_checkpoint_of_another_version_is_named():
    with pytest.raises(UsageError, match="not of version 1"):
        read_stream_offset({"v": 2})


class TestCommits:
    """What `pyromq group show` sees of a query."""

    def lag(self, topic, group):
        with Admin(topic.namesrv) as admin:
            return sum(each.lag for each in admin.group_progress(group))

    def test_offsets_are_stored_under_the_groups_name_now_and_then(self, topic):
        topic.send(5)
        clock = FakeClock()
        planning = topic.planning(clock, group=topic.name, commitInterval="5s")
        start = planning.first()
        planning.commit(start)
        end = planning.next(start)
        planning.commit(end)
        assert self.lag(topic, topic.name) == 5
        asyncio.run(clock.advance(5))
        planning.commit(end)
        assert self.lag(topic, topic.name) == 0

    def test_the_end_of_a_run_is_stored_at_once(self, topic):
        topic.send(5)
        planning = topic.planning(group=topic.name)
        planning.commit(planning.first())
        planning.commit(planning.next(planning.first()), last=True)
        assert self.lag(topic, topic.name) == 0

    def test_without_a_group_nothing_is_stored(self, topic):
        topic.send(5)
        planning = topic.planning()
        planning.commit(planning.next(planning.first()), last=True)
        assert self.lag(topic, "pyromq-spark") == 0

    def test_what_cannot_be_stored_does_not_end_the_query(self, topic, caplog):
        planning = topic.planning(group="g", commitOffsets="true")
        planning.commit(StreamOffset({MessageQueue("nowhere", "broker-a", 0): 1}), last=True)
        assert "offsets of group g are not committed yet" in caplog.text

    def test_what_cannot_be_stored_is_stored_by_the_next_commit(self, topic, namesrv, producer, caplog):
        name = f"later-{topic.name}"
        planning = topic.planning(group=topic.name)
        offset = StreamOffset({MessageQueue(name, "broker-a", 0): 1})
        planning.commit(offset, last=True)
        assert "are not committed yet" in caplog.text
        with Admin(namesrv) as admin:
            admin.create_topic(name, 1)
        for _ in range(3):
            producer.send(Message(name, b"1"))
        planning.commit(offset, last=True)
        assert self.lag(topic, topic.name) == 2


@pytest.mark.parametrize(
    ("backlogs", "limit", "shares"),
    [
        ([30, 10], 8, [6, 2]),
        ([5, 5], 100, [5, 5]),
        ([1000, 1], 10, [9, 1]),
        ([10, 10, 10], 2, [1, 1, 0]),
        ([0, 7], 3, [0, 3]),
    ],
)
def test_shares_of_backlogs(backlogs, limit, shares):
    queues = [MessageQueue("t", "b", number) for number in range(len(backlogs))]
    found = share(dict(zip(queues, backlogs, strict=True)), limit)
    assert [found.get(queue, 0) for queue in queues] == shares


async def test_an_idle_stream_holds_one_connection_at_each_broker():
    async with Cluster(2) as cluster:
        async with AsyncAdmin(cluster.namesrv) as admin:
            await admin.create_topic("orders", 4)
        options = read_options({"namesrvAddr": cluster.namesrv, "subscribe": "orders", "group": "job"}, STREAM)
        before = [set(broker._server.sessions) for broker in cluster.brokers]
        client = await asyncio.to_thread(idling, options)
        found = [broker._server.sessions - old for broker, old in zip(cluster.brokers, before, strict=True)]
        await asyncio.to_thread(client.close)
        assert [len(sessions) for sessions in found] == [1, 1]


def idling(options):
    """Plan as Spark does when nothing comes; return the client, which keeps its connections."""
    client = QueueReader(options.group, options.namesrv)
    client.start()
    planning = StreamPlanning(options, client, FakeClock())
    at = planning.next(planning.first())
    for _ in range(5):
        assert planning.next(at) == at
        planning.commit(at)
    return client
