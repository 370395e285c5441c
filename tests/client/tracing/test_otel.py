"""OpenTelemetry: spans of sends and listeners, in one trace across programs."""

import asyncio

import pytest
from tests.waiting import PATIENCE_SECONDS

sdk = pytest.importorskip("opentelemetry.sdk.trace")
from opentelemetry.sdk.trace.export import SimpleSpanProcessor  # noqa: E402
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter  # noqa: E402
from opentelemetry.trace import SpanKind, StatusCode  # noqa: E402

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig, ProducerConfig  # noqa: E402
from pyromq.client.consumer.push.push_consumer import AsyncConsumer  # noqa: E402
from pyromq.client.producer.async_producer import AsyncProducer  # noqa: E402
from pyromq.client.tracing.otel import OpenTelemetryHook  # noqa: E402
from pyromq.errors import BrokerError  # noqa: E402
from pyromq.message import Message  # noqa: E402


@pytest.fixture
def spans():
    """What has ended, by name."""

    class Spans:
        def __init__(self):
            self.exporter = InMemorySpanExporter()
            self.provider = sdk.TracerProvider()
            self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
            self.hook = OpenTelemetryHook(self.provider)

        def named(self, name):
            return [span for span in self.exporter.get_finished_spans() if span.name == name]

        async def wait(self, name):
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not self.named(name):
                    await asyncio.sleep(0.01)
            return self.named(name)

    return Spans()


def consuming(cluster, spans, listener, **config):
    config = ConsumerConfig(hooks=(spans.hook,), consume_from=ConsumeFrom.FIRST, **config)
    consumer = AsyncConsumer("billing", cluster.namesrv, config=config)
    consumer.subscribe("orders", listener)
    return consumer


@pytest.mark.parametrize("in_thread", [False, True])
async def test_a_listener_goes_on_with_the_trace_of_its_message(cluster, spans, in_thread):
    tracer = spans.provider.get_tracer("application")

    def work(messages):
        with tracer.start_as_current_span("write bill"):
            pass

    async def work_in_task(messages):
        work(messages)

    async with AsyncProducer("shop", cluster.namesrv, config=ProducerConfig(hooks=(spans.hook,))) as producer:
        with tracer.start_as_current_span("checkout"):
            sent = await producer.send(Message("orders", b"12345", tags="paid", keys=("a", "b")))
    async with consuming(cluster, spans, work if in_thread else work_in_task):
        (process,) = await spans.wait("process orders")
    (checkout,), (send,), (bill,) = spans.named("checkout"), spans.named("send orders"), spans.named("write bill")
    assert send.parent.span_id == checkout.context.span_id
    assert process.parent.span_id == send.context.span_id
    assert bill.parent.span_id == process.context.span_id
    assert len({span.context.trace_id for span in (checkout, send, process, bill)}) == 1
    assert (send.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert dict(send.attributes) == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": f"broker-a:{sent.queue.queue_id}",
        "messaging.client.id": send.attributes["messaging.client.id"],
        "messaging.message.id": sent.message_id,
        "messaging.message.body.size": 5,
        "messaging.rocketmq.message.type": "normal",
        "messaging.rocketmq.message.tag": "paid",
        "messaging.rocketmq.message.keys": ("a", "b"),
        "messaging.rocketmq.producer.group": "shop",
    }
    assert process.attributes["messaging.consumer.group.name"] == "billing"
    assert process.attributes["messaging.message.id"] == sent.message_id


async def test_several_messages_at_once_are_linked(cluster, spans):
    async with AsyncProducer("shop", cluster.namesrv, config=ProducerConfig(hooks=(spans.hook,))) as producer:
        await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
    (send,) = spans.named("send orders")

    async def listener(messages):
        pass

    async with consuming(cluster, spans, listener, batch=2):
        (process,) = await spans.wait("process orders")
    assert send.attributes["messaging.batch.message_count"] == process.attributes["messaging.batch.message_count"] == 2
    assert process.parent is None
    assert [link.context.span_id for link in process.links] == 2 * [send.context.span_id]


async def test_failures_are_told(cluster, spans):
    config = ProducerConfig(hooks=(spans.hook,), max_message_bytes=8 << 20, compress_from_bytes=1 << 30)
    async with AsyncProducer("shop", cluster.namesrv, config=config) as producer:
        await producer.send(Message("orders", b"x"))
        with pytest.raises(BrokerError):
            await producer.send(Message("orders", bytes(5 << 20)))  # more than brokers take

    async def listener(messages):
        raise ValueError("no such customer")

    async with consuming(cluster, spans, listener):
        (process,) = await spans.wait("process orders")
    failed = spans.named("send orders")[1]
    assert failed.status.status_code is process.status.status_code is StatusCode.ERROR
    assert process.attributes["error.type"] == "ValueError"
    assert [event.name for event in process.events] == ["exception"]
