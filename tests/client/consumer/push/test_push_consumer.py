"""The async push consumer at a real broker: listeners, retries, offsets, members that come and go."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from tests.client.seen import Seen
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.errors import IllegalName, NoNameServer, NotRunning, UsageError
from pyromq.message import Message


async def send(cluster, numbers, topic="orders", **fields):
    producer = await cluster.producer()
    return [await producer.send(Message(topic, b"%d" % n, **fields)) for n in numbers]


@asynccontextmanager
async def consuming(cluster, listener, group="workers", topic="orders", tags="*", **config):
    consumer = AsyncConsumer(group, cluster.namesrv, config=ConsumerConfig(**config))
    consumer.subscribe(topic, listener, tags=tags)
    async with consumer:
        yield consumer


async def committed(cluster, group="workers", topic="orders"):
    admin = await cluster.admin()
    return {p.queue: p.consumer_offset for p in await admin.group_progress(group, topic)}


async def test_a_plain_function_gets_every_message_in_a_thread(cluster):
    await send(cluster, range(20))
    seen = Seen()
    async with consuming(cluster, seen):
        assert sorted(await seen.wait(20)) == list(range(20))
    assert threading.main_thread() not in seen.threads


async def test_an_async_function_runs_on_the_loop(cluster):
    await send(cluster, range(5))
    seen = Seen()

    async def work(messages):
        await asyncio.sleep(0)
        seen(messages)

    async with consuming(cluster, work):
        assert sorted(await seen.wait(5)) == list(range(5))
    assert seen.threads == {threading.main_thread()}


async def test_messages_that_come_later_wake_the_listener(cluster):
    await send(cluster, [0])
    seen = Seen()
    async with consuming(cluster, seen):
        await seen.wait(1)
        await send(cluster, [1, 2])
        assert sorted(await seen.wait(3)) == [0, 1, 2]


async def test_a_decorated_listener_is_consumed_for_at_once(cluster):
    await send(cluster, [7])
    consumer = await cluster.push_consumer()
    seen = Seen()

    @consumer.subscribe("orders")
    def work(messages):
        seen(messages)

    assert await seen.wait(1) == [7]


async def test_a_batch_holds_at_most_so_many_messages(cluster):
    producer = await cluster.producer()
    queue = (await producer.send(Message("orders", b"0"))).queue
    for n in range(1, 10):
        await producer.send(Message("orders", b"%d" % n), queue=queue)
    sizes, seen = [], Seen()

    def work(messages):
        sizes.append(len(messages))
        seen(messages)

    async with consuming(cluster, work, batch=4):
        await seen.wait(10)
    assert sorted(sizes) == [2, 4, 4]


async def test_only_messages_with_wanted_tags_come(cluster):
    await send(cluster, [0], tags="a")
    await send(cluster, [1], tags="b")
    await send(cluster, [2], tags="c")
    seen = Seen()
    async with consuming(cluster, seen, tags="a || c"):
        assert sorted(await seen.wait(2)) == [0, 2]


async def test_closing_stores_how_far_the_group_is(cluster):
    sent = await send(cluster, range(8))
    seen = Seen()
    async with consuming(cluster, seen):
        await seen.wait(8)
    offsets = await committed(cluster)
    assert sum(offsets.values()) == 8
    assert {result.queue for result in sent} <= offsets.keys()
    async with consuming(cluster, seen):
        await send(cluster, [8])
        await seen.wait(9)
    assert sorted(seen.bodies) == list(range(9))


async def test_offsets_are_stored_while_consuming(cluster):
    await send(cluster, range(8))
    seen = Seen()
    async with consuming(cluster, seen, commit_seconds=0.01):
        await seen.wait(8)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while sum((await committed(cluster)).values()) < 8:
                await asyncio.sleep(0.01)


async def test_a_stuck_message_holds_the_offset_of_its_queue(cluster):
    producer = await cluster.producer()
    queue = (await producer.send(Message("orders", b"0"))).queue
    for n in range(1, 4):
        await producer.send(Message("orders", b"%d" % n), queue=queue)
    release, seen = threading.Event(), Seen()

    def work(messages):
        if messages[0].body == b"1":
            release.wait(PATIENCE_SECONDS)
        seen(messages)

    async with consuming(cluster, work, commit_seconds=0.01) as consumer:
        await seen.wait(3)
        await until(lambda: consumer._assigned[queue].safe_offset == 1)
        release.set()
        await seen.wait(4)
        await until(lambda: consumer._assigned[queue].safe_offset == 4)


async def test_closing_waits_for_running_listeners(cluster):
    await send(cluster, [0])
    begun, release, done = asyncio.Event(), asyncio.Event(), []

    async def work(messages):
        begun.set()
        await release.wait()
        done.append(messages)

    async with consuming(cluster, work):
        await begun.wait()
        asyncio.get_running_loop().call_later(0.05, release.set)
    assert done
    assert sum((await committed(cluster)).values()) == 1


async def test_a_hanging_listener_does_not_keep_a_consumer_from_closing(cluster, caplog):
    await send(cluster, [0])
    begun = asyncio.Event()

    async def work(messages):
        begun.set()
        await asyncio.Event().wait()

    async with consuming(cluster, work, close_seconds=0.05):
        await begun.wait()
    assert "messages are redelivered" in caplog.text
    assert sum((await committed(cluster)).values()) == 0


async def test_two_members_share_the_queues(cluster):
    await send(cluster, range(4))
    async with consuming(cluster, Seen()) as first:
        await until(lambda: len(first.assignment) == 4)
        async with consuming(cluster, Seen()) as second:
            await until(lambda: len(first.assignment) == len(second.assignment) == 2)
            assert not set(first.assignment) & set(second.assignment)
        await until(lambda: len(first.assignment) == 4)


async def test_a_topic_made_later_is_consumed(cluster):
    seen = Seen()
    async with consuming(cluster, seen, topic="later"):
        await send(cluster, [1], topic="later")
        assert await seen.wait(1) == [1]


async def test_unsubscribing_ends_consumption(cluster):
    await send(cluster, [0])
    seen = Seen()
    async with consuming(cluster, seen) as consumer:
        await seen.wait(1)
        consumer.unsubscribe("orders")
        await until(lambda: not consumer.assignment)
        with pytest.raises(UsageError, match="not subscribed"):
            consumer.unsubscribe("orders")


async def test_a_paused_consumer_pulls_nothing(cluster):
    seen = Seen()
    await send(cluster, [0])
    async with consuming(cluster, seen, long_poll_seconds=0.0) as consumer:
        await seen.wait(1)
        consumer.pause()
        await asyncio.sleep(0.05)
        await send(cluster, [1])
        await asyncio.sleep(0.05)
        assert seen.bodies == [0]
        consumer.resume()
        await seen.wait(2)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_paused_consumer_gives_away_what_is_not_its_share(cluster, orderly):
    first, second = Seen(), Seen()
    await send(cluster, range(50))
    async with consuming(cluster, first, orderly=orderly, commit_seconds=60) as paused:
        await first.wait(50)
        paused.pause()
        async with consuming(cluster, second, orderly=orderly, consume_from=ConsumeFrom.FIRST) as joined:
            await until(lambda: len(joined.assignment) == len(paused.assignment) == 2)
            await send(cluster, range(50, 58))
            await until(lambda: len(second.bodies) >= 4)
            paused.resume()
            await until(lambda: len(first.bodies) + len(second.bodies) >= 58)
    assert sorted(first.bodies + second.bodies) == list(range(58))


async def test_waiting_ends_with_stop(cluster):
    consumer = await cluster.push_consumer()
    consumer.subscribe("orders", lambda messages: consumer.stop())
    await send(cluster, [0])
    async with asyncio.timeout(PATIENCE_SECONDS):
        await consumer.wait()


async def test_a_consumer_starts_once(cluster):
    consumer = AsyncConsumer("g", cluster.namesrv)
    with pytest.raises(NotRunning, match="not started yet"):
        consumer.stop()
    async with consumer:
        with pytest.raises(UsageError, match="group g is running; one is started once"):
            await consumer.start()
    with pytest.raises(UsageError, match="was closed"):
        await consumer.start()
    with pytest.raises(NotRunning, match="make a new one"):
        consumer.subscribe("orders", print)


async def test_a_start_without_a_subscription_is_refused_and_may_be_repeated(cluster):
    consumer = AsyncConsumer("g", cluster.namesrv)
    with pytest.raises(UsageError, match=r"group g has no subscription; call subscribe\(\)"):
        await consumer.start()
    consumer.subscribe("orders", print)
    await consumer.start()
    await consumer.close()


async def test_a_failed_start_says_why_and_stays_failed():
    consumer = AsyncConsumer("g", "127.0.0.1:1")
    consumer.subscribe("orders", print)
    with pytest.raises(NoNameServer):
        await consumer.start()
    with pytest.raises(UsageError, match="failed to start") as caught:
        await consumer.start()
    assert isinstance(caught.value.__cause__, NoNameServer)


def test_bad_arguments_are_refused():
    with pytest.raises(IllegalName):
        AsyncConsumer("DEFAULT_CONSUMER")
    with pytest.raises(UsageError, match="listener=7 is int; it must be a function"):
        AsyncConsumer("g").subscribe("orders", 7)
    with pytest.raises(UsageError, match="batch=0"):
        ConsumerConfig(batch=0)


async def test_nothing_comes_twice_when_members_join_and_leave(cluster):
    producer, seen, lock = await cluster.producer(), [], threading.Lock()

    def work(messages):
        threading.Event().wait(0.002)
        with lock:
            seen.extend(int(m.body) for m in messages)

    async def feed():
        for n in range(600):
            await producer.send(Message("orders", b"%d" % n))

    async with consuming(cluster, work):
        feeding = asyncio.create_task(feed())
        await until(lambda: seen)
        async with consuming(cluster, work) as second:
            await until(lambda: second.assignment)
            await asyncio.sleep(0.1)
            async with consuming(cluster, work) as third:
                await until(lambda: third.assignment)
        await feeding
        await until(lambda: len(seen) >= 600)
    assert sorted(seen) == list(range(600))


async def test_every_broadcast_member_gets_every_message(cluster, tmp_path):
    await send(cluster, range(6))
    first, second = Seen(), Seen()
    config = {"broadcast": True, "consume_from": ConsumeFrom.FIRST}
    async with (
        consuming(cluster, first, instance="1", offsets_folder=tmp_path, **config),
        consuming(cluster, second, instance="2", offsets_folder=tmp_path, **config),
    ):
        assert sorted(await first.wait(6)) == sorted(await second.wait(6)) == list(range(6))


async def test_a_broadcast_member_goes_on_where_its_file_says(cluster, tmp_path):
    await send(cluster, range(6))
    seen = Seen()
    async with consuming(cluster, seen, broadcast=True, consume_from=ConsumeFrom.FIRST, offsets_folder=tmp_path):
        await seen.wait(6)
    async with consuming(
        cluster, seen, broadcast=True, consume_from=ConsumeFrom.FIRST, offsets_folder=tmp_path
    ) as consumer:
        assert consumer.client_id.endswith("@DEFAULT")
        await send(cluster, [6])
        assert sorted(await seen.wait(7)) == list(range(7))


async def test_a_failing_broadcast_message_is_dropped(cluster, tmp_path, caplog):
    await send(cluster, range(3))
    seen = Seen()

    def work(messages):
        seen(messages)
        raise ValueError("no")

    async with consuming(
        cluster, work, broadcast=True, consume_from=ConsumeFrom.FIRST, offsets_folder=tmp_path
    ) as consumer:
        await seen.wait(3)
        await until(lambda: not any(assigned.count for assigned in consumer._assigned.values()))
    assert "dropped, as broadcast messages are" in caplog.text
    assert len(seen.messages) == 3
