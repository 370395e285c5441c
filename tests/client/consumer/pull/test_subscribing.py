"""Pull consumers that subscribe: the group's members share the queues, and each asks for messages itself."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from tests.waiting import PATIENCE_SECONDS, wait_until

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
from pyromq.errors import NotRunning, UsageError
from pyromq.message import Message
from pyromq.remoting.bodies import ConsumerRunning, decode_body
from pyromq.remoting.headers import ConsumerRunningState
from pyromq.testing import FakeClock

QUEUES = 4
WHEN_TOLD = {"rebalance_seconds": 3600}  # never by itself


@pytest.fixture
def member(cluster):
    """A started member of a group that subscribes to one topic, as a context."""

    @asynccontextmanager
    async def member(*, group="readers", topic="orders", tags="*", listener=None, **config):
        consumer = AsyncPullConsumer(group, cluster.namesrv, config=ConsumerConfig(**config))
        consumer.subscribe(topic, tags=tags, listener=listener)
        async with consumer:
            yield consumer

    return member


async def read(consumer, count):
    """Poll until there are so many messages; return their numbers, in order."""
    found = []
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found += await consumer.poll(0.2)
    return sorted(int(message.body) for message in found)


async def stored(cluster, group="readers", topic="orders"):
    admin = await cluster.admin()
    return sum(each.consumer_offset for each in await admin.group_progress(group, topic))


async def keep_polling(consumer, found, pause=0.001):
    while True:
        found += [int(message.body) for message in await consumer.poll(0.05)]
        await asyncio.sleep(pause)


async def test_a_member_alone_gets_every_queue(send, member, until):
    await send(range(20))
    async with member() as consumer:
        assert await read(consumer, 20) == list(range(20))
        assert len(consumer.assignment) == QUEUES


async def test_subscribing_while_running_brings_queues(cluster, send):
    await send(range(8))
    async with AsyncPullConsumer("readers", cluster.namesrv) as consumer:
        consumer.subscribe("orders")
        assert await read(consumer, 8) == list(range(8))


async def test_iteration_works_on_shared_queues(send, member):
    await send(range(8))
    found = []
    async with member() as consumer:
        async for message in consumer:
            found.append(int(message.body))
            if len(found) == 8:
                break
    assert sorted(found) == list(range(8))


async def test_members_share_the_queues_and_miss_nothing(send, member, until):
    await send(range(4))
    async with member() as first, member() as second:
        await until(lambda: len(first.assignment) == len(second.assignment) == 2)
        await send(range(100, 140))
        seen = [[], []]
        polling = [asyncio.ensure_future(keep_polling(c, s)) for c, s in zip((first, second), seen, strict=True)]
        await until(lambda: len(set(seen[0] + seen[1])) == 44)
        for task in polling:
            task.cancel()
    assert sorted(seen[0] + seen[1]) == [*range(4), *range(100, 140)]


async def test_a_queue_given_away_is_committed_first_so_nothing_comes_twice(send, member, until):
    await send(range(200))
    seen = [[], []]
    async with member(pull_count=4, auto_commit_seconds=60) as first:
        polling = [asyncio.ensure_future(keep_polling(first, seen[0], 0.005))]
        await until(lambda: len(seen[0]) > 20)
        async with member() as second:
            polling.append(asyncio.ensure_future(keep_polling(second, seen[1])))
            await until(lambda: len(set(seen[0] + seen[1])) == 200)
            assert len(second.assignment) == 2
            for task in polling:
                task.cancel()
    assert seen[1]
    assert sorted(seen[0] + seen[1]) == list(range(200))


async def test_the_next_owner_waits_for_the_application_to_be_done_with_what_it_got(send, member, until):
    await send(range(8))
    async with member(group="slow", pull_count=1) as first:
        await until(lambda: len(first.assignment) == QUEUES)
        at_work = await first.poll()
        async with member(group="slow") as second:
            await asyncio.sleep(0.1)  # the application works on the message meanwhile
            rest = []
            polling = [asyncio.ensure_future(keep_polling(c, rest)) for c in (first, second)]
            await until(lambda: len(rest) >= 7)
            for task in polling:
                task.cancel()
    assert sorted([int(at_work[0].body), *rest]) == list(range(8))


async def test_what_the_application_never_finished_comes_again(send, member, until):
    await send(range(4))
    async with member(pull_count=1) as first:
        got = await first.poll()
        async with member() as second:
            await until(lambda: len(second.assignment) == 2)
            await until(lambda: len(first.assignment) == 2)
            lost = got[0].queue in second.assignment
            numbers = await read(second, 2)
    assert (int(got[0].body) in numbers) is lost


async def test_without_auto_commit_only_what_was_committed_counts(cluster, send, member, until):
    await send(range(8))
    async with member(auto_commit=False) as first:
        assert await read(first, 8) == list(range(8))
        assert await stored(cluster) == 0
        await first.commit()
        async with member() as second:
            await until(lambda: len(second.assignment) == 2)
            assert await second.poll(0.1) == []
    assert await stored(cluster) == 8


async def test_closing_commits_and_leaves_the_queues_to_others_at_once(cluster, send, member, until):
    await send(range(8))
    async with member(**WHEN_TOLD) as second:
        async with member(**WHEN_TOLD) as first:
            await until(lambda: len(first.assignment) == 2)
            await until(lambda: len(second.assignment) == 2)
            await read(first, 4)
        await until(lambda: len(second.assignment) == QUEUES)
        assert len(await read(second, 4)) == 4
        assert await second.poll(0.05) == []


async def test_a_member_that_vanishes_is_replaced_at_once(send, member, until):
    await send(range(8))
    async with member(**WHEN_TOLD) as second, member(**WHEN_TOLD) as first:
        await until(lambda: len(first.assignment) == len(second.assignment) == 2)
        first._cluster.running = False  # it does not come back
        await first._cluster.tasks.stop()
        await first._cluster._pool.close()
        await until(lambda: len(second.assignment) == QUEUES)
        assert await read(second, 8) == list(range(8))


async def test_assigning_and_subscribing_exclude_each_other(cluster, send, member):
    await send(range(1))
    async with member() as consumer:
        with pytest.raises(UsageError, match="group readers subscribes to topics"):
            await consumer.assign(await consumer.queues("orders"))
    async with AsyncPullConsumer("others", cluster.namesrv) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        with pytest.raises(UsageError, match="group others assigns its queues"):
            consumer.subscribe("orders")


async def test_broadcasting_and_unknown_subscriptions_are_refused(cluster):
    consumer = AsyncPullConsumer("readers", cluster.namesrv, config=ConsumerConfig(broadcast=True))
    with pytest.raises(UsageError, match="broadcast"):
        consumer.subscribe("orders")
    with pytest.raises(UsageError, match="topic 'orders' is not subscribed to; subscribed topics: \\[\\]"):
        consumer.unsubscribe("orders")


async def test_seek_commit_pause_and_position_work_on_owned_queues(send, member, until):
    queue = (await send(range(3), key="k"))[0].queue
    async with member() as consumer:
        assert await read(consumer, 3) == [0, 1, 2]
        assert consumer.position(queue) == 3
        await consumer.seek(queue, 1)
        assert await read(consumer, 2) == [1, 2]
        await consumer.commit({queue: 2})
        assert await consumer.committed(queue) == 2
        consumer.pause([queue])
        await send([3], key="k")
        assert await consumer.poll(0.1) == []
        consumer.resume([queue])
        assert await read(consumer, 1) == [3]


async def test_queues_of_others_cannot_be_touched(send, member, until):
    await send(range(4))
    async with member() as first, member() as second:
        await until(lambda: len(first.assignment) == len(second.assignment) == 2)
        with pytest.raises(
            UsageError, match=r"queue . of orders at broker-a is not assigned to this consumer; another member"
        ):
            await first.seek(second.assignment[0], 0)


@asynccontextmanager
async def unfinished(cluster, clock, **config):
    """A member that has polled, and not finished, three messages of a queue that a second member gets."""
    producer = await cluster.producer()
    await producer.send(Message("orders", b"0"))
    queue = (await producer.queues("orders"))[3]
    for number in range(3):
        await producer.send(Message("orders", b"%d" % number), queue=queue)
    async with AsyncPullConsumer("readers", cluster.namesrv, config=ConsumerConfig(**config), clock=clock) as consumer:
        consumer.subscribe("orders")
        await read(consumer, 4)
        yield consumer, queue


@asynccontextmanager
async def revoking(first, queue, member, until):
    """A second member, for which the first one, in the middle of its messages, is to give up the queue."""
    await first.seek(queue, 0)
    await first.poll()
    async with member():
        await until(lambda: first._assigned[queue].leaving)
        yield


async def test_a_queue_that_is_being_revoked_is_neither_moved_nor_pulled(cluster, member, until):
    clock = FakeClock()
    async with unfinished(cluster, clock) as (first, queue):
        async with revoking(first, queue, member, until):
            with pytest.raises(UsageError, match="another member has it, or will have it"):
                await first.seek(queue, 0)
            await (await cluster.admin()).reset_offset("readers", "orders", 0)
            await first.committed(queue)  # answered behind the reset
            async with asyncio.timeout(PATIENCE_SECONDS):
                while queue in first.assignment:
                    await clock.advance(0.1)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while queue not in first.assignment:
                await clock.advance(0.1)
        assert await read(first, 4) == [0, 0, 1, 2]


async def test_without_auto_commit_a_revoked_queue_is_locked_until_the_commit(cluster, member, until):
    clock = FakeClock()
    async with unfinished(cluster, clock, auto_commit=False) as (first, queue):
        assert await first.poll(0.01) == []  # asks for more, and has not committed
        async with member():
            await until(lambda: first._assigned[queue].leaving)
            await clock.advance(0.1)
            assert cluster.broker.queue_locks.holders("readers")[queue][0] == first.client_id
            await first.commit()
            await clock.advance(0.1)
            await until(lambda: cluster.broker.queue_locks.holders("readers")[queue][0] != first.client_id)


async def test_a_member_locks_its_queues_again_after_its_connection_was_lost(cluster, send, until):
    await send(range(4))
    async with AsyncPullConsumer("readers", cluster.namesrv, clock=FakeClock()) as consumer:
        consumer.subscribe("orders")
        await read(consumer, 4)
        for channel in consumer._cluster._pool.channels().values():
            channel.cut()
        await cluster.clock.advance(1)  # locks of a lost connection end
        await until(lambda: len(cluster.broker.queue_locks.holders("readers")) == QUEUES)


async def test_a_group_is_seen_in_queues_without_messages_too(cluster, send, member, until):
    await send([0], key="k")
    async with member() as consumer:
        await read(consumer, 1)
        await until(lambda: len(consumer.assignment) == QUEUES)
        await consumer.commit()
        assert len(cluster.broker.offsets.of_topic("readers", "orders")) == QUEUES


async def test_seeking_in_a_queue_that_is_revoked_meanwhile_is_refused(send, member, until):
    (sent, *_) = await send(range(3), key="k")
    asked, answer = asyncio.Event(), asyncio.Event()
    async with member() as consumer:
        await read(consumer, 3)
        await consumer.commit()
        least = consumer._offsets.least

        async def slow(queue):
            asked.set()
            await answer.wait()
            return await least(queue)

        consumer._offsets.least = slow
        seeking = asyncio.ensure_future(consumer.seek_to_begin(sent.queue))
        await until(asked.is_set)
        consumer.unsubscribe("orders")
        await until(lambda: not consumer.assignment)
        answer.set()
        with pytest.raises(UsageError, match="not assigned"):
            await seeking
        consumer.subscribe("orders")
        await send([3], key="k")
        assert await read(consumer, 1) == [3]


async def test_the_listener_is_told_of_our_queues_and_may_seek_before_any_message_comes(send, member, until):
    queue = (await send(range(5), key="k"))[0].queue
    told = []

    async def skip(queues):
        told.append(queues)
        if queue in queues:
            await consumer.seek(queue, 3)

    async with member(listener=skip) as consumer:
        assert await read(consumer, 2) == [3, 4]
        assert told == [consumer.assignment]
        async with member():
            await until(lambda: len(told) == 2)
            assert told[1] == consumer.assignment and len(told[1]) == 2
        await until(lambda: len(told) == 3)


async def test_a_failing_listener_is_logged_and_messages_come(send, member, caplog):
    await send(range(4))

    def fail(queues):
        raise ValueError("no")

    async with member(listener=fail) as consumer:
        assert await read(consumer, 4) == list(range(4))
    assert "group readers: the listener for this member's queues of topic orders failed" in caplog.text


async def test_only_tags_subscribed_to_come(cluster, send, member):
    await send(range(3), tags="a")
    await send(range(3, 6), tags="b")
    async with member(tags="b") as consumer:
        assert await read(consumer, 3) == [3, 4, 5]
        consumer.subscribe("orders", tags="a")
        await send([6], tags="a")
        assert await read(consumer, 1) == [6]


async def test_unsubscribing_gives_the_queues_away_committed(cluster, send, member, until):
    await send(range(8))
    async with member() as consumer:
        await read(consumer, 8)
        consumer.unsubscribe("orders")
        await consumer.poll(0.01)
        await until(lambda: not consumer.assignment)
        assert await stored(cluster) == 8


async def test_a_topic_that_does_not_exist_yet_is_waited_for(cluster, send, member):
    async with member() as consumer:
        assert await consumer.poll(0.05) == []
        await send(range(4))
        assert await read(consumer, 4) == list(range(4))


async def test_pull_and_push_members_share_a_group(send, member, consuming, seen, until):
    await send(range(4))
    async with member() as puller, consuming(seen, group="readers") as pusher:
        await until(lambda: len(puller.assignment) == len(pusher.assignment) == 2)
        await send(range(4, 40))
        pulled = []
        polling = asyncio.ensure_future(keep_polling(puller, pulled))
        await until(lambda: len(set(pulled + seen.bodies)) == 40)
        polling.cancel()
    assert sorted(pulled + seen.bodies) == list(range(40))


async def test_a_member_is_seen_from_outside(cluster, send, member, until):
    await send(range(8))
    admin = await cluster.admin()
    async with member(tags="*") as consumer:
        await read(consumer, 8)
        found = await admin.consumer_connection("readers")
        assert [each.client_id for each in found.connections] == [consumer.client_id]
        assert {topic: each.expression for topic, each in found.subscriptions.items()} == {"orders": "*"}
        question = ConsumerRunningState(consumer_group="readers", client_id=consumer.client_id)
        running = decode_body(ConsumerRunning, (await admin._brokers.ask(cluster.broker.address, question)).body)
        assert sorted(running.queues) == consumer.assignment
        assert all(each.last_pull_ms and each.last_consume_ms for each in running.queues.values())
        assert running.rates[consumer.assignment[0].topic].pull_tps > 0
        assert running.properties["PROP_CONSUME_TYPE"] == "CONSUME_ACTIVELY"
        assert running.properties["consumerGroup"] == "readers"


async def test_an_administrator_moves_a_member(cluster, send, member):
    await send(range(8))
    admin = await cluster.admin()
    async with member() as consumer:
        await read(consumer, 8)
        await consumer.commit()
        await admin.reset_offset("readers", "orders", 0)
        assert await read(consumer, 8) == list(range(8))


async def test_a_restarted_broker_is_pulled_from_again(cluster, send, member):
    await send(range(4))
    async with member(retry_seconds=0.02) as consumer:
        await read(consumer, 4)
        await cluster.restart_broker()
        await send(range(4, 8))
        assert set(await read(consumer, 4)) >= {4, 5, 6, 7}


async def test_polls_end_when_the_consumer_is_closed(member):
    async with member() as consumer:
        polling = asyncio.ensure_future(consumer.poll(5))
        await asyncio.sleep(0)
    assert await polling == []
    with pytest.raises(NotRunning):
        await consumer.poll()


def test_the_blocking_one_shares_queues_too(served):
    from pyromq.client.blocking.consumers import PullConsumer
    from pyromq.client.blocking.producers import Producer

    with Producer("p", served.namesrv) as producer:
        for number in range(8):
            producer.send(Message("blocking-shared", b"%d" % number))
    told = []
    first = PullConsumer("shared", served.namesrv)
    first.subscribe("blocking-shared", listener=told.append)
    with first, PullConsumer("shared", served.namesrv) as second:
        found = []
        for message in first:
            found.append(int(message.body))
            if len(found) == 8:
                break
        second.subscribe("blocking-shared")
        while len(second.assignment) != 2:
            first.poll(0.02)
            second.poll(0.02)
        assert second.poll(0.1) == []
        wait_until(lambda: told[-1] == first.assignment)
        assert told[0]
        second.unsubscribe("blocking-shared")
    assert sorted(found) == list(range(8))


async def test_a_reset_during_a_revocation_counts_for_the_next_owner(cluster, member, until):
    clock = FakeClock()
    async with unfinished(cluster, clock) as (first, queue), revoking(first, queue, member, until):
        first._status._internals.reset({queue: 2})
        async with asyncio.timeout(PATIENCE_SECONDS):
            while queue in first.assignment:
                await clock.advance(0.1)
        assert cluster.broker.offsets.find("readers", "orders", queue.queue_id) == 2


async def test_a_reset_counts_while_other_queues_are_acquired(cluster, send, until):
    (sent, *_) = await send(range(3), key="k")
    answer = asyncio.Event()
    consumer = AsyncPullConsumer("readers", cluster.namesrv, config=ConsumerConfig(consume_from=ConsumeFrom.FIRST))
    consumer.subscribe("orders")
    start = consumer._kept.start

    async def slow(queue, **more):
        if queue != sent.queue:
            await answer.wait()
        return await start(queue, **more)

    consumer._kept.start = slow
    async with consumer:
        await until(lambda: cluster.broker.offsets.find("readers", "orders", sent.queue.queue_id) == 0)
        await until(lambda: sent.queue in consumer._sharing._queues.held)
        consumer._status._internals.reset({sent.queue: 2})
        answer.set()
        assert await read(consumer, 1) == [2]
