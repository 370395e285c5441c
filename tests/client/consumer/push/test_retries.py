"""What becomes of messages whose listener fails, hangs or talks nonsense: retries, dead letters, local repeats."""

import asyncio
import threading
from contextlib import asynccontextmanager

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.client.client_config import ConsumerConfig
from pyromq.client.consumer.push.listener import GiveUp, RetryLater
from pyromq.client.consumer.push.push_consumer import AsyncConsumer
from pyromq.client.consumer.push.send_back import SendBack
from pyromq.errors import Unavailable
from pyromq.message import Message, MessageQueue, Property, encode_properties
from pyromq.names import SCHEDULE_TOPIC
from pyromq.remoting.bodies import GroupConfig

FIRST_DELAY = 10.0  # seconds, level 3


@asynccontextmanager
async def consuming(cluster, listener, group="workers", **config):
    settings = ConsumerConfig(commit_seconds=0.01, **config)
    consumer = AsyncConsumer(group, cluster.namesrv, config=settings)
    consumer.subscribe("orders", listener)
    async with consumer:
        yield consumer


async def send(cluster, *bodies, topic="orders"):
    producer = await cluster.producer()
    return [await producer.send(Message(topic, body), ordering_key="k") for body in bodies]


async def all_acknowledged(consumer):
    """Wait until nothing is in flight and the retry topic is consumed too."""
    await until(lambda: any(queue.topic.startswith("%RETRY%") for queue in consumer._assigned))
    await until(lambda: not any(assigned.count for assigned in consumer._assigned.values()))


async def dead_letters(cluster, group="workers"):
    reader = await cluster.consumer("reader")
    queues = await reader.queues(f"%DLQ%{group}")
    await reader.assign(queues)
    for queue in queues:
        await reader.seek_to_begin(queue)
    return {m.body: m.properties.get("RETRY_REASON") for m in await reader.poll(2)}


class Failing:
    """A listener that fails the first so many times."""

    def __init__(self, times, error=None):
        self.calls = []
        self._times = times
        self._error = error or ValueError("no such order")

    def __call__(self, messages):
        self.calls += messages
        if len(self.calls) <= self._times:
            raise self._error


@pytest.mark.parametrize(("own", "attempts"), [(None, 3), (1, 2)])
async def test_the_groups_settings_say_how_often_unless_the_consumer_does(cluster, own, attempts):
    await (await cluster.admin()).create_group(GroupConfig(name="workers", retry_max_times=2))
    await send(cluster, b"1")
    work = Failing(10)
    async with consuming(cluster, work, max_retries=own) as consumer:
        for count in range(1, attempts + 1):
            await until(lambda count=count: len(work.calls) >= count)
            await all_acknowledged(consumer)
            await cluster.clock.advance(45)  # the second retry comes after 30 s
    assert len(work.calls) == attempts
    assert await dead_letters(cluster) == {b"1": "ValueError: no such order"}


async def test_a_failed_message_comes_again_later_with_its_reason(cluster, caplog):
    (sent,) = await send(cluster, b"1")
    work = Failing(1)
    async with consuming(cluster, work) as consumer:
        await until(lambda: work.calls)
        await all_acknowledged(consumer)
        await cluster.clock.advance(FIRST_DELAY - 1)
        assert len(work.calls) == 1
        await cluster.clock.advance(2)
        await until(lambda: len(work.calls) == 2)
    again = work.calls[1]
    assert (again.topic, again.body, again.message_id) == ("orders", b"1", sent.message_id)
    assert again.reconsume_times == 1
    assert again.properties["RETRY_REASON"] == "ValueError: no such order"
    assert caplog.text.count("Traceback") == 1


async def test_a_retry_waits_longer_each_time(cluster):
    await send(cluster, b"1")
    work = Failing(2)
    async with consuming(cluster, work) as consumer:
        for attempt, delay in ((1, 10), (2, 30)):
            await until(lambda attempt=attempt: len(work.calls) == attempt)
            await all_acknowledged(consumer)
            await cluster.clock.advance(delay - 2)
            await asyncio.sleep(0.05)
            assert len(work.calls) == attempt
            await cluster.clock.advance(3)
        await until(lambda: len(work.calls) == 3)
    assert [m.reconsume_times for m in work.calls] == [0, 1, 2]


async def test_the_listener_may_choose_the_delay_level(cluster):
    await send(cluster, b"1")
    work = Failing(1, RetryLater("soon", delay_level=1))
    async with consuming(cluster, work) as consumer:
        await until(lambda: work.calls)
        await all_acknowledged(consumer)
        await cluster.clock.advance(1.5)
        await until(lambda: len(work.calls) == 2)


async def test_after_the_last_attempt_a_message_is_a_dead_letter_that_tells_why(cluster):
    await send(cluster, b"1")
    work = Failing(9)
    async with consuming(cluster, work, max_retries=1) as consumer:
        await until(lambda: work.calls)
        await all_acknowledged(consumer)
        await cluster.clock.advance(FIRST_DELAY + 1)
        await until(lambda: len(work.calls) == 2)
        await all_acknowledged(consumer)
    assert await dead_letters(cluster) == {b"1": "ValueError: no such order"}


async def test_giving_up_makes_a_dead_letter_at_once(cluster):
    await send(cluster, b"1")
    work = Failing(9, GiveUp("hopeless"))
    async with consuming(cluster, work) as consumer:
        await until(lambda: work.calls)
        await all_acknowledged(consumer)
    assert await dead_letters(cluster) == {b"1": "GiveUp: hopeless"}


async def test_only_the_messages_not_done_come_again(cluster):
    await send(cluster, b"1", b"2", b"3")
    work = Failing(3, RetryLater(done=1))
    async with consuming(cluster, work, batch=3) as consumer:
        await until(lambda: len(work.calls) == 3)
        await all_acknowledged(consumer)
        await cluster.clock.advance(FIRST_DELAY + 1)
        await until(lambda: len(work.calls) == 5)
    assert sorted(m.body for m in work.calls[3:]) == [b"2", b"3"]


@pytest.mark.parametrize("nonsense", [False, 7, "ok", object()])
async def test_a_listener_that_returns_nonsense_has_failed(cluster, caplog, nonsense):
    await send(cluster, b"1")
    calls = []

    def work(messages):
        calls.append(messages)
        return nonsense

    async with consuming(cluster, work) as consumer:
        await until(lambda: calls)
        await all_acknowledged(consumer)
    assert "must return nothing or an Ack, or raise" in caplog.text


async def test_an_async_listener_that_is_cancelled_has_failed(cluster, caplog):
    await send(cluster, b"1", b"2")
    calls = []

    async def work(messages):
        calls.append(messages[0].body)
        if messages[0].body == b"1":
            raise asyncio.CancelledError

    async with consuming(cluster, work, concurrency=1) as consumer:
        await until(lambda: len(calls) == 2)
        await all_acknowledged(consumer)
    assert "CancelledError" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError()])
async def test_whatever_a_thread_raises_is_a_failure(cluster, error):
    await send(cluster, b"1", b"2")
    work = Failing(1, error)
    async with consuming(cluster, work, concurrency=1) as consumer:
        await until(lambda: len(work.calls) == 2)
        await all_acknowledged(consumer)


async def test_what_cannot_be_sent_back_is_tried_again_here(cluster, monkeypatch, caplog):
    async def refuse(*args):
        raise Unavailable("nobody takes it")

    monkeypatch.setattr(SendBack, "give_back", refuse)
    (sent,) = await send(cluster, b"1")
    work = Failing(1)
    async with consuming(cluster, work, local_retry_seconds=0.02) as consumer:
        await until(lambda: len(work.calls) == 2)
        await until(lambda: consumer._assigned[sent.queue].safe_offset == 1)
    assert work.calls[1].reconsume_times == 1
    assert "retried here in 0.02 s: nobody takes it" in caplog.text


@pytest.fixture
async def send_back(cluster):
    """Sends messages of a broker that is gone back: as copies."""
    send_back = SendBack("workers", (await cluster.producer())._cluster, cluster.clock, max_retries=2)
    gone = MessageQueue("orders", "gone", 0)

    async def give_back(message, level=0):
        cluster.broker.topics.for_group_retry("%RETRY%workers", 1)
        await send_back.give_back(message, gone, level, "")

    return give_back


async def test_a_copy_after_the_last_retry_is_a_dead_letter(cluster, send_back):
    (sent,) = await send(cluster, b"1")
    message = cluster.broker.store.message("orders", sent.queue.queue_id, 0)
    message.reconsume_times = 2
    await send_back(message)
    assert cluster.broker.store.message("%DLQ%workers", 0, 0).body == b"1"


async def test_a_copy_is_no_half_message_and_names_the_first_message(cluster, send_back):
    properties = {Property.TRANSACTION: "true", Property.ORIGIN_MESSAGE_ID: "the first"}
    (sent,) = await send(cluster, b"1")
    message = cluster.broker.store.message("orders", sent.queue.queue_id, 0)
    message.property_text = encode_properties(properties)
    await send_back(message)
    found = cluster.broker.store.message(SCHEDULE_TOPIC, 2, 0)
    assert Property.TRANSACTION not in found.properties
    assert found.properties[Property.ORIGIN_MESSAGE_ID] == "the first"


async def test_a_hanging_function_loses_its_message_and_its_thread_is_replaced(cluster):
    (sent, _) = await send(cluster, b"1", b"2")
    release, calls = threading.Event(), []

    def work(messages):
        calls.append(messages[0].body)
        if messages[0].body == b"1":
            release.wait(PATIENCE_SECONDS)

    async with consuming(cluster, work, concurrency=1, consume_timeout_seconds=0.3) as consumer:
        await until(lambda: calls == [b"1", b"2"])
        await until(lambda: consumer._assigned[sent.queue].safe_offset == 2)
        assert consumer._service._listeners._threads.count == 2
        release.set()
        await until(lambda: consumer._service._listeners._threads.count == 1)


async def test_a_hanging_async_listener_is_cancelled(cluster):
    (sent, _) = await send(cluster, b"1", b"2")
    calls, cancelled = [], []

    async def work(messages):
        calls.append(messages[0].body)
        if messages[0].body == b"1":
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.append(True)

    async with consuming(cluster, work, concurrency=1, consume_timeout_seconds=0.3) as consumer:
        await until(lambda: calls == [b"1", b"2"])
        await until(lambda: consumer._assigned[sent.queue].safe_offset == 2)
    assert cancelled


async def test_a_failure_after_a_reset_sends_nothing_back(cluster):
    (sent,) = await send(cluster, b"1")
    begun, release, seen, ended = threading.Event(), threading.Event(), [], threading.Event()

    def work(messages):
        seen.append(messages[0].body)
        if len(seen) == 1:
            begun.set()
            release.wait(PATIENCE_SECONDS)
            ended.set()
            raise ValueError("too late")

    async with consuming(cluster, work) as consumer:
        await until(begun.is_set)
        consumer._assignment.reset({sent.queue: 0})
        await until(lambda: len(seen) == 2)
        release.set()
        await until(ended.is_set)
        await send(cluster, b"2")
        await until(lambda: len(seen) == 3)
    assert cluster.broker.store.max_offset(SCHEDULE_TOPIC, 2) == 0


async def test_results_for_a_queue_given_away_count_for_nothing(cluster):
    await send(cluster, b"1")
    begun, release, seen = threading.Event(), threading.Event(), []

    def slow(messages):
        begun.set()
        release.wait(PATIENCE_SECONDS)

    async with consuming(cluster, slow) as first:
        await until(begun.is_set)
        first.unsubscribe("orders")
        await until(lambda: not first.assignment)
        release.set()
    async with consuming(cluster, seen.extend):
        await until(lambda: seen)
