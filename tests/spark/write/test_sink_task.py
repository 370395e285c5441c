"""What a task of a write does, against a real broker and without Spark: rows arrive, once or at least once."""

import asyncio
from dataclasses import replace
from itertools import count
from uuid import uuid4

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from tests.waiting import wait_until

from pyromq import Admin, PullConsumer
from pyromq.clock import SystemClock
from pyromq.errors import BatchDecided, BatchIncomplete, MessageRefused, TopicNotFound, Unavailable, UsageError
from pyromq.message import MessageQueue
from pyromq.spark.given_options import sink_options
from pyromq.spark.write.sink_task import SinkTask, TaskName
from pyromq.spark.write.writer import abort_reports, commit_reports, sink_client, wait_until_visible
from pyromq.testing import Cluster

names = count()


@pytest.fixture
def topic(namesrv):
    name = f"sink-{next(names)}"
    with Admin(namesrv) as admin:
        admin.create_topic(name, 4)
    return name


@pytest.fixture
def seen(namesrv):
    """Return all messages of a topic that can be seen."""
    with PullConsumer("sink-check", namesrv) as consumer:

        def read(topic):
            found = []
            for queue in consumer.queues(topic):
                offset = consumer.min_offset(queue)
                while offset < consumer.max_offset(queue):
                    result = consumer.pull(queue, offset, 32)
                    found += result.messages
                    offset = result.next_offset
            return found

        yield read


def options_of(namesrv, topic, **given):
    return sink_options({"namesrvAddr": namesrv, "topic": topic} | given)


def batch(*bodies, **columns):
    return pa.RecordBatch.from_pydict({"body": list(bodies)} | columns)


def run(options, *batches, write=None, partition=0):
    client = sink_client(options)
    return SinkTask(client, options, TaskName(write or uuid4().hex, partition)).write(iter(batches))


def bodies(messages):
    return sorted(message.body for message in messages)


def test_every_row_is_acknowledged_when_a_task_returns(namesrv, topic, seen):
    report = run(options_of(namesrv, topic), batch("1", "2"), batch("3"))
    assert bodies(seen(topic)) == [b"1", b"2", b"3"]
    assert (report.rows, report.bytes, sum(each.messages for each in report.queues.values())) == (3, 3, 3)
    (queue,) = report.queues
    assert (queue.topic, report.queues[queue].first_offset, report.queues[queue].last_offset) == (topic, 0, 2)


def test_rows_of_a_queue_stay_in_order_over_many_runs(namesrv, topic, seen):
    rows = [f"{number:05}" + "x" * 500 for number in range(3000)]
    run(options_of(namesrv, topic, sendBatchBytes="64k"), batch(*rows, shardingKey=["k"] * 3000))
    assert [message.body.decode() for message in seen(topic)] == rows


def test_idempotent_rows_have_the_same_ids_when_a_task_is_repeated(namesrv, topic, seen):
    options = options_of(namesrv, topic, delivery="idempotent")
    for _ in range(2):
        run(options, batch("1", "2"), write="job", partition=1)
    run(options, batch("1"), write="job", partition=2)
    ids = [message.message_id for message in seen(topic)]
    assert (len(ids), len(set(ids))) == (5, 3)


def test_rows_may_bring_their_ids(namesrv, topic, seen):
    run(options_of(namesrv, topic), batch("1", "2", uniqKey=["A" * 32, "orders@a:0:7"]))
    ids = {message.body: message.message_id for message in seen(topic)}
    assert ids[b"1"] == "A" * 32
    assert len(ids[b"2"]) == 32


def test_exactly_once_rows_are_seen_with_the_commit(namesrv, topic, seen):
    options = options_of(namesrv, topic, delivery="exactlyOnce")
    client = sink_client(options)
    lost = run(options, batch("lost"), write=topic)
    report = run(options, batch("1", "2"), write=topic)
    assert seen(topic) == []
    assert lost.result.token != report.result.token
    client.commit(topic, [report.result])
    assert run(options, batch("1", "2"), write=topic).skipped
    while not client.lookup(topic).visible:
        pass
    assert bodies(seen(topic)) == [b"1", b"2"]


def test_a_decision_while_a_task_sends_makes_it_skip(namesrv, topic, seen):
    options = options_of(namesrv, topic, delivery="exactlyOnce", sendBatchBytes="1k")
    client = sink_client(options)

    def batches():
        yield batch("1" * 2000)
        client.commit(topic, [run(options, batch("3"), write=topic).result])
        yield batch("2" * 2000)

    report = SinkTask(client, options, TaskName(topic, 0)).write(batches())
    assert (report.skipped, report.given) == (True, 2)
    while not client.lookup(topic).visible:
        pass
    assert bodies(seen(topic)) == [b"3"]


def test_a_writer_whose_rows_lose_fails(namesrv, topic, seen):
    options = options_of(namesrv, topic, delivery="exactlyOnce")
    ours, others = (run(options, batch("1", "2"), write=topic) for _ in range(2))
    commit_reports(options, [others])
    with pytest.raises(BatchDecided, match=f"{topic} was decided for another writer while this one sent its rows"):
        commit_reports(options, [ours])
    commit_reports(options, [others])  # its own commit again
    commit_reports(options, [run(options, batch("1", "2"), write=topic)])
    with pytest.raises(BatchDecided, match=f"{topic} is decided, with 2 rows, and now has 3"):
        commit_reports(options, [run(options, batch("1", "2", "3"), write=topic)])
    assert bodies(seen(topic)) == [b"1", b"2"]


def test_a_repeated_write_with_dropped_null_bodies_is_skipped(namesrv, topic, seen):
    options = options_of(namesrv, topic, delivery="exactlyOnce", nullBody="drop")
    for _ in range(2):
        commit_reports(options, [run(options, batch("1", None, "2"), write=topic)])
    assert bodies(seen(topic)) == [b"1", b"2"]


def test_an_aborted_write_is_rolled_back_unless_it_was_committed(namesrv, topic, seen):
    options = options_of(namesrv, topic, delivery="exactlyOnce")
    lost = run(options, batch("lost"), write=topic)
    abort_reports(options, [lost])
    with pytest.raises(BatchIncomplete, match="has 0 messages here, not the 1"):
        commit_reports(options, [lost])
    report = run(options, batch("1"), write=topic)
    commit_reports(options, [report])
    abort_reports(options, [report])  # Spark does so if it does not see the commit's end
    assert bodies(seen(topic)) == [b"1"]


@pytest.mark.parametrize("delivery", ["atLeastOnce", "exactlyOnce"])
def test_too_large_rows_fail_or_are_dropped_or_kept_apart(namesrv, topic, seen, delivery):
    large = {"maxMessageBytes": "10k", "sendBatchBytes": "8k", "delivery": delivery}
    rows = batch("1", "x" * 20_000, "2")
    with pytest.raises(MessageRefused, match=f"a row for topic {topic} has 20000 bytes of body"):
        run(options_of(namesrv, topic, **large), rows)
    dropped = run(options_of(namesrv, topic, onTooLarge="drop", **large), rows)
    assert (dropped.rows, dropped.dropped, dropped.dead_letters) == (2, 1, 0)
    letters = {"onTooLarge": "dlq", "deadLetterTopic": topic + "-dead"}
    kept = run(options_of(namesrv, topic, **letters, **large), rows, write=topic)
    assert (kept.rows, kept.dropped, kept.dead_letters) == (2, 0, 1)
    if kept.result is not None:
        client = sink_client(options_of(namesrv, topic, **large))
        client.commit(topic, [kept.result])
        while not client.lookup(topic).visible:
            pass
    (letter,) = seen(topic + "-dead")
    assert letter.properties["ORIGIN_TOPIC"] == topic


def test_delayed_rows_wait(namesrv, topic, seen):
    report = run(options_of(namesrv, topic), batch("1", "2", delayLevel=pa.array([18, None], pa.int32())))
    assert report.rows == 2
    assert bodies(seen(topic)) == [b"2"]


def test_rows_say_their_topic(namesrv, topic, seen):
    other = topic + "-other"
    options = sink_options({"namesrvAddr": namesrv})
    run(options, batch("1", "2", "3", topic=[topic, other, topic]))
    assert (bodies(seen(topic)), bodies(seen(other))) == ([b"1", b"3"], [b"2"])


def test_a_queue_that_is_not_there_is_an_error(namesrv, topic):
    with pytest.raises(UsageError, match=f"topic {topic} has no queue 9"):
        run(options_of(namesrv, topic), batch("1", queueId=pa.array([9], pa.int32())))


def test_what_rows_bring_may_fail_half_way_and_nothing_is_seen(namesrv, topic, seen):
    def broken():
        yield batch("1")
        raise ZeroDivisionError

    options = options_of(namesrv, topic, delivery="exactlyOnce")
    with pytest.raises(ZeroDivisionError):
        SinkTask(sink_client(options), options, TaskName(topic, 0)).write(broken())
    assert seen(topic) == []


async def test_a_topic_that_nobody_creates_is_an_error():
    async with Cluster(clock=SystemClock(), auto_create_topic=False) as cluster:
        client = await asyncio.to_thread(sink_client, options_of(cluster.namesrv, "absent"))
        with pytest.raises(TopicNotFound, match="'absent' does not exist"):
            await asyncio.to_thread(client.queues, "absent")
        await asyncio.to_thread(client.close)


def test_queues_are_named_with_their_broker(namesrv, topic, seen):
    columns = {"queueId": pa.array([2], pa.int32()), "brokerName": ["broker-a"]}
    report = run(options_of(namesrv, topic), batch("1", **columns))
    assert list(report.queues) == [MessageQueue(topic, "broker-a", 2)]


class TwoBrokers:
    """A topic of two brokers, and a task whose client has known its queues for a while."""

    def __init__(self, cluster, client):
        self.cluster = cluster
        self.options = options_of(cluster.namesrv, "orders", deadlineMs="20000")
        self._client = client

    async def write(self, **columns):
        task = SinkTask(self._client, self.options, TaskName(uuid4().hex, 0))
        rows = batch(*["1"] * 100, **{name: [value] * 100 for name, value in columns.items()})
        return {queue.broker_name for queue in (await asyncio.to_thread(task.write, iter([rows]))).queues}


@pytest.fixture
async def two_brokers():
    async with Cluster(2, clock=SystemClock()) as cluster:
        async with await cluster.admin() as admin:
            await admin.create_topic("orders", 1)
        client = await asyncio.to_thread(sink_client, options_of(cluster.namesrv, "orders"))
        await asyncio.to_thread(client.queues, "orders")
        client._async.runs.cluster._fetched.clear()  # the route is older than the pause between two refreshes
        yield TwoBrokers(cluster, client)
        await asyncio.to_thread(client.close)


async def test_rows_without_a_queue_go_to_the_brokers_that_are_there(two_brokers):
    await two_brokers.cluster.stop_broker(1)
    for _ in range(4):
        assert await two_brokers.write() == {"broker-a"}
    await two_brokers.cluster.start_broker(1)
    while await two_brokers.write() != {"broker-b"}:  # the queue is chosen at random
        pass


async def test_rows_for_a_broker_that_restarts_wait_for_it(two_brokers, caplog):
    await two_brokers.cluster.stop_broker(1)
    writing = asyncio.ensure_future(two_brokers.write(queueId=0, brokerName="broker-b"))
    while "has no queue at broker-b" not in caplog.text:
        assert not writing.done(), writing.result()
        await asyncio.sleep(0.01)
    await two_brokers.cluster.start_broker(1)
    assert await writing == {"broker-b"}


async def test_rows_for_a_new_queue_find_it(two_brokers):
    async with await two_brokers.cluster.admin() as admin:
        await admin.create_topic("orders", 2, replace=True)
    assert await two_brokers.write(queueId=1, brokerName="broker-b") == {"broker-b"}


def test_driver_and_tasks_share_a_client(namesrv, topic):
    options = options_of(namesrv, topic, delivery="exactlyOnce")
    assert sink_client(options) is sink_client(replace(options, ledger="broker-a"))


@pytest.mark.parametrize(("wait", "readable"), [("true", True), ("false", False)])
def test_a_commit_returns_when_its_messages_can_be_read_unless_told_otherwise(namesrv, topic, wait, readable):
    count = 50_000  # a broker shows 256, then answers requests: a commit that does not wait returns, as a rule, earlier
    options = options_of(namesrv, topic, delivery="exactlyOnce", waitVisible=wait)
    report = run(options, batch(*["x"] * count), write=topic)
    commit_reports(options, [report])
    with PullConsumer("sink-check", namesrv) as consumer:
        if readable:
            assert sum(map(consumer.max_offset, consumer.queues(topic))) == count
        wait_until(lambda: sum(map(consumer.max_offset, consumer.queues(topic))) == count)


def test_messages_that_stay_out_of_sight_are_an_error_that_says_that_they_count(namesrv, topic):
    options = options_of(namesrv, topic, delivery="exactlyOnce", deadlineMs="1ms")
    client = sink_client(options_of(namesrv, topic, delivery="exactlyOnce"))
    report = run(options_of(namesrv, topic, delivery="exactlyOnce"), batch(*["x"] * 240_000), write=topic)
    outcome = replace(client.commit(topic, [report.result]), messages=1)  # so that its patience ends at once
    with pytest.raises(Unavailable, match="messages are committed, but not all are visible yet"):
        wait_until_visible(options, client, outcome)
