"""One of two brokers is away: no read takes the other one's queues for the whole topic."""

import asyncio
from functools import partial

import pytest

pytest.importorskip("pyarrow")

from pyromq import Message
from pyromq.client.blocking.consumers import QueueReader
from pyromq.errors import Unavailable
from pyromq.message import MessageQueue
from pyromq.spark.given_options import read_options
from pyromq.spark.read.bounds import DataLoss, ReadBounds
from pyromq.spark.read.plan import QueueRange
from pyromq.spark.read.range_reader import read_ranges
from pyromq.spark.read.stream_offset import StreamOffset, read_stream_offset
from pyromq.spark.read.stream_planning import StreamPlanning
from pyromq.spark.worker_clients import with_retries
from pyromq.testing import Cluster

A, B = MessageQueue("orders", "broker-a", 0), MessageQueue("orders", "broker-b", 0)


class Reads:
    """Topic `orders` with one queue at each of two brokers, and what a driver plans of it."""

    def __init__(self, cluster, producer):
        self.cluster = cluster
        self.producer = producer

    async def send(self, count, *queues):
        for queue in queues:
            for _ in range(count):
                await self.producer.send(Message(queue.topic, b"x"), queue=queue)
        await self.cluster.clock.advance(1)

    def options(self, **given):
        chosen = {"subscribe": "orders"} if not given.keys() & {"assign", "subscribe", "subscribePattern"} else {}
        return read_options({"namesrvAddr": self.cluster.namesrv} | chosen | given, None)

    def planning(self, client, **given):
        return StreamPlanning(self.options(**given), client, self.cluster.clock)

    async def first(self, **given):
        """Return where a query begins, as a checkpoint has it."""
        return await self.with_client(lambda client: self.planning(client, **given).first())

    async def next(self, start, *, ends=False, **given):
        """Return the end of the first micro-batch of a new run, as a checkpoint has it."""

        def planned(client):
            planning = self.planning(client, **given)
            if ends:
                planning.end_here()
            return with_retries(planning._options, partial(planning.next, start))

        return read_stream_offset((await self.with_client(planned)).as_json())

    async def ranges(self, start, end, **given):
        """Return what a micro-batch reads."""
        found = await self.with_client(lambda client: self.planning(client, **given).ranges(start, end))
        return {each.queue: (each.start, each.end) for each in found if len(each)}

    async def batch(self, **given):
        options = self.options(startingOffsets="earliest", **given)
        found = await self.with_client(lambda client: with_retries(options, ReadBounds(options, client).ranges))
        return {each.queue: (each.start, each.end) for each in found}

    async def with_client(self, call):
        def run():
            with QueueReader("reads", self.cluster.namesrv) as client:
                return call(client)

        return await asyncio.to_thread(run)

    async def over_a_start(self, caplog, reading):
        """Start broker-b once it was said that it is waited for; return what the read gives."""
        task = asyncio.ensure_future(reading)
        while "trying again" not in caplog.text:
            assert not task.done(), task.result()
            await asyncio.sleep(0.01)
        await self.cluster.start_broker(1)
        return await task


@pytest.fixture
async def reads():
    async with Cluster(2) as cluster:
        async with await cluster.admin() as admin:
            await admin.create_topic("orders", 1)
        reads = Reads(cluster, await cluster.producer())
        await reads.send(3, A, B)
        yield reads


AWAY = r"broker broker-b is not registered at .*option {} names it.*those registered are broker-a.*retiredBrokers"


@pytest.mark.parametrize(
    "given",
    [
        {"requiredBrokers": "broker-a, broker-b"},
        {"requiredBrokers": "broker-b", "subscribePattern": "ord.*"},
        {"assign": '{"orders":{"broker-a":[0],"broker-b":[0]}}'},
    ],
)
async def test_a_batch_waits_for_brokers_that_its_options_name(reads, caplog, given):
    await reads.cluster.stop_broker(1)
    with pytest.raises(Unavailable, match=AWAY.format(next(iter(given)))):
        await reads.batch(**given, deadlineMs="50")
    caplog.clear()
    assert await reads.over_a_start(caplog, reads.batch(**given)) == {A: (0, 3), B: (0, 3)}


LEFT = r"broker broker-b is not registered at .*had topic orders when it left.*retiredBrokers.*failOnDataLoss"


@pytest.mark.parametrize("given", [{}, {"subscribePattern": "ord.*"}, {"subscribe": "payments,orders"}])
async def test_a_batch_waits_for_a_broker_that_left(reads, caplog, given):
    async with await reads.cluster.admin() as admin:
        await admin.create_topic("payments", 1)
    await reads.cluster.stop_broker(1)
    with pytest.raises(Unavailable, match=LEFT):
        await reads.batch(**given, deadlineMs="50")
    some = await reads.batch(**given, deadlineMs="50", failOnDataLoss="false")
    assert B not in some
    assert "broker-b is not registered" in caplog.text
    assert await reads.batch(**given, deadlineMs="50", retiredBrokers="broker-b") == some
    caplog.clear()
    assert (await reads.over_a_start(caplog, reads.batch(**given))).items() >= {A: (0, 3), B: (0, 3)}.items()


@pytest.mark.parametrize("given", [{"subscribe": "letters"}, {"subscribePattern": "lett.*"}])
async def test_a_batch_waits_for_a_topic_that_only_the_broker_that_left_has(reads, given):
    async with await reads.cluster.admin() as admin:
        await admin.create_topic("letters", 1, broker="broker-b")
    await reads.cluster.stop_broker(1)
    with pytest.raises(Unavailable, match=LEFT.replace("orders", "letters")):
        await reads.batch(**given, deadlineMs="50")


async def test_other_topics_do_not_wait_for_a_broker_that_left(reads):
    async with await reads.cluster.admin() as admin:
        await admin.create_topic("payments", 1, broker="broker-a")
    await reads.cluster.stop_broker(1)
    assert await reads.batch(subscribe="payments", deadlineMs="50") == {MessageQueue("payments", "broker-a", 0): (0, 0)}
    assert await reads.batch(assign='{"orders":{"broker-a":[0]}}', deadlineMs="50") == {A: (0, 3)}


async def test_the_first_run_of_a_query_waits_for_a_broker_that_left_if_it_ends(reads, caplog):
    await reads.cluster.stop_broker(1)
    start = await reads.first(startingOffsets="earliest")
    assert start.positions == {A: 0}
    assert "broker-b is not registered" in caplog.text
    with pytest.raises(Unavailable, match=LEFT):
        await reads.next(start, ends=True, deadlineMs="50")
    assert (await reads.next(start)).positions == {A: 3}, "one that does not end goes on with the others"


async def test_a_batch_does_without_brokers_that_are_retired(reads):
    await reads.cluster.stop_broker(1)
    assert await reads.batch(requiredBrokers="broker-b", retiredBrokers="broker-b") == {A: (0, 3)}


async def test_a_stream_begins_when_the_brokers_it_requires_are_there(reads):
    await reads.cluster.stop_broker(1)
    with pytest.raises(Unavailable, match=AWAY.format("requiredBrokers")):
        await reads.first(requiredBrokers="broker-b")


@pytest.mark.parametrize("given", [{}, {"subscribePattern": "orders"}])
async def test_a_run_that_ends_waits_for_the_brokers_of_its_checkpoint(reads, caplog, given):
    start = await reads.first(startingOffsets="earliest", **given)
    await reads.cluster.stop_broker(1)
    with pytest.raises(Unavailable, match=r"broker broker-b is not registered at .*orders was read from it before"):
        await reads.next(start, ends=True, deadlineMs="50", **given)
    assert (await reads.next(start, **given)).positions == {A: 3, B: 0}, "one that does not end goes on with the others"
    assert (await reads.next(start, ends=True, retiredBrokers="broker-b", **given)).positions == {A: 3, B: 0}
    caplog.clear()
    end = await reads.over_a_start(caplog, reads.next(start, ends=True, **given))
    assert end.positions == {A: 3, B: 3}


async def test_a_planned_batch_leaves_out_retired_brokers(reads):
    start = await reads.first(startingOffsets="earliest")
    end = await reads.next(start)
    await reads.cluster.stop_broker(1)
    assert await reads.ranges(start, end, retiredBrokers="broker-b") == {A: (0, 3)}


class TestBrokersThatWereAwayWhenTheQueryBegan:
    @pytest.fixture
    async def begun(self, reads):
        """Begin with a broker away, let it come, and send one message to it; return what is read of its queue."""

        async def run(**given):
            await reads.cluster.stop_broker(1)
            start = await reads.first(**given)
            assert start.positions.keys() == {A}
            await reads.cluster.clock.advance(1)
            start = await reads.next(start, **given)
            await reads.cluster.start_broker(1)
            await reads.send(1, B)
            return (await reads.ranges(start, await reads.next(start, **given), **given)).get(B)

        return run

    @pytest.mark.parametrize("new_queues", ["earliest", "latest"])
    async def test_latest_gives_what_is_younger_than_the_query(self, begun, new_queues):
        assert await begun(newQueues=new_queues) == (3, 4)

    async def test_earliest_gives_all(self, begun):
        assert await begun(startingOffsets="earliest", newQueues="latest") == (0, 4)

    async def test_a_time_counts_for_them_too(self, begun, reads):
        await reads.send(2, B)
        since = reads.cluster.clock.now_ms()
        await reads.send(1, B)
        assert await begun(startingTimestamp=str(since)) == (5, 7)

    async def test_a_group_goes_on_where_it_was(self, begun, reads):
        await reads.with_client(lambda client: client.announce_group("billing"))
        await reads.with_client(lambda client: client.commit({B: 2}, "billing"))
        assert await begun(startingOffsets="group", group="billing", commitOffsets="false") == (2, 4)

    async def test_a_queue_that_is_made_later_is_read_from_its_beginning(self, reads):
        start = await reads.next(await reads.first())
        async with await reads.cluster.admin() as admin:
            await admin.create_topic("orders", 2, replace=True)
        new = MessageQueue("orders", "broker-b", 1)
        await reads.send(2, new)
        assert await reads.ranges(start, await reads.next(start)) == {new: (0, 2)}

    async def test_a_query_that_has_read_nothing_yet_keeps_its_place(self, reads):
        first = await reads.first()
        planned = await reads.next(first)
        assert planned != first
        assert planned.as_json() != first.as_json(), "so Spark writes it down"
        await reads.send(1, A)
        assert await reads.ranges(planned, await reads.next(planned)) == {A: (3, 4)}


class TestDeletedTopics:
    async def delete(self, reads):
        async with await reads.cluster.admin() as admin:
            await admin.create_topic("payments", 1)
            await admin.delete_topic("orders")

    LOST = r"topic orders at broker-a was deleted; it was read to these offsets, .*lost: queue 0 to 0.*failOnDataLoss"

    @pytest.mark.parametrize("given", [{}, {"subscribePattern": "orders"}, {"subscribePattern": ".*"}])
    @pytest.mark.parametrize("ends", [False, True])
    async def test_one_text_ends_the_query_at_once(self, reads, given, ends):
        start = await reads.first(startingOffsets="earliest", **given)
        await self.delete(reads)
        with pytest.raises(DataLoss, match=self.LOST) as caught:
            await reads.next(start, ends=ends, **given)
        assert "topic orders at broker-b was deleted" in str(caught.value)

    async def test_where_loss_is_allowed_the_other_topics_are_read(self, reads, caplog):
        given = {"subscribePattern": ".*", "failOnDataLoss": "false"}
        start = await reads.first(startingOffsets="earliest", **given)
        await self.delete(reads)
        new = MessageQueue("payments", "broker-a", 0)
        await reads.send(2, new)
        end = await reads.next(start, ends=True, **given)
        assert await reads.ranges(start, end, **given) == {new: (0, 2)}
        assert "topic orders at broker-b was deleted" in caplog.text

    async def test_a_running_query_says_it_once(self, reads, caplog):
        start = await reads.first(startingOffsets="earliest")
        await self.delete(reads)

        def twice(client):
            planning = reads.planning(client, failOnDataLoss="false")
            return [planning.next(planning.next(start)), planning.next(start)]

        assert [each.positions for each in await reads.with_client(twice)] == [{A: 0, B: 0}] * 2
        assert caplog.text.count("topic orders at broker-a was deleted") == 1

    async def test_a_task_says_the_same_or_reads_the_rest(self, reads):
        await self.delete(reads)
        new = MessageQueue("payments", "broker-a", 0)
        await reads.send(2, new)
        planned = [QueueRange(A, 0, 3), QueueRange(new, 0, 2)]

        def rows(options):
            return sum(batch.num_rows for batch in read_ranges(options, ["body"], planned))

        with pytest.raises(DataLoss, match=self.LOST):
            await asyncio.to_thread(rows, reads.options())
        assert await asyncio.to_thread(rows, reads.options(failOnDataLoss="false")) == 2

    async def test_a_topic_that_is_deleted_while_it_is_looked_at_ends_it_alike(self, reads):
        start = await reads.next(await reads.first(startingOffsets="earliest"))
        loop = asyncio.get_running_loop()

        class Overtaken(QueueReader):
            def store_times(self, places):
                if places:
                    asyncio.run_coroutine_threadsafe(delete, loop).result()
                return super().store_times(places)

        delete, options = self.delete(reads), reads.options(startingOffsets="earliest")

        def planned():
            with Overtaken("reads", reads.cluster.namesrv) as client:
                planning = reads.planning(client, startingOffsets="earliest")
                return with_retries(options, partial(planning.next, start))

        with pytest.raises(DataLoss, match=self.LOST.replace("0 to 0", "0 to 3")):
            await asyncio.to_thread(planned)

    async def test_a_broker_that_is_away_does_not_keep_others_offsets_from_being_stored(self, reads, caplog):
        start = await reads.next(await reads.first(startingOffsets="earliest"))
        await reads.cluster.stop_broker(1)

        def published(client):
            planning = reads.planning(client, startingOffsets="earliest", group="billing")
            planning.commit(planning.next(start))
            return client.committed([A], "billing")

        assert await reads.with_client(published) == {A: 3}
        assert "not stored yet" not in caplog.text

    async def test_a_topic_of_a_broker_that_is_away_is_not_deleted(self, reads):
        start = await reads.first(startingOffsets="earliest")
        await reads.cluster.stop_broker(0)
        await reads.cluster.stop_broker(1)
        with pytest.raises(Unavailable, match=r"broker broker-a is not registered at .*no broker is registered"):
            await reads.next(start, deadlineMs="50")


def test_offsets_of_checkpoints_without_a_beginning_are_read():
    assert read_stream_offset({"v": 1, "t": {"orders": {"broker-a": {"0": 3}}}}) == StreamOffset({A: 3})
