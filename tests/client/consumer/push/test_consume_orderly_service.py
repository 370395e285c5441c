"""The push consumer where order is kept: one listener per queue at a time, failures repeated in place, locks."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer import assignment
from pyromq.client.consumer.assignment import RENEW_SECONDS, QueueLockClient
from pyromq.client.consumer.push.listener import Ack, GiveUp, RetryLater
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.message import Message


async def fill(cluster, count, topic="orders", first=0):
    """Store messages in one queue; return it."""
    producer = await cluster.producer()
    sent = [await producer.send(Message(topic, b"%d" % n), ordering_key="k") for n in range(first, first + count)]
    return sent[0].queue


async def fill_queue_of_second(cluster):
    """Store message 1 in a queue that a second member gets; return the queue. Message 0 creates the topic."""
    producer = await cluster.producer()
    await producer.send(Message("orders", b"0"))
    queue = (await producer.queues("orders"))[3]  # the second member, later in order, gets the latter half
    await producer.send(Message("orders", b"1"), queue=queue)
    return queue


@asynccontextmanager
async def consuming(cluster, listener, group="workers", clock=None, **config):
    settings = ConsumerConfig(orderly=True, **({"suspend_seconds": 0.01} | config))
    consumer = AsyncConsumer(group, cluster.namesrv, config=settings, clock=clock)
    consumer.subscribe("orders", listener)
    async with consumer:
        yield consumer


def body(messages):
    (message,) = messages
    return int(message.body)


async def test_a_queue_is_consumed_in_order(cluster):
    await fill(cluster, 200)
    seen = []
    async with consuming(cluster, lambda messages: seen.append(body(messages))):
        await until(lambda: len(seen) == 200)
    assert seen == list(range(200))


async def test_async_listeners_keep_order_too(cluster):
    await fill(cluster, 50)
    seen = []

    async def work(messages):
        await asyncio.sleep(0)
        seen.extend(int(m.body) for m in messages)

    async with consuming(cluster, work, batch=4):
        await until(lambda: len(seen) == 50)
    assert seen == list(range(50))


async def test_a_failing_message_is_repeated_before_the_next(cluster):
    await fill(cluster, 3)
    seen = []

    def work(messages):
        seen.append((body(messages), messages[0].reconsume_times))
        if seen[-1] in [(1, 0), (1, 1)]:
            raise ValueError("not yet")

    async with consuming(cluster, work):
        await until(lambda: len(seen) == 5)
    assert seen == [(0, 0), (1, 0), (1, 1), (1, 2), (2, 0)]


async def test_the_listener_may_say_how_long_to_wait(cluster):
    await fill(cluster, 1)
    times, loop = [], asyncio.get_running_loop()

    async def work(messages):
        times.append(loop.time())
        if len(times) == 1:
            raise RetryLater("soon", seconds=0.1)

    async with consuming(cluster, work):
        await until(lambda: len(times) == 2)
    assert times[1] - times[0] > 0.09


async def test_part_of_a_batch_may_be_done(cluster):
    await fill(cluster, 4)
    seen = []

    def work(messages):
        seen.append([int(m.body) for m in messages])
        if len(seen) == 1:
            raise RetryLater("the rest later", done=1)

    async with consuming(cluster, work, batch=4):
        await until(lambda: sum(map(len, seen)) >= 7)
    assert seen == [[0, 1, 2, 3], [1, 2, 3]]


async def test_a_message_with_too_many_attempts_becomes_a_dead_letter(cluster):
    await fill(cluster, 2)
    seen = []

    def work(messages):
        seen.append(body(messages))
        if seen[-1] == 0:
            raise ValueError("never")

    async with consuming(cluster, work, max_retries=2):
        await until(lambda: 1 in seen)
    assert seen == [0, 0, 0, 1]
    assert await dead_letters(cluster) == {b"0": "ValueError: never"}


async def test_giving_up_makes_a_dead_letter_at_once(cluster):
    await fill(cluster, 2)
    seen = []

    def work(messages):
        seen.append(body(messages))
        if seen[-1] == 0:
            raise GiveUp("hopeless")

    async with consuming(cluster, work):
        await until(lambda: 1 in seen)
    assert seen == [0, 1]
    assert await dead_letters(cluster) == {b"0": "GiveUp: hopeless"}


async def test_a_dead_letter_that_no_broker_takes_is_retried_in_place(cluster):
    await fill(cluster, 2)
    seen = []

    def work(messages):
        seen.append(body(messages))
        if seen[-1] == 0:
            raise GiveUp("hopeless")

    cluster.broker.store._log.suspend("the disk is full")
    async with consuming(cluster, work):
        await until(lambda: seen == [0, 0])
        cluster.broker.store._log.suspend("")
        await until(lambda: 1 in seen)
    assert await dead_letters(cluster) == {b"0": "GiveUp: hopeless"}


async def test_a_reason_makes_no_message_too_large_for_a_dead_letter(cluster):
    producer = await cluster.producer()
    await producer.send(Message("orders", b"0", properties={"long": "x" * 32_200}))

    seen = []

    def work(messages):
        seen.append(body(messages))
        raise GiveUp("y" * 500)

    async with consuming(cluster, work) as consumer:
        await until(lambda: seen)
        await until(lambda: not any(assigned.count for assigned in consumer._assigned.values()))
        letters = await dead_letters(cluster)
    assert letters == {b"0": None}


async def dead_letters(cluster, group="workers"):
    reader = await cluster.consumer("reader")
    queues = await reader.queues(f"%DLQ%{group}")
    await reader.assign(queues)
    for queue in queues:
        await reader.seek_to_begin(queue)
    return {m.body: m.properties.get("RETRY_REASON") for m in await reader.poll(2)}


async def test_without_auto_commit_nothing_counts_before_commit(cluster):
    queue = await fill(cluster, 6)
    seen = []

    def work(messages):
        seen.append(body(messages))
        return Ack.COMMIT if len(seen) == 3 else None

    async with consuming(cluster, work, auto_commit=False) as consumer:
        await until(lambda: len(seen) == 6)
        assert consumer._assigned[queue].safe_offset == 3
    seen.clear()
    async with consuming(cluster, lambda messages: seen.append(body(messages))):
        await until(lambda: len(seen) == 3)
    assert seen == [3, 4, 5]


async def test_part_of_a_batch_is_no_commit_without_auto_commit(cluster):
    queue = await fill(cluster, 2)
    seen = []

    def work(messages):
        seen.append([int(message.body) for message in messages])
        raise RetryLater(done=1)

    async with consuming(cluster, work, auto_commit=False, batch=2) as consumer:
        await until(lambda: len(seen) == 2)
        assert consumer._assigned[queue].safe_offset == 0
    assert seen[:2] == [[0, 1], [0, 1]]


async def test_rollback_brings_everything_since_the_commit_again(cluster):
    await fill(cluster, 4)
    seen = []

    def work(messages):
        seen.append(body(messages))
        return {1: Ack.COMMIT, 3: Ack.ROLLBACK if seen.count(3) == 1 else Ack.COMMIT}.get(seen[-1])

    async with consuming(cluster, work, auto_commit=False):
        await until(lambda: len(seen) == 6)
    assert seen == [0, 1, 2, 3, 2, 3]


async def test_queues_move_in_order_and_without_repeats_when_members_come_and_go(cluster):
    producer = await cluster.producer()
    seen, running, lock = {}, set(), threading.Lock()

    def work(messages):
        (message,) = messages
        with lock:
            assert message.queue not in running, "two listeners at once"
            running.add(message.queue)
        threading.Event().wait(0.002)
        with lock:
            running.discard(message.queue)
            seen.setdefault(message.queue, []).append(message.queue_offset)

    async def feed():
        for n in range(400):
            await producer.send(Message("orders", b"%d" % n), ordering_key=str(n % 20))

    async with consuming(cluster, work):
        feeding = asyncio.create_task(feed())
        await until(lambda: seen)
        async with consuming(cluster, work) as second:
            await until(lambda: second.assignment)
            await asyncio.sleep(0.1)
            async with consuming(cluster, work) as third:
                await until(lambda: third.assignment)
        await feeding
        await until(lambda: sum(map(len, seen.values())) == 400)
    assert all(offsets == list(range(len(offsets))) for offsets in seen.values())


async def test_a_running_listener_keeps_its_queue_until_it_is_done(cluster):
    queue = await fill_queue_of_second(cluster)
    begun, release, second_seen = threading.Event(), threading.Event(), []

    def slow(messages):
        if messages[0].body == b"1":
            begun.set()
            release.wait(PATIENCE_SECONDS)

    async with consuming(cluster, slow):
        await until(begun.is_set)
        async with consuming(cluster, second_seen.append) as second:
            await until(lambda: second.assignment)
            assert queue not in second.assignment
            release.set()
            await until(lambda: queue in second.assignment)
    assert not second_seen


async def test_a_queue_that_comes_back_waits_for_its_running_listener(cluster):
    queue = await fill_queue_of_second(cluster)
    begun, release, running = threading.Event(), threading.Event(), []

    def slow(messages):
        if messages[0].body == b"1":
            running.append(True)
            begun.set()
            release.wait(PATIENCE_SECONDS)

    async with consuming(cluster, slow) as first:
        await until(begun.is_set)
        async with consuming(cluster, lambda messages: None) as second:
            await until(lambda: second.assignment)
            await until(lambda: queue not in first.assignment)
        await until(lambda: len(first.assignment) == 3)
        await first._rebalance.once()
        assert queue not in first.assignment
        release.set()
        await until(lambda: queue in first.assignment)
    assert len(running) == 1


async def test_closing_keeps_the_lock_of_a_queue_whose_listener_is_running(cluster):
    queue = await fill(cluster, 1)
    begun, release = threading.Event(), threading.Event()

    def slow(messages):
        begun.set()
        release.wait(PATIENCE_SECONDS)

    locks = QueueLockClient("workers", (await cluster.producer())._cluster)
    async with consuming(cluster, slow, close_seconds=0.01):
        await until(begun.is_set)
    assert await locks.lock([queue], timeout=PATIENCE_SECONDS) == {queue: False}
    release.set()


async def test_a_reset_waits_for_the_running_listener(cluster):
    queue = await fill(cluster, 1)
    producer = await cluster.producer()
    begun, release, running, others = threading.Event(), threading.Event(), [], []

    def work(messages):
        if messages[0].queue != queue:
            others.append(messages)
            return
        running.append(True)
        begun.set()
        release.wait(PATIENCE_SECONDS)

    async with consuming(cluster, work) as consumer:
        await until(begun.is_set)
        consumer._assignment.reset({queue: 0})
        for other in await producer.queues("orders"):
            if other != queue:
                await producer.send(Message("orders", b"1"), queue=other)
        await until(lambda: len(others) == 3)
        assert len(running) == 1
        release.set()
        await until(lambda: len(running) == 2)


async def test_a_reset_during_a_listener_takes_no_revoked_queue_back(cluster, caplog):
    caplog.set_level("INFO", "pyromq.client.consumer.push.push_assignment")
    queue = await fill_queue_of_second(cluster)
    begun, release = threading.Event(), threading.Event()

    def slow(messages):
        if messages[0].body == b"1":
            begun.set()
            release.wait(PATIENCE_SECONDS)

    async with consuming(cluster, slow) as first:
        await until(begun.is_set)
        async with consuming(cluster, lambda messages: None) as second:
            first._assignment.reset({queue: 0})
            await until(lambda: second.assignment and queue not in first.assignment)
            release.set()
            await until(lambda: queue in second.assignment)
    assert "is reset" not in caplog.text


async def test_a_reset_of_a_revoked_queue_makes_the_results_of_its_listener_worthless(cluster):
    queue = await fill_queue_of_second(cluster)
    begun, release, seen = threading.Event(), threading.Event(), []

    def slow(messages):
        if messages[0].body == b"1":
            begun.set()
            release.wait(PATIENCE_SECONDS)
            raise GiveUp("too late")

    async with consuming(cluster, slow) as first:
        await until(begun.is_set)
        async with consuming(cluster, lambda messages: seen.append(body(messages))) as second:
            await until(lambda: second.assignment and queue not in first.assignment)
            await (await cluster.admin()).reset_offset("workers", "orders", 0)
            await until(lambda: first._assignment.queues.held[queue].dropped)
            release.set()
            await until(lambda: 1 in seen)
    assert cluster.broker.store.max_offset("%DLQ%workers", 0) == 0


async def test_a_reset_just_after_the_lock_was_lost_waits_for_the_lock(cluster):
    queue = await fill(cluster, 3)
    seen = []
    async with consuming(cluster, lambda messages: seen.append(body(messages))) as consumer:
        await until(lambda: len(seen) == 3)
        consumer._assignment._lose(consumer._assigned[queue])
        consumer._assignment.reset({queue: 0})
        async with asyncio.timeout(RENEW_SECONDS / 2):  # the next renewal would find the lock free
            await until(lambda: len(seen) == 6)


async def test_the_latest_of_two_resets_during_a_listener_counts(cluster):
    queue = await fill(cluster, 3)
    release, seen = asyncio.Event(), []

    async def work(messages):
        if messages[0].queue == queue:
            seen.extend(message.queue_offset for message in messages)
            await release.wait()

    async with consuming(cluster, work) as consumer:
        await until(lambda: seen)
        consumer._assignment.reset({queue: 0})
        consumer._assignment.reset({queue: 2})
        seen.clear()
        release.set()
        await until(lambda: seen)
        assert seen[0] == 2


async def test_a_hanging_async_listener_whose_lock_is_lost_does_not_block_its_queue(cluster):
    queue = await fill(cluster, 1)
    calls = []

    async def work(messages):
        calls.append(messages)
        if len(calls) == 1:
            await asyncio.Event().wait()

    async with consuming(cluster, work) as consumer:
        await until(lambda: calls)
        consumer._assignment._lose(consumer._assigned[queue])
        await until(lambda: len(calls) == 2)


async def test_without_a_lock_nothing_is_committed(cluster):
    queue = await fill(cluster, 3)
    seen = []
    async with consuming(cluster, lambda messages: seen.append(body(messages)), commit_seconds=3600) as consumer:
        await until(lambda: consumer._assigned.get(queue) and consumer._assigned[queue].safe_offset == 3)
        consumer._assigned[queue].lock_lost = True
        cluster.broker.offsets.commit("workers", "orders", queue.queue_id, 2)  # by another member
        await consumer._assignment.save_all()
        assert cluster.broker.offsets.find("workers", "orders", queue.queue_id) == 2


async def test_a_reset_counts_although_the_lock_was_lost_before(cluster):
    queue = await fill(cluster, 3)
    seen = []
    locks = QueueLockClient("workers", (await cluster.producer())._cluster)
    async with consuming(cluster, lambda messages: seen.append(body(messages))) as consumer:
        await until(lambda: len(seen) == 3)
        cluster.broker.queue_locks.unlock("workers", consumer._cluster.client_id, [queue])
        assert await locks.lock([queue], timeout=PATIENCE_SECONDS) == {queue: True}
        consumer._assignment._lose(consumer._assigned[queue])
        await until(lambda: queue not in consumer.assignment)
        await (await cluster.admin()).reset_offset("workers", "orders", 0)
        await locks.unlock([queue])
        await until(lambda: len(seen) == 6)


async def test_without_an_answer_about_its_lock_no_queue_is_consumed(cluster):
    await fill(cluster, 1)
    seen = []
    quota = cluster.broker.queue_locks._quota
    quota.limit = 0  # every request is refused with an error
    async with consuming(cluster, lambda messages: seen.append(body(messages))) as consumer:
        for _ in range(2):
            await consumer._rebalance.once()
        assert not consumer.assignment
        assert not seen
        quota.limit = 100
        await until(lambda: seen)


async def test_a_long_wait_for_a_lock_tells_who_holds_it(cluster, caplog, monkeypatch):
    monkeypatch.setattr(assignment, "LOCK_WARNING_SECONDS", 0.1)
    producer = await cluster.producer()
    await producer.send(Message("orders", b"0"))
    holder = producer._cluster
    await QueueLockClient("workers", holder).lock(await producer.queues("orders"))
    async with consuming(cluster, lambda messages: None):
        await until(lambda: f"waiting for its lock, held by {holder.client_id}, for 0.0 s" in caplog.text)


async def test_a_short_wait_for_a_lock_is_no_warning(cluster, caplog):
    caplog.set_level("INFO", "pyromq.client.consumer.assignment")
    producer = await cluster.producer()
    await producer.send(Message("orders", b"0"))
    [queue, *_] = await producer.queues("orders")
    assert await QueueLockClient("workers", producer._cluster).lock([queue], timeout=30) == {queue: True}
    async with consuming(cluster, lambda messages: None) as consumer:
        await until(lambda: len(consumer.assignment) == 3)
    told = [(r.levelname, r.getMessage()) for r in caplog.records if "lock" in r.getMessage()]
    assert told == [("INFO", "group workers: waiting for locks held by other members: queue 0 of orders at broker-a")]


async def test_locks_are_given_back_at_closing(cluster):
    await fill(cluster, 1)
    async with consuming(cluster, lambda messages: None) as consumer:
        await until(lambda: len(consumer.assignment) == 4)
    async with asyncio.timeout(PATIENCE_SECONDS):
        async with consuming(cluster, lambda messages: None) as other:
            await until(lambda: len(other.assignment) == 4)


async def test_a_broken_connection_loses_neither_order_nor_messages(cluster):
    await fill(cluster, 20)
    seen = []
    async with consuming(cluster, lambda messages: seen.append(body(messages))) as consumer:
        await until(lambda: len(seen) == 20)
        for channel in consumer._cluster._pool.channels().values():
            channel.cut()
        await fill(cluster, 20, first=20)
        await until(lambda: len(seen) >= 40)
        assert len(consumer.assignment) == 4
    assert seen == list(range(40))


async def test_a_restarted_broker_is_consumed_on_in_order(cluster):
    await fill(cluster, 20)
    seen = []
    async with consuming(cluster, lambda messages: seen.append(body(messages)), commit_seconds=0.01):
        await until(lambda: len(seen) == 20)
        await cluster.restart_broker()
        await fill(cluster, 20, first=20)
        await until(lambda: len(seen) >= 40)
    assert seen == list(range(40))


@pytest.mark.parametrize("broadcast", [True, False])
async def test_two_queues_are_worked_on_at_once(cluster, broadcast, tmp_path):
    producer = await cluster.producer()
    first = (await producer.send(Message("orders", b"1"))).queue
    other = next(q for q in await producer.queues("orders") if q != first)
    await producer.send(Message("orders", b"2"), queue=other)
    both = threading.Barrier(2)
    done = []

    def work(messages):
        both.wait(PATIENCE_SECONDS)
        done.append(messages)

    async with consuming(cluster, work, broadcast=broadcast, consume_from=ConsumeFrom.FIRST, offsets_folder=tmp_path):
        await until(lambda: len(done) == 2)
