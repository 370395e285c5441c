"""Transaction producers at a real broker: what consumers see, and who answers for a decision that was lost."""

import asyncio
import logging
import threading
from functools import partial

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq import (
    AsyncTransactionProducer,
    Decision,
    Message,
    PullConsumer,
    SendStatus,
    TransactionProducer,
    Unavailable,
    UsageError,
)
from pyromq.client.producer.transaction_producer import _outcome, decision_of
from pyromq.clock import SystemClock
from pyromq.errors import MQError
from pyromq.store.disk import LocalDisk
from pyromq.store.store_config import FlushMode, StoreConfig
from pyromq.testing import Cluster

ROUND_SECONDS = 1.1  # then immunity and the time between two rounds of checks have both passed, see `cluster`


class Checks:
    """A check function that notes what it is asked, and answers as told."""

    def __init__(self, *decisions):
        self.decisions = list(decisions)
        self.asked = asyncio.Queue()

    async def __call__(self, message):
        self.asked.put_nowait(message)
        decision = self.decisions.pop(0)
        if isinstance(decision, Exception):
            raise decision
        return decision

    async def next(self):
        return await asyncio.wait_for(self.asked.get(), PATIENCE_SECONDS)


@pytest.fixture
async def cluster():
    async with Cluster(transaction_check_interval_ms=500, transaction_timeout_ms=500) as cluster:
        yield cluster


@pytest.fixture
async def checks():
    return Checks()


@pytest.fixture
async def producer(cluster, checks):
    async with AsyncTransactionProducer("p", cluster.namesrv, check=checks) as producer:
        yield producer


async def visible(cluster, topic="orders"):
    """Return the bodies that consumers see now."""
    consumer = await cluster.consumer("reader")
    bodies = []
    for queue in await consumer.queues(topic):
        result = await consumer.pull(queue, 0)
        bodies += [message.body for message in result.messages]
    return sorted(bodies)


async def until_visible(cluster, *bodies):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while await visible(cluster) != sorted(bodies):
            await asyncio.sleep(0.005)  # decisions travel one-way: nothing tells when they have arrived


async def test_a_committed_message_is_seen_and_a_rolled_back_one_is_not(cluster, producer):
    seen_inside = []

    async def execute(message):
        seen_inside.append(await visible(cluster))
        return Decision.COMMIT

    result = await producer.send_in_transaction(Message("orders", b"1", keys="k"), execute)
    assert (result.decision, result.confirmed, result.sent.status) == (Decision.COMMIT, True, SendStatus.OK)
    result = await producer.send_in_transaction(Message("orders", b"2"), lambda message: Decision.ROLLBACK)
    assert (result.decision, result.confirmed) == (Decision.ROLLBACK, True)
    assert seen_inside == [[]]
    assert await visible(cluster) == [b"1"]


async def test_a_block_commits_when_it_is_left(cluster, producer):
    async with producer.transaction(Message("orders", b"1")) as transaction:
        assert await visible(cluster) == []
    async with producer.transaction(Message("orders", b"2")) as rolled_back:
        rolled_back.rollback()
    assert await visible(cluster) == [b"1"]
    assert transaction.transaction_id == transaction.sent.message_id != rolled_back.transaction_id


async def test_the_broker_asks_about_what_was_left_open(cluster, producer, checks):
    checks.decisions = [Decision.COMMIT]
    async with producer.transaction(Message("orders", b"1", tags="t")) as transaction:
        transaction.leave_open()
    await cluster.clock.advance(ROUND_SECONDS)
    asked = await checks.next()
    assert (asked.topic, asked.body, asked.tags, asked.message_id) == ("orders", b"1", "t", transaction.transaction_id)
    await until_visible(cluster, b"1")


async def test_a_failed_block_is_neither_committed_nor_rolled_back(cluster, producer, checks):
    checks.decisions = [Decision.COMMIT]
    with pytest.raises(ZeroDivisionError):
        async with producer.transaction(Message("orders", b"1")):
            raise ZeroDivisionError
    assert await visible(cluster) == []
    await cluster.clock.advance(ROUND_SECONDS)
    await until_visible(cluster, b"1")


@pytest.mark.parametrize("outcome", [ZeroDivisionError("no"), "yes", None])
async def test_failures_and_nonsense_leave_the_decision_to_a_check(cluster, producer, checks, caplog, outcome):
    def execute(message):
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    checks.decisions = [outcome, Decision.ROLLBACK]
    with caplog.at_level(logging.WARNING, "pyromq.client.producer.transaction_producer"):
        result = await producer.send_in_transaction(Message("orders", b"1"), execute)
    assert (result.decision, result.confirmed) == (Decision.UNKNOWN, False)
    assert result.sent.message_id in caplog.text
    assert ("ZeroDivisionError" in caplog.text) == isinstance(outcome, Exception)
    for _ in range(2):  # the check itself fails at first, and is asked again
        await cluster.clock.advance(ROUND_SECONDS)
        await checks.next()
    assert await visible(cluster) == []


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), StopIteration(), asyncio.CancelledError()])
@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "async"])
async def test_whatever_a_check_raises_counts_as_unknown(cluster, is_async, failure):
    asked = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def check(message):
        loop.call_soon_threadsafe(asked.put_nowait, message)
        if not message.properties.get("TRANSACTION_CHECK_TIMES", "1") > "1":
            raise failure
        return Decision.COMMIT

    async def async_check(message):
        return check(message)

    function = async_check if is_async else check
    async with AsyncTransactionProducer("p", cluster.namesrv, check=function) as producer:
        async with producer.transaction(Message("orders", b"1")) as transaction:
            transaction.leave_open()
        for _ in range(2):
            await cluster.clock.advance(ROUND_SECONDS)
            await asyncio.wait_for(asked.get(), PATIENCE_SECONDS)
        await until_visible(cluster, b"1")


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt()])
async def test_work_that_exits_ends_its_caller_and_decides_nothing(cluster, producer, checks, failure):
    def work(message):
        raise failure

    async def send():
        try:
            await producer.send_in_transaction(Message("orders", b"1"), work)
        except (SystemExit, KeyboardInterrupt) as error:
            return error

    checks.decisions = [Decision.COMMIT]
    assert await send() is failure
    await cluster.clock.advance(ROUND_SECONDS)
    await until_visible(cluster, b"1")


async def test_a_call_of_an_async_callable_object_is_begun_in_the_event_loop():
    """A thread would make a coroutine that nobody awaits if the producer closes at that moment."""
    begun = []

    class Work:
        async def __call__(self, message, decision=Decision.UNKNOWN):
            begun.append(message)
            return decision

    message = Message("orders", b"1")
    outcomes = [asyncio.ensure_future(_outcome(work, message)) for work in (Work(), partial(Work(), decision=None))]
    await asyncio.sleep(0)
    assert begun == [message] * 2
    assert await asyncio.gather(*outcomes) == [(Decision.UNKNOWN, None), (None, None)]


async def test_another_member_of_the_group_answers(cluster, checks):
    first = AsyncTransactionProducer("p", cluster.namesrv, check=Checks())
    async with first, first.transaction(Message("orders", b"1")) as transaction:
        transaction.leave_open()
    checks.decisions = [Decision.COMMIT]
    async with AsyncTransactionProducer("p", cluster.namesrv, check=checks) as second:
        await second.queues("orders")
        await second.send(Message("orders", b"2"))  # so that the broker knows it
        await cluster.clock.advance(ROUND_SECONDS)
        await checks.next()
        await until_visible(cluster, b"1", b"2")


async def test_a_member_that_sends_nothing_is_asked_too(cluster, checks):
    first = AsyncTransactionProducer("p", cluster.namesrv, check=checks)
    async with first, first.transaction(Message("orders", b"orphan")) as transaction:
        transaction.leave_open()
    checks.decisions = [Decision.COMMIT]
    async with AsyncTransactionProducer("p", cluster.namesrv, check=checks), asyncio.timeout(PATIENCE_SECONDS):
        while not cluster.broker.connections.producers("p"):
            await asyncio.sleep(0.005)
        await cluster.clock.advance(ROUND_SECONDS)
        assert (await checks.next()).body == b"orphan"


async def test_a_plain_check_does_not_hold_up_the_loop(cluster):
    def check(message):
        answered = asyncio.run_coroutine_threadsafe(answer(), loop)
        return answered.result(PATIENCE_SECONDS)  # would never end on the loop itself

    async def answer():
        return Decision.COMMIT

    loop = asyncio.get_running_loop()
    async with AsyncTransactionProducer("p", cluster.namesrv, check=check) as producer:
        async with producer.transaction(Message("orders", b"1")) as transaction:
            transaction.leave_open()
        await cluster.clock.advance(ROUND_SECONDS)
        await until_visible(cluster, b"1")


async def test_a_delay_is_dropped(cluster, producer):
    async with producer.transaction(Message("orders", b"1", delay_level=3)):
        pass
    assert await visible(cluster) == [b"1"]


async def test_ordinary_messages_go_as_ever(cluster, producer):
    await producer.send(Message("orders", b"1", delay_level=0))
    assert await visible(cluster) == [b"1"]


async def test_nothing_is_executed_when_the_half_message_is_not_stored(cluster, producer):
    await (await cluster.admin()).create_topic("closed", 1, permission="r")
    executed = []
    with pytest.raises(MQError):
        await producer.send_in_transaction(Message("closed", b"2"), executed.append, timeout=0.2)
    assert not executed


@pytest.fixture
async def hesitant(tmp_path, monkeypatch):
    """A cluster that confirms when the disk has a message, with a disk that takes its time."""
    store = StoreConfig(tmp_path, flush=FlushMode.SYNC, sync_flush_timeout_ms=50)
    works = threading.Event()
    genuine = LocalDisk.sync
    async with Cluster(clock=SystemClock(), store=store) as cluster:
        async with AsyncTransactionProducer("p", cluster.namesrv, check=Checks()) as producer:
            await producer.send_in_transaction(Message("orders", b"0"), lambda message: Decision.ROLLBACK)
        await visible(cluster)  # topics and groups exist: making them waits for the disk
        monkeypatch.setattr(LocalDisk, "sync", staticmethod(lambda fd: (works.wait(30), genuine(fd))))
        yield cluster
        works.set()


async def test_what_was_stored_less_safely_than_asked_is_rolled_back(hesitant):
    executed = []
    async with AsyncTransactionProducer("p", hesitant.namesrv, check=Checks()) as producer:
        result = await producer.send_in_transaction(Message("orders", b"1"), executed.append)
        assert (result.sent.status, result.decision) == (SendStatus.FLUSH_DISK_TIMEOUT, Decision.ROLLBACK)
        with pytest.raises(Unavailable, match="rolled back: stored, but FLUSH_DISK_TIMEOUT"):
            async with producer.transaction(Message("orders", b"2")):
                executed.append(1)
    assert executed == []
    assert await visible(hesitant) == []


async def test_a_decision_that_cannot_be_told_is_not_confirmed(cluster, producer, caplog):
    async def execute(message):
        await cluster.kill_broker()
        return Decision.COMMIT

    result = await producer.send_in_transaction(Message("orders", b"1"), execute)
    assert (result.decision, result.confirmed) == (Decision.COMMIT, False)
    assert f"COMMIT of transaction {result.sent.message_id} is not confirmed" in caplog.text


async def test_a_check_must_be_callable():
    with pytest.raises(UsageError, match="check=3 is int; it must be a function"):
        AsyncTransactionProducer("p", check=3)


def test_only_decisions_decide(caplog):
    assert decision_of(Decision.ROLLBACK, None, "x") is Decision.ROLLBACK
    assert decision_of(True, None, "the check") is Decision.UNKNOWN
    assert decision_of(None, SystemExit(), "the check") is Decision.UNKNOWN
    assert "the check returned True" in caplog.text


def test_blocking(served):
    asked = []

    def check(message):
        asked.append(message.body)
        return Decision.COMMIT

    with TransactionProducer("blocking", served.namesrv, check=check) as producer:
        with producer.transaction(Message("blocked", b"1")):
            pass
        with producer.transaction(Message("blocked", b"2")) as transaction:
            transaction.rollback()
        result = producer.send_in_transaction(Message("blocked", b"3"), lambda message: Decision.COMMIT)
        assert result.confirmed
        result = producer.send_in_transaction(Message("blocked", b"4"), lambda message: 1 // 0)
        assert result.decision is Decision.UNKNOWN
        served.do(served.cluster.clock.advance(70))  # with default settings
        with PullConsumer("reader", served.namesrv) as consumer:
            consumer.assign(consumer.queues("blocked"))
            for queue in consumer.assignment:
                consumer.seek_to_begin(queue)
            bodies = set()
            for message in consumer:
                bodies.add(message.body)
                if len(bodies) == 3:
                    break
    assert bodies == {b"1", b"3", b"4"}
    assert asked == [b"4"]


@pytest.mark.parametrize("failure", [SystemExit(3), KeyboardInterrupt(), StopIteration()])
def test_a_blocking_producer_answers_on_after_a_check_that_exits(served, failure):
    answers = {b"exits": failure, b"asked later": Decision.COMMIT}
    asked = {body: threading.Event() for body in answers}
    group = type(failure).__name__

    def check(message):
        asked[message.body].set()
        if isinstance(answer := answers[message.body], BaseException):
            raise answer
        return answer

    with TransactionProducer(group, served.namesrv, check=check) as producer:
        for body in answers:
            with producer.transaction(Message(group, body)) as transaction:
                transaction.leave_open()
            served.do(served.cluster.clock.advance(70))  # with default settings
            assert asked[body].wait(PATIENCE_SECONDS)
        with PullConsumer("reader", served.namesrv) as consumer:
            consumer.assign(consumer.queues(group))
            for queue in consumer.assignment:
                consumer.seek_to_begin(queue)
            assert next(consumer).body == b"asked later"
