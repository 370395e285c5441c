"""What administrators see of a push consumer, and what they can have it do."""

import asyncio

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq.client.consumer.push.listener import Ack, RetryLater
from pyromq.clock import SystemClock
from pyromq.errors import BrokerError
from pyromq.net.channel import connect
from pyromq.remoting.bodies import ConsumeDirectlyResult, ConsumerRunning, ConsumerStatus, decode_body
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import ConsumeDirectly, ConsumerRunningState, ConsumerStatusOfGroup


@pytest.fixture
async def ask(cluster):
    """Ask the broker something and return the answer's body."""
    channel = await connect(cluster.broker.address, Dispatcher(None), SystemClock())

    async def ask(header, body):
        return decode_body(body, (await channel.call(header, timeout=30)).check().body)

    yield ask
    await channel.close()


async def test_running_state_shows_settings_subscriptions_and_queues(send, consuming, seen, until, ask):
    (sent, *_) = await send(range(3), key="k")
    async with consuming(seen, tags="*", batch=7, concurrency=3) as consumer:
        await seen.wait(3)
        await until(lambda: consumer._assigned[sent.queue].consumed_ms)  # the thread has said so
        running = await ask(
            ConsumerRunningState(consumer_group="workers", client_id=consumer.client_id), ConsumerRunning
        )
    assert running.properties["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert running.properties["PROP_THREADPOOL_CORE_SIZE"] == "3"
    assert running.properties["consumeMessageBatchMaxSize"] == "7"
    assert {s.topic for s in running.subscriptions} == {"orders", "%RETRY%workers"}
    assert running.queues[sent.queue].last_pull_ms > 0
    assert running.queues[sent.queue].last_consume_ms > 0
    assert running.rates["orders"].pull_tps > 0
    assert running.rates["orders"].consume_ok_tps > 0
    assert (running.rates["orders"].consume_failed_count, running.stack) == (0, None)


@pytest.mark.parametrize("orderly", [False, True])
async def test_running_state_counts_what_failed(send, consuming, until, ask, orderly):
    await send(range(3), key="k")
    failures = []

    async def fail(messages):
        failures.append(messages)
        raise ValueError("no")

    async with consuming(fail, orderly=orderly) as consumer:
        await until(lambda: failures and consumer._status.rates.tally("orders").failed)
        running = await ask(
            ConsumerRunningState(consumer_group="workers", client_id=consumer.client_id, stack_wanted=True),
            ConsumerRunning,
        )
    assert running.rates["orders"].consume_failed_count > 0
    assert running.rates["orders"].consume_ok_tps == 0
    assert "MainThread" in running.stack


async def test_running_state_shows_what_is_in_flight(send, consuming, until, ask):
    (sent, *_) = await send(range(3), key="k")
    release, calls = asyncio.Event(), []

    async def work(messages):
        calls.append(messages)
        await release.wait()

    async with consuming(work, concurrency=1, orderly=True) as consumer:
        await until(lambda: calls)
        running = await ask(
            ConsumerRunningState(consumer_group="workers", client_id=consumer.client_id), ConsumerRunning
        )
        release.set()
    queue = running.queues[sent.queue]
    assert (queue.cached_count, queue.cached_min_offset, queue.cached_max_offset) == (3, 0, 2)
    assert queue.locked
    assert queue.last_lock_ms > 0


async def test_members_tell_how_far_they_are(send, consuming, seen, until, ask):
    (sent, *_) = await send(range(3), key="k")
    async with consuming(seen) as consumer:
        await seen.wait(3)
        await until(lambda: not consumer._assigned[sent.queue].count)  # all that the listener said has come
        status = await ask(ConsumerStatusOfGroup(topic="orders", group="workers"), ConsumerStatus)
    assert status.clients[consumer.client_id][sent.queue] == 3


async def _fail(messages):
    raise ValueError("no")


async def _later(messages):
    raise RetryLater("later")


@pytest.mark.parametrize(
    ("listener", "result", "remark"),
    [
        (lambda messages: None, "CR_SUCCESS", None),
        (lambda messages: Ack.COMMIT, "CR_COMMIT", None),
        (lambda messages: 7, "CR_LATER", None),
        (_fail, "CR_THROW_EXCEPTION", "ValueError: no"),
        (_later, "CR_LATER", "RetryLater: later"),
    ],
)
async def test_a_listener_can_be_run_on_one_message(send, consuming, ask, listener, result, remark):
    (sent, *_) = await send([1])
    async with consuming(lambda messages: None) as consumer:
        consumer.subscribe("orders", listener)
        answer = await ask(
            ConsumeDirectly(consumer_group="workers", client_id=consumer.client_id, message_id=sent.offset_message_id),
            ConsumeDirectlyResult,
        )
    assert (answer.result, answer.remark, answer.order) == (result, remark, False)


async def test_another_group_is_not_answered_for(send, consuming, seen, ask):
    async with consuming(seen) as consumer:
        with pytest.raises(BrokerError, match="not online"):
            await ask(ConsumerRunningState(consumer_group="other", client_id=consumer.client_id), ConsumerRunning)


@pytest.mark.parametrize("orderly", [False, True])
async def test_a_reset_group_consumes_again_from_there(cluster, send, consuming, seen, orderly):
    await send(range(3), key="k")
    await cluster.clock.advance(10)
    moment = cluster.clock.now_ms() - 1000
    await send(range(3, 6), key="k")
    async with consuming(seen, orderly=orderly, commit_seconds=0.01):
        await seen.wait(6)
        async with asyncio.timeout(PATIENCE_SECONDS):
            admin = await cluster.admin()
            while sum(p.consumer_offset for p in await admin.group_progress("workers", "orders")) < 6:
                await asyncio.sleep(0.01)
        await admin.reset_offset("workers", "orders", moment)
        await seen.wait(9)
    assert sorted(seen.bodies[6:]) == [3, 4, 5]
    assert sum(p.consumer_offset for p in await admin.group_progress("workers", "orders")) == 6
