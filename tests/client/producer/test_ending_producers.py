"""Whatever user code raises while a message is sent, and whoever sends on: a producer can be closed."""

import asyncio
import threading
from functools import partial

import pytest
from tests.waiting import PATIENCE_SECONDS

from pyromq import (
    AsyncProducer,
    AsyncTransactionProducer,
    Decision,
    Message,
    NotRunning,
    Producer,
    ProducerConfig,
    TransactionProducer,
    UsageError,
)
from pyromq.client.producer.pending_send import queue_for_key

RAISED = [ZeroDivisionError("theirs"), KeyboardInterrupt("theirs"), SystemExit(3), asyncio.CancelledError("theirs")]


def raising(error):
    def select(queues, message):
        raise error

    return select


@pytest.fixture(params=["known", "unknown"])
async def producer(cluster, request):
    """A producer, to which the topic's route is known or not."""
    async with AsyncProducer("p", cluster.namesrv) as producer:
        if request.param == "known":
            await producer.send(Message("orders", b"0"))
        yield producer


async def outcome(send):
    """What a call, or the future it returns, raises; in a task of its own, as Ctrl-C would end this test's."""
    try:
        await send()
    except BaseException as error:  # noqa: BLE001  that is the question
        return error
    return None


class Unlike:
    """Cannot be compared, as arrays cannot, and cannot be written."""

    def __eq__(self, other):
        raise ValueError("no truth value")

    def __repr__(self):
        raise ValueError("no text")


@pytest.mark.parametrize("chosen", [lambda queues: tuple(queues[0]), lambda queues: Unlike()], ids=["tuple", "unlike"])
async def test_a_selector_that_returns_no_queue_leaves_nothing_in_flight(producer, chosen):
    with pytest.raises(UsageError, match="must return one of the queues"):
        await producer.send(Message("orders", b"1"), selector=lambda queues, message: chosen(queues))
    assert producer.in_flight == 0


@pytest.mark.parametrize("error", RAISED, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("kind", ["send", "send_soon", "request"])
async def test_what_a_selector_raises_reaches_the_caller_and_nothing_is_in_flight(producer, kind, error):
    send = getattr(producer, kind)
    assert await outcome(lambda: send(Message("orders", b"1"), selector=raising(error))) is error
    assert producer.in_flight == 0
    async with asyncio.timeout(PATIENCE_SECONDS):
        await producer.close()


async def test_what_ends_generators_arrives_as_an_error_that_futures_can_carry(producer):
    for kind in (StopIteration, GeneratorExit):
        with pytest.raises(RuntimeError, match=kind.__name__) as raised:
            await producer.send(Message("orders", b"1"), selector=raising(kind("theirs")))
        assert isinstance(raised.value.__cause__, kind)
    assert producer.in_flight == 0


async def test_a_selector_that_raises_hurts_no_other_message_of_its_topic(producer):
    futures = [
        producer.send_soon(Message("orders", b"1"), selector=raising(ValueError("theirs")) if n == 1 else None)
        for n in range(3)
    ]
    results = await asyncio.gather(*futures, return_exceptions=True)
    assert [type(result).__name__ for result in results] == ["SendResult", "ValueError", "SendResult"]
    assert producer.in_flight == 0


async def test_a_one_way_message_raises_what_its_key_is_refused_for(producer):
    with pytest.raises(UsageError, match=r"ordering_key=7\.5 is float; it is a string, a whole number or bytes"):
        await producer.send_one_way(Message("orders", b"1"), ordering_key=7.5)


@pytest.mark.parametrize(("key", "text"), [(7, "7"), (-7, "-7"), (b"N1", "N1"), ("ü".encode(), "ü")])
async def test_numbers_and_bytes_go_where_their_text_goes(producer, key, text):
    expected = queue_for_key(await producer.queues("orders"), text)
    message, batch = Message("orders", b"1"), [Message("orders", b"2"), Message("orders", b"3")]
    results = [await producer.send(message, ordering_key=key), await producer.send_batch(batch, ordering_key=key)]
    assert {result.queue for result in results} == {expected}


@pytest.mark.parametrize("key", [7.5, None.__class__, ["a"], True], ids=str)
async def test_other_keys_are_refused_before_anything_is_sent(producer, key):
    batch = [Message("orders", b"1")]
    for send in (producer.send, producer.request, producer.send_soon):
        with pytest.raises(UsageError, match=r"ordering_key=.*is a string, a whole number or bytes"):
            await send(batch[0], ordering_key=key)
    with pytest.raises(UsageError, match="ordering_key="):
        await producer.send_batch(batch, ordering_key=key)
    assert producer.in_flight == 0


def test_a_blocking_producer_whose_user_code_raises_can_be_closed(served):
    with Producer("p", served.namesrv) as producer:
        for error in RAISED:
            with pytest.raises(type(error)):
                producer.send(Message("raising", b"1"), selector=raising(error))
            with pytest.raises(type(error)):
                producer.send_soon(Message("raising", b"1"), selector=raising(error)).result(PATIENCE_SECONDS)
            with pytest.raises(type(error)):
                producer.request(Message("raising", b"1"), selector=raising(error))
        with pytest.raises(UsageError, match="ordering_key"):
            producer.send(Message("raising", b"1"), ordering_key=7.5)
        assert producer._async.in_flight == 0


def test_a_blocking_transaction_producer_can_be_closed_whatever_its_work_raises(served):
    for error in RAISED:
        with TransactionProducer("tp", served.namesrv, check=lambda message: Decision.ROLLBACK) as producer:
            if isinstance(error, Exception):
                result = producer.send_in_transaction(Message("raising", b"1"), partial(raising(error), []))
                assert result.decision is Decision.UNKNOWN
            with pytest.raises(type(error)), producer.transaction(Message("raising", b"1")):
                raise error
            assert producer._async.in_flight == 0


async def test_an_async_transaction_producer_counts_what_its_work_raises_as_nothing_in_flight(cluster):
    async with AsyncTransactionProducer("tp", cluster.namesrv, check=lambda message: Decision.ROLLBACK) as producer:
        for error in RAISED:

            async def work(message, error=error):
                raise error

            assert await outcome(lambda work=work: producer.send_in_transaction(Message("t", b"1"), work)) in (
                None,
                error,
            )
        assert producer.in_flight == 0


async def test_closing_refuses_new_sends_at_once(cluster):
    producer = AsyncProducer("p", cluster.namesrv)
    await producer.start()
    stopped, sent = [], [producer.send_soon(Message("orders", b"0"))]

    async def go_on():
        while True:
            try:
                sent.append(producer.send_soon(Message("orders", b"1")))
                await sent[-2]
            except NotRunning as error:
                stopped.append(error)
                return

    senders = [asyncio.ensure_future(go_on()) for _ in range(3)]
    await sent[0]
    closing = asyncio.ensure_future(producer.close())
    await asyncio.sleep(0)
    with pytest.raises(NotRunning, match="is being closed"):
        producer.send_soon(Message("orders", b"2"))
    async with asyncio.timeout(PATIENCE_SECONDS):
        await asyncio.gather(closing, *senders)
    assert len(stopped) == 3
    assert all(future.result().queue_offset >= 0 for future in sent)


async def test_who_waits_for_room_when_the_producer_is_closed_is_refused(cluster):
    producer = AsyncProducer("p", cluster.namesrv, config=ProducerConfig(max_in_flight=1))
    await producer.start()
    first = producer.send_soon(Message("orders", b"0"))
    calls = producer.send(Message("orders", b"1")), producer.send_batch([Message("orders", b"2")])
    waiting = [asyncio.ensure_future(each) for each in calls]
    await asyncio.sleep(0)
    await producer.close()
    assert first.result().queue_offset == 0
    assert [type(each) for each in await asyncio.gather(*waiting, return_exceptions=True)] == [NotRunning, NotRunning]


@pytest.mark.parametrize("kind", ["send", "send_soon"])
def test_a_blocking_producer_is_closed_while_threads_send_on(served, kind):
    producer = Producer("p", served.namesrv, config=ProducerConfig(max_in_flight=100))
    producer.start()
    begun, refused, results = threading.Semaphore(0), threading.Semaphore(0), []

    def go_on():
        send = getattr(producer, kind)
        while True:
            try:
                results.append(send(Message("going-on", b"1")))
                begun.release()
            except NotRunning:
                refused.release()
                return

    threads = [threading.Thread(target=go_on, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(50):
        assert begun.acquire(timeout=PATIENCE_SECONDS)
    closing = threading.Thread(target=producer.close, daemon=True)
    closing.start()
    closing.join(PATIENCE_SECONDS)
    assert not closing.is_alive()
    assert all(refused.acquire(timeout=PATIENCE_SECONDS) for _ in threads)
    if kind == "send_soon":  # every message was sent or refused, and says so
        assert {type(result.exception(PATIENCE_SECONDS)) for result in results} <= {type(None), NotRunning}
