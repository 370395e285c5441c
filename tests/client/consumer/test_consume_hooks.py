"""What hooks of consumers see: every call of a listener and what becomes of its messages, of all kinds of listeners."""

import asyncio
import threading
from contextvars import ContextVar

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq import (
    Ack,
    AsyncConsumer,
    AsyncPullConsumer,
    ConsumeFrom,
    Consumer,
    ConsumerConfig,
    ConsumeStatus,
    GiveUp,
    Message,
    Producer,
    PullConsumer,
    RetryLater,
    UsageError,
)

SPAN = ContextVar("span", default=None)


class Watching:
    """Keeps what it is told, and puts the number of the call into the listener's context."""

    def __init__(self):
        self.ended = []
        self.threads = set()

    def before_consume(self, delivery):
        delivery.state[self] = SPAN.set(delivery.messages[0].body)
        self.threads.add(threading.current_thread())

    def after_consume(self, delivery, outcome):
        SPAN.reset(delivery.state[self])
        self.ended.append((delivery, outcome))

    @property
    def statuses(self):
        return [(outcome.status, outcome.done, type(outcome.error).__name__) for _, outcome in self.ended]


class Failing:
    def before_consume(self, delivery):
        raise ZeroDivisionError("before")

    def after_consume(self, delivery, outcome):
        raise ZeroDivisionError("after")


@pytest.fixture
def watching():
    return Watching()


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize("in_task", [False, True])
async def test_each_kind_of_listener_is_told_of_in_its_own_context(
    consuming, send, watching, until, *, orderly, in_task
):
    spans = []

    def work(messages):
        spans.append(SPAN.get())

    async def work_in_task(messages):
        await asyncio.sleep(0)
        spans.append(SPAN.get())

    listener = work_in_task if in_task else work
    async with consuming(listener, orderly=orderly, hooks=(watching,)) as consumer:
        await send([1, 2], key="k")
        await until(lambda: len(watching.ended) == 2)
    assert spans == [b"1", b"2"]
    assert watching.statuses == [(ConsumeStatus.CONSUMED, 1, "NoneType")] * 2
    delivery, outcome = watching.ended[0]
    assert (delivery.group, delivery.client_id) == ("workers", consumer.client_id)
    assert [message.body for message in delivery.messages] == [b"1"]
    assert 0 <= outcome.seconds < 5
    assert (threading.current_thread() in watching.threads) is in_task


@pytest.mark.parametrize(
    ("raised", "config", "told"),
    [
        (ValueError("no"), {}, (ConsumeStatus.RETRIED, 0, "ValueError")),
        (RetryLater(done=1), {}, (ConsumeStatus.RETRIED, 1, "RetryLater")),
        (GiveUp(), {}, (ConsumeStatus.DEAD_LETTERED, 0, "GiveUp")),
        (ValueError("no"), {"max_retries": 0}, (ConsumeStatus.DEAD_LETTERED, 0, "ValueError")),
        (ValueError("no"), {"orderly": True}, (ConsumeStatus.RETRIED, 0, "ValueError")),
        (GiveUp(), {"orderly": True}, (ConsumeStatus.DEAD_LETTERED, 0, "GiveUp")),
        (ValueError("no"), {"broadcast": True}, (ConsumeStatus.DROPPED, 0, "ValueError")),
        (GiveUp(), {"broadcast": True, "orderly": True}, (ConsumeStatus.DROPPED, 0, "GiveUp")),
    ],
)
async def test_what_becomes_of_messages_that_a_listener_failed_at(
    consuming, cluster, watching, until, tmp_path, *, raised, config, told
):
    def work(messages):
        raise raised

    producer = await cluster.producer()
    await producer.send(Message("orders", b"0"))  # the topic
    async with consuming(work, hooks=(watching,), batch=2, offsets_folder=tmp_path, **config) as consumer:
        await until(lambda: len(consumer.assignment) == 4)
        await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        await until(lambda: told in watching.statuses)


async def test_a_roll_back_brings_messages_again(consuming, send, watching, until):
    answers = [Ack.ROLLBACK, Ack.COMMIT]
    async with consuming(
        lambda _: answers.pop(0), orderly=True, auto_commit=False, suspend_seconds=0.01, hooks=(watching,)
    ):
        await send([1], key="k")
        await until(lambda: len(watching.ended) == 2)
    assert [status for status, _, _ in watching.statuses] == [ConsumeStatus.RETRIED, ConsumeStatus.CONSUMED]


async def test_a_listener_that_is_cancelled_is_told_to_have_failed(consuming, send, watching):
    begun = asyncio.Event()

    async def hang(messages):
        begun.set()
        await asyncio.Event().wait()

    async with consuming(hang, close_seconds=0.01, hooks=(watching,)):
        await send([1])
        await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
    assert watching.statuses == [(ConsumeStatus.RETRIED, 0, "CancelledError")]


async def test_what_a_hook_raises_is_logged_and_messages_are_consumed(consuming, send, seen, watching, caplog):
    async with consuming(seen, hooks=(Failing(), watching)):
        await send([1])
        assert await seen.wait(1) == [1]
    assert watching.statuses == [(ConsumeStatus.CONSUMED, 1, "NoneType")]
    assert caplog.text.count("its caller continues") == 2


def test_without_hooks_a_listener_is_called_as_it_is():
    def work(messages):
        pass

    consumer = AsyncConsumer("workers")
    consumer.subscribe("orders", work)
    assert consumer._subscriptions.listener("orders").call is work


def test_a_hook_without_methods_of_one_is_refused():
    with pytest.raises(UsageError, match="has not the methods of a ConsumeMessageHook"):
        ConsumerConfig(hooks=(object(),))


def test_a_blocking_consumer_tells_the_same(served, watching):
    got = threading.Event()
    consumer = Consumer("blocking", served.namesrv, config=ConsumerConfig(hooks=(watching,)))
    consumer.subscribe("letters", lambda messages: got.set())
    with Producer("p", served.namesrv) as producer, consumer:
        producer.send(Message("letters", b"1"))
        assert got.wait(PATIENCE_SECONDS)
    assert watching.statuses == [(ConsumeStatus.CONSUMED, 1, "NoneType")]


class Noting:
    """Notes bodies as they are handed out, and what became of them."""

    def __init__(self):
        self.told = []

    def before_consume(self, delivery):
        self.told.append([message.body for message in delivery.messages])

    def after_consume(self, delivery, outcome):
        self.told.append((outcome.status, outcome.done))


def pulling(**config):
    return ConsumerConfig(consume_from=ConsumeFrom.FIRST, hooks=(hook := Noting(),), **config), hook


async def test_a_poll_is_told_as_consumed_when_the_application_asks_for_more(cluster, send):
    await send([1, 2], key="k")
    config, hook = pulling()
    async with AsyncPullConsumer("readers", cluster.namesrv, config=config) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        assert len(await consumer.poll(5)) == 2
        assert hook.told == [[b"1", b"2"]]
        await consumer.poll(0)
        assert hook.told[1:] == [(ConsumeStatus.CONSUMED, 2)]
        await send([3], key="k")
        await consumer.poll(5)
        await consumer.commit()
    assert hook.told[2:] == [[b"3"], (ConsumeStatus.CONSUMED, 1)]


async def test_what_is_handed_back_or_never_committed_is_told_to_come_again(cluster, send):
    await send([1, 2], key="k")
    failing, hook = pulling()
    with pytest.raises(ZeroDivisionError):
        async with AsyncPullConsumer("failing", cluster.namesrv, config=failing) as consumer:
            await consumer.assign(await consumer.queues("orders"))
            async for _ in consumer:
                raise ZeroDivisionError
    assert hook.told == [[b"1"], (ConsumeStatus.RETRIED, 0)]
    forgetful, hook = pulling(auto_commit=False)
    async with AsyncPullConsumer("forgetful", cluster.namesrv, config=forgetful) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        await consumer.poll(5)
    assert hook.told == [[b"1", b"2"], (ConsumeStatus.RETRIED, 0)]


def test_iteration_tells_message_by_message(served):
    with Producer("p", served.namesrv) as producer:
        producer.send_batch([Message("cards", b"1"), Message("cards", b"2")])
    config, hook = pulling()
    with PullConsumer("readers", served.namesrv, config=config) as consumer:
        consumer.assign(consumer.queues("cards"))
        bodies = [message.body for _, message in zip(range(2), consumer, strict=False)]
    assert bodies == [b"1", b"2"]
    assert hook.told == [[b"1"], (ConsumeStatus.CONSUMED, 1), [b"2"], (ConsumeStatus.CONSUMED, 1)]


class Even:
    """Wants messages with even numbers only."""

    def filter_messages(self, group, messages):
        return [message for message in messages if int(message.body) % 2 == 0]


class FailingFilter:
    def filter_messages(self, group, messages):
        raise ValueError("no")


@pytest.mark.parametrize("orderly", [False, True])
async def test_push_consumers_give_what_hooks_want_and_pass_over_the_rest(
    cluster, send, consuming, seen, until, orderly
):
    (sent, *_) = await send(range(5), key="k")
    async with consuming(seen, orderly=orderly, hooks=(FailingFilter(), Even()), commit_seconds=0.01):
        await seen.wait(3)
        await until(lambda: cluster.broker.offsets.find("workers", "orders", sent.queue.queue_id) == 5)
    assert sorted(seen.bodies) == [0, 2, 4]


async def test_pull_consumers_hand_out_what_hooks_want(cluster, send):
    (sent, *_) = await send(range(5), key="k")
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST, hooks=(Even(),))
    async with AsyncPullConsumer("workers", cluster.namesrv, config=config) as consumer:
        await consumer.assign([sent.queue])
        found = []
        while len(found) < 3:
            found += await consumer.poll(timeout=10)
        await consumer.commit()
        assert await consumer.committed(sent.queue) == 5
    assert [message.body for message in found] == [b"0", b"2", b"4"]
