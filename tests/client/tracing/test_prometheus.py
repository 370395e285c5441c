"""A client's own metrics: what producers and consumers do, in a registry of prometheus_client."""

import asyncio

import pytest

prometheus_client = pytest.importorskip("prometheus_client")

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig, ProducerConfig  # noqa: E402
from pyromq.client.consumer.push.push_consumer import AsyncConsumer  # noqa: E402
from pyromq.client.producer.async_producer import AsyncProducer  # noqa: E402
from pyromq.client.tracing.prometheus import PrometheusHook  # noqa: E402
from pyromq.errors import BrokerError  # noqa: E402
from pyromq.message import Message  # noqa: E402


@pytest.fixture
def registry():
    return prometheus_client.CollectorRegistry()


@pytest.fixture
def hook(registry):
    return PrometheusHook(registry)


async def test_sends_are_counted_by_what_became_of_them(cluster, registry, hook):
    config = ProducerConfig(hooks=(hook,), max_message_bytes=8 << 20, compress_from_bytes=1 << 30)
    async with AsyncProducer("shop", cluster.namesrv, config=config) as producer:
        await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        await producer.send(Message("orders", b"3"))
        await producer.send_one_way(Message("orders", b"4"))
        with pytest.raises(BrokerError):
            await producer.send(Message("orders", bytes(5 << 20)))  # more than brokers take

    def sent(status):
        labels = {"topic": "orders", "producer_group": "shop", "invocation_status": status}
        names = ("pyromq_sent_messages_total", "rocketmq_send_cost_time_count")
        return tuple(registry.get_sample_value(name, labels) for name in names)

    assert {status: sent(status) for status in ("success", "unknown", "failure")} == {
        "success": (3, 2),
        "unknown": (1, 1),
        "failure": (1, 1),
    }
    waiting = registry.get_sample_value("pyromq_waiting_sends", {"topic": "orders", "producer_group": "shop"})
    assert waiting == 0


async def test_messages_are_counted_by_what_became_of_them(cluster, registry, hook):
    async with AsyncProducer("shop", cluster.namesrv) as producer:
        for body in (b"good", b"bad"):
            await producer.send(Message("orders", body))
    labels = {"topic": "orders", "consumer_group": "billing"}
    at_work = []

    async def listener(messages):
        at_work.append(registry.get_sample_value("pyromq_processing_messages", labels))
        if messages[0].body == b"bad":
            raise ValueError("no such customer")

    config = ConsumerConfig(hooks=(hook,), consume_from=ConsumeFrom.FIRST)
    consumer = AsyncConsumer("billing", cluster.namesrv, config=config)
    consumer.subscribe("orders", listener)

    def counted(status):
        return registry.get_sample_value("pyromq_consumed_messages_total", {**labels, "status": status})

    async with consumer, asyncio.timeout(30):
        while not (counted("consumed") and counted("retried")):
            await asyncio.sleep(0.01)

    assert min(at_work) >= 1
    assert counted("consumed") >= 1
    failures = {**labels, "invocation_status": "failure"}
    assert registry.get_sample_value("rocketmq_process_time_count", failures) >= 1
