"""OpenTelemetry spans for sends and listener calls. Message properties carry the trace context.

Names and attributes follow OpenTelemetry's semantic conventions for messaging and RocketMQ. The configured propagator
writes the trace context, by default W3C's `traceparent` and `tracestate`.
"""

from __future__ import annotations

from contextvars import Token
from typing import Any

from pyromq.client.client_hooks import (
    ConsumeOutcome,
    ConsumeStatus,
    MessageDelivery,
    MessageSend,
    SendKind,
    SendOutcome,
)
from pyromq.extras import packages_of
from pyromq.message import Message, StoredMessage

with packages_of("otel", "OpenTelemetryHook"):
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider

_SYSTEM = {"messaging.system": "rocketmq"}
_LATER = (ConsumeStatus.RETRIED, ConsumeStatus.DEAD_LETTERED, ConsumeStatus.DROPPED)


class OpenTelemetryHook:
    """Makes a span for each send and each listener call; needs `pip install 'pyromq[otel]'`.

        hook = OpenTelemetryHook()
        producer = Producer("shop", config=ProducerConfig(hooks=(hook,)))
        consumer = Consumer("billing", config=ConsumerConfig(hooks=(hook,)))

    The span of a listener call continues the trace of its message; for several messages, the span has links to their
    traces. Spans made by the listener are its children. `tracer_provider` None means the global provider.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("pyromq", tracer_provider=tracer_provider)

    def before_send(self, send: MessageSend) -> None:
        topic = send.messages[0].topic
        attributes = _SYSTEM | _operation("send", "send") | _destination(topic, send.client_id) | _sent(send)
        span = self._tracer.start_span(f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes)
        send.state[self] = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        for name, value in carrier.items():
            if value:
                send.add_property(name, value)

    def after_send(self, send: MessageSend, outcome: SendOutcome) -> None:
        span: Span = send.state[self]
        if outcome.result is not None:
            queue = outcome.result.queue
            span.set_attribute("messaging.destination.partition.id", f"{queue.broker_name}:{queue.queue_id}")
            span.set_attribute("messaging.message.id", outcome.result.message_id)
        _end(span, outcome.error)

    def before_consume(self, delivery: MessageDelivery) -> None:
        first, count = delivery.messages[0], len(delivery.messages)
        carriers = [propagate.extract(message.properties) for message in delivery.messages]
        linked = [trace.get_current_span(each).get_span_context() for each in carriers]
        attributes = _SYSTEM | _operation("process", "process") | _destination(first.topic, delivery.client_id)
        attributes |= {"messaging.consumer.group.name": delivery.group}
        attributes |= _received(first) if count == 1 else {"messaging.batch.message_count": count}
        span = self._tracer.start_span(
            f"process {first.original_topic}",
            context=carriers[0] if count == 1 else None,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(each) for each in linked if each.is_valid],
        )
        token = contexts.attach(trace.set_span_in_context(span)) if delivery.encloses else None
        delivery.state[self] = span, token

    def after_consume(self, delivery: MessageDelivery, outcome: ConsumeOutcome) -> None:
        span: Span
        token: Token[Context] | None
        span, token = delivery.state[self]
        if outcome.error is None and outcome.status in _LATER:
            span.set_status(Status(StatusCode.ERROR, outcome.status.value))
        _end(span, outcome.error)
        if token is not None:
            contexts.detach(token)


def _end(span: Span, error: BaseException | None) -> None:
    if error is not None:
        span.record_exception(error)
        span.set_status(Status(StatusCode.ERROR, str(error)))
        span.set_attribute("error.type", type(error).__qualname__)
    span.end()


def _operation(name: str, kind: str) -> dict[str, Any]:
    return {"messaging.operation.name": name, "messaging.operation.type": kind}


def _destination(topic: str, client_id: str) -> dict[str, Any]:
    return {"messaging.destination.name": topic, "messaging.client.id": client_id}


def _sent(send: MessageSend) -> dict[str, Any]:
    message, count = send.messages[0], len(send.messages)
    kind = "delay" if message.delay_level or message.is_timed else "normal"
    found: dict[str, Any] = {
        "messaging.rocketmq.message.type": "transaction" if send.kind is SendKind.HALF else kind,
        "messaging.rocketmq.producer.group": send.group,
    }
    if send.kind is SendKind.BATCH:
        return found | {"messaging.batch.message_count": count}
    if message.delay_level:
        found["messaging.rocketmq.message.delay_time_level"] = message.delay_level
    return found | _described(message) | {"messaging.message.body.size": len(message.body)}


def _received(message: StoredMessage) -> dict[str, Any]:
    return {
        "messaging.message.id": message.message_id,
        "messaging.message.body.size": len(message.stored_body),
        "messaging.destination.partition.id": f"{message.broker_name}:{message.queue_id}",
        "messaging.rocketmq.message.attempt": message.reconsume_times + 1,
        **_described(message),
    }


def _described(message: Message | StoredMessage) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if message.tags:
        found["messaging.rocketmq.message.tag"] = message.tags
    if keys := tuple(message.keys):
        found["messaging.rocketmq.message.keys"] = keys
    return found
