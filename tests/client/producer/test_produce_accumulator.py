"""Messages that wait a moment for others: what becomes one batch, its order and results; and limits by bytes."""

import asyncio

import pytest

from pyromq import AsyncProducer, IllegalMessage, Message, Producer, ProducerConfig, UsageError
from pyromq.client.client_hooks import SendKind
from pyromq.clock import SystemClock
from pyromq.errors import TopicNotFound
from pyromq.testing import Cluster, FakeClock


@pytest.fixture
async def clock():
    return FakeClock()


@pytest.fixture
async def linger(cluster, clock):
    """Start a producer on a clock of its own; its requests are noted."""
    producers = []

    async def start(**config):
        config = ProducerConfig(linger_seconds=5.0, timeout=60.0, **config)
        producer = AsyncProducer("p", cluster.namesrv, config=config, clock=clock)
        await producer.start()
        producers.append(producer)
        await producer.send_batch([Message("orders", b"first")])  # knows its route and broker from here on
        return producer

    yield start
    for producer in producers:
        await producer.close()


async def stored(cluster, topic="orders"):
    """Return the bodies of each queue, in order."""
    consumer = await cluster.consumer("reader")
    found = [(await consumer.pull(queue, 0)).messages for queue in await consumer.queues(topic)]
    return [[m.body for m in messages if m.body != b"first"] for messages in found]


async def test_messages_of_a_moment_go_as_one_batch_with_a_result_each(cluster, linger, clock):
    producer = await linger()
    messages = [Message("orders", b"%d" % n, tags="t", keys=f"k{n}", properties={"n": str(n)}) for n in range(5)]
    futures = [producer.send_soon(message) for message in messages]
    assert producer.in_flight == 5
    await clock.advance(4)
    assert not any(future.done() for future in futures)
    await clock.advance(1)
    results = await asyncio.gather(*futures)

    assert len({result.queue for result in results}) == 1
    first = results[0].queue_offset
    assert [result.queue_offset for result in results] == list(range(first, first + 5))
    assert [result.message_id for result in results] == [message.message_id for message in messages]
    admin = await cluster.admin()
    for message, result in zip(messages, results, strict=True):
        found = await admin.view(result.offset_message_id)
        assert (found.body, found.tags, found.keys) == (message.body, "t", list(message.keys))
        assert (found.properties["n"], found.message_id) == (message.properties["n"], message.message_id)
    assert producer.in_flight == 0


async def test_a_full_batch_goes_at_once(cluster, linger):
    producer = await linger(batch_bytes=1000)
    futures = [producer.send_soon(Message("orders", bytes(100))) for _ in range(12)]
    for future in futures[:8]:
        await future
    assert not futures[-1].done()
    await producer.flush()
    assert (await futures[-1]).queue_offset >= 0


async def test_a_key_keeps_its_messages_in_order_whatever_goes_by_itself(cluster, linger):
    producer = await linger(compress_from_bytes=500)
    bodies = [b"0", b"1", b"2" * 1000, b"3", b"4"]
    futures = [producer.send_soon(Message("orders", body), ordering_key="k") for body in bodies]
    futures.append(producer.send_soon(Message("orders", b"5", wait_stored=True), ordering_key="k", timeout=9.0))
    futures += [producer.send_soon(Message("orders", b"6"), queue=queue) for queue in await producer.queues("orders")]
    await producer.flush()
    results = await asyncio.gather(*futures)

    assert len({result.queue for result in results[:6]}) == 1
    assert [b for bodies in await stored(cluster) for b in bodies if b != b"6"] == [*bodies, b"5"]
    assert {result.queue for result in results[6:]} == set(await producer.queues("orders"))


async def test_sends_at_once_go_together_too_and_closing_waits_for_none(cluster, clock):
    config = ProducerConfig(linger_seconds=5.0, timeout=60.0)
    async with AsyncProducer("p", cluster.namesrv, config=config, clock=clock) as producer:
        sends = [asyncio.ensure_future(producer.send(Message("orders", b"%d" % n))) for n in range(10)]
        await asyncio.sleep(0)
        assert producer.in_flight == 10
    results = await asyncio.gather(*sends)
    assert len({result.queue for result in results}) == 1
    assert [body for bodies in await stored(cluster) for body in bodies] == [b"%d" % n for n in range(10)]


async def test_what_cannot_be_sent_is_its_callers_alone(cluster, linger):
    producer = await linger()
    good = producer.send_soon(Message("orders", b"good"))
    for bad in (Message("orders", b""), Message("orders", b"x", properties={"TAGS": "no"})):
        with pytest.raises(IllegalMessage):
            producer.send_soon(bad)
    with pytest.raises(IllegalMessage, match=r"properties take 39\d+ bytes"):
        producer.send_soon(Message("orders", b"x", properties={"n": "x" * 39952}, message_id="i"))
    broken = producer.send_soon(Message("orders", b"x"), selector=lambda queues, message: 1 / 0)
    await producer.flush()
    assert (await good).queue_offset >= 0
    with pytest.raises(ZeroDivisionError):
        await broken


async def test_a_batch_that_fails_fails_for_each_of_its_messages_and_frees_its_place():
    async with Cluster(auto_create_topic=False) as cluster:
        config = ProducerConfig(linger_seconds=0.001, max_pending_bytes=100)
        async with AsyncProducer("p", cluster.namesrv, config=config) as producer:
            outcomes = await asyncio.gather(
                *(producer.send_soon(Message("absent", b"x")) for _ in range(3)), return_exceptions=True
            )
            assert [type(outcome) for outcome in outcomes] == [TopicNotFound] * 3
            assert (producer.in_flight, producer._outbox.pending_bytes) == (0, 0)


async def test_hooks_hear_of_each_message_by_itself(cluster, clock):
    heard = []

    class Hook:
        def before_send(self, send):
            send.add_property("seen", "yes")

        def after_send(self, send, outcome):
            heard.append((send.kind, send.messages[0].body, outcome.result.queue_offset, outcome.error))

    config = ProducerConfig(linger_seconds=5.0, timeout=60.0, hooks=(Hook(),), namespace="shop")
    async with AsyncProducer("p", cluster.namesrv, config=config, clock=clock) as producer:
        futures = [producer.send_soon(Message("orders", b"%d" % n)) for n in range(2)]
        await producer.flush()
        results = [await future for future in futures]
    assert heard == [(SendKind.SINGLE, b"%d" % n, results[n].queue_offset, None) for n in range(2)]
    consumer = await cluster.consumer("reader")
    (messages,) = [
        found for q in await consumer.queues("shop%orders") if (found := (await consumer.pull(q, 0)).messages)
    ]
    assert [(m.properties["seen"], m.properties["INSTANCE_ID"]) for m in messages] == [("yes", "shop")] * 2


@pytest.mark.parametrize(
    "config", [{}, {"linger_seconds": 30.0}, {"namespace": "shop"}], ids=["plain", "batch", "name"]
)
async def test_bytes_without_an_answer_have_a_limit(cluster, config):
    config = ProducerConfig(max_pending_bytes=1000, timeout=60.0, **config)
    async with AsyncProducer("p", cluster.namesrv, config=config, clock=SystemClock()) as producer:
        for _ in range(3):  # from the second round on, by the compiled way where there is one
            futures = [producer.send_soon(Message("orders", bytes(400))) for _ in range(3)]
            assert producer._outbox.pending_bytes >= 1000
            with pytest.raises(UsageError, match=r"12\d\d bytes .* \(max_pending_bytes\)"):
                producer.send_soon(Message("orders", b"x"))
            waiting = asyncio.ensure_future(producer.send_batch([Message("orders", bytes(400))]))
            await asyncio.sleep(0)
            assert not waiting.done()
            await asyncio.gather(*futures, waiting)
            assert producer._outbox.pending_bytes == producer.in_flight == 0


def test_a_blocking_producer_waits_for_room_and_for_the_moment(served):
    config = ProducerConfig(max_pending_bytes=10_000, linger_seconds=0.002)
    with Producer("p", served.namesrv, config=config) as producer:
        outcomes = [producer.send_soon(Message("lingering", bytes(400))) for _ in range(200)]
        assert producer.send(Message("lingering", b"x")).queue_offset >= 0
        assert len([outcome.result(10) for outcome in outcomes]) == 200


@pytest.mark.parametrize(
    ("field", "value"), [("linger_seconds", -1), ("batch_bytes", 17 << 20), ("max_pending_bytes", 0)]
)
def test_settings_out_of_range_are_named(field, value):
    with pytest.raises(UsageError, match=f"{field}={value} is out of range"):
        ProducerConfig(**{field: value})
