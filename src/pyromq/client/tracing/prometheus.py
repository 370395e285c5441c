"""Metrics of sends and listener calls in a registry of `prometheus_client`.

Names and units of the two histograms are those of RocketMQ 5's clients.
"""

from __future__ import annotations

from pyromq.client.client_hooks import ConsumeOutcome, ConsumeStatus, MessageDelivery, MessageSend, SendOutcome
from pyromq.extras import packages_of

with packages_of("metrics", "PrometheusHook"):
    from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram

# Histogram buckets in ms: those of RocketMQ 5, and finer ones below, because a send can take less than a millisecond.
_SEND_BUCKETS = (0.5, 1, 2, 5, 10, 20, 50, 200, 500, 1_000)
_PROCESS_BUCKETS = (1, 5, 10, 100, 1_000, 10_000, 60_000)


class PrometheusHook:
    """Counts messages and times of producers and consumers; needs `pip install 'pyromq[metrics]'`.

        hook = PrometheusHook()
        producer = Producer("shop", config=ProducerConfig(hooks=(hook,)))
        consumer = Consumer("billing", config=ConsumerConfig(hooks=(hook,)))
        prometheus_client.start_http_server(8000, "127.0.0.1")

    Use one hook for all clients of a program: a registry accepts each name once. `registry` None means the global
    registry.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = REGISTRY if registry is None else registry
        sending, consuming = ("topic", "producer_group"), ("topic", "consumer_group")
        self._sent = Counter(
            "pyromq_sent_messages_total",
            "Messages sent, by result: success, failure, or unknown for one-way sends.",
            (*sending, "invocation_status"),
            registry=registry,
        )
        self._send_ms = Histogram(
            "rocketmq_send_cost_time",
            "Milliseconds of a send, all attempts included.",
            (*sending, "invocation_status"),
            buckets=_SEND_BUCKETS,
            registry=registry,
        )
        self._sending = Gauge("pyromq_waiting_sends", "Messages waiting for their replies.", sending, registry=registry)
        self._consumed = Counter(
            "pyromq_consumed_messages_total",
            "Messages passed to listeners, by result.",
            (*consuming, "status"),
            registry=registry,
        )
        self._process_ms = Histogram(
            "rocketmq_process_time",
            "Milliseconds of a listener call.",
            (*consuming, "invocation_status"),
            buckets=_PROCESS_BUCKETS,
            registry=registry,
        )
        self._processing = Gauge(
            "pyromq_processing_messages", "Messages in running listener calls.", consuming, registry=registry
        )

    def before_send(self, send: MessageSend) -> None:
        self._sending.labels(send.messages[0].topic, send.group).inc(len(send.messages))

    def after_send(self, send: MessageSend, outcome: SendOutcome) -> None:
        topic, group, count = send.messages[0].topic, send.group, len(send.messages)
        self._sending.labels(topic, group).dec(count)
        status = "failure" if outcome.error is not None else "unknown" if outcome.result is None else "success"
        self._sent.labels(topic, group, status).inc(count)
        self._send_ms.labels(topic, group, status).observe(outcome.seconds * 1000)

    def before_consume(self, delivery: MessageDelivery) -> None:
        topic = delivery.messages[0].original_topic
        self._processing.labels(topic, delivery.group).inc(len(delivery.messages))

    def after_consume(self, delivery: MessageDelivery, outcome: ConsumeOutcome) -> None:
        topic, group, count = delivery.messages[0].original_topic, delivery.group, len(delivery.messages)
        self._processing.labels(topic, group).dec(count)
        for status, of_it in ((ConsumeStatus.CONSUMED, outcome.done), (outcome.status, count - outcome.done)):
            if of_it:
                self._consumed.labels(topic, group, status.value).inc(of_it)
        said = "success" if outcome.error is None and outcome.status is ConsumeStatus.CONSUMED else "failure"
        self._process_ms.labels(topic, group, said).observe(outcome.seconds * 1000)
