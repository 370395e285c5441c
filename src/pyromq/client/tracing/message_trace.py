"""Hooks that tell the trace topic what becomes of messages, as Java's clients do with `enableMsgTrace`."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from pyromq.client.decision import Decision
from pyromq.client.hooks import (
    ConsumeOutcome,
    ConsumeStatus,
    MessageDelivery,
    MessageSend,
    SendKind,
    SendOutcome,
    TransactionEnd,
)
from pyromq.client.tracing.trace_records import (
    DEFAULT_REGION,
    ConsumeCode,
    Consumed,
    Decided,
    Delivered,
    MessageType,
    Sent,
)
from pyromq.client.tracing.trace_sender import TraceSender
from pyromq.clock import Clock, SystemClock
from pyromq.message import Message, Property, SendStatus, StoredMessage
from pyromq.message_id import UniqueIds, parse_offset_id
from pyromq.names import TRACE_TOPIC, check_topic
from pyromq.net.connection_config import ConnectionConfig

_STATES = {
    Decision.COMMIT: "COMMIT_MESSAGE",
    Decision.ROLLBACK: "ROLLBACK_MESSAGE",
    Decision.UNKNOWN: "UNKNOW",
}


class MessageTrace:
    """Tells a topic what becomes of messages; one may be given to any number of clients.

        trace = MessageTrace()
        producer = Producer("shop", config=ProducerConfig(hooks=(trace,)))
        consumer = Consumer("billing", config=ConsumerConfig(hooks=(trace,)))

    `namesrv` is as for clients. `connections` None: TLS settings and account are those of the first client that it is
    given to with `connections`, and else those of the environment. It works beside them: records are sent every half
    second from a thread of its own, those that cannot be sent or are too many are dropped and counted in `dropped`.
    `close` sends what waits; the end of the program does, too. A consumer's messages with TRACE_ON=false are left out.
    Source: RocketMQ 4.9.8, SendMessageTraceHookImpl, ConsumeMessageTraceHookImpl, EndTransactionTraceHookImpl.
    """

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        topic: str = TRACE_TOPIC,
        connections: ConnectionConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_topic(topic)
        self._topic = topic
        self._clock = clock or SystemClock()
        self._ids = UniqueIds("127.0.0.1", self._clock)
        self._sender = TraceSender(namesrv, topic, connections)

    @property
    def dropped(self) -> int:
        """How many records were not sent."""
        return self._sender.dropped

    def connect_as(self, connections: ConnectionConfig) -> None:
        """Use a client's TLS settings and account, unless there are connections already. Clients call this."""
        self._sender.connect_as(connections)

    def close(self) -> None:
        """Send what waits, for at most three seconds, and take no more. Idempotent.

        Blocks: in a coroutine write `await asyncio.to_thread(trace.close)`.
        """
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def before_send(self, send: MessageSend) -> None:
        send.state[self] = self._clock.now_ms()

    def after_send(self, send: MessageSend, outcome: SendOutcome) -> None:
        first, result = send.messages[0], outcome.result
        if first.topic == self._topic:
            return
        ids = [message.message_id for message in send.messages if message.message_id]
        offset_id = result.offset_message_id if result is not None else None
        self._sender.add(
            Sent(
                send.state[self],
                DEFAULT_REGION,
                send.group,
                first.topic,
                result.message_id if result is not None else ",".join(ids) or "null",
                first.tags if len(send.messages) == 1 else None,
                " ".join(first.keys) or None if len(send.messages) == 1 else None,
                parse_offset_id(offset_id.split(",")[0]).address if offset_id else None,
                sum(len(message.body) for message in send.messages),
                int(outcome.seconds * 1000) // len(send.messages),
                _type_of(send.kind, first),
                offset_id,
                outcome.error is None and (result is None or result.status is SendStatus.OK),
            )
        )

    def before_consume(self, delivery: MessageDelivery) -> None:
        now_ms, request_id = self._clock.now_ms(), self._ids.next()
        traced = [message for message in delivery.messages if message.properties.get(Property.TRACE_ON) != "false"]
        delivery.state[self] = request_id, traced
        for message in traced:
            region = message.properties.get(Property.REGION)
            keys = " ".join(message.keys) or None
            retries = message.reconsume_times
            group = delivery.group
            self._sender.add(Delivered(now_ms, region, group, request_id, message.message_id, retries, keys))

    def after_consume(self, delivery: MessageDelivery, outcome: ConsumeOutcome) -> None:
        request_id, traced = delivery.state[self]
        done = {message.message_id for message in delivery.messages[: outcome.done]}
        cost_ms = int(outcome.seconds * 1000) // max(1, len(delivery.messages))
        now_ms = self._clock.now_ms()
        for message in traced:
            success = message.message_id in done or outcome.status is ConsumeStatus.CONSUMED
            failed = ConsumeCode.EXCEPTION if outcome.error is not None else ConsumeCode.FAILED
            code = ConsumeCode.SUCCESS if success else failed
            keys = " ".join(message.keys) or None
            group = delivery.group
            self._sender.add(Consumed(request_id, message.message_id, cost_ms, success, keys, code, now_ms, group))

    def end_transaction(self, end: TransactionEnd) -> None:
        message = end.message
        if message is None:  # its topic is not known
            return
        topic = message.topic
        if isinstance(message, StoredMessage):
            topic = message.properties.get(Property.REAL_TOPIC, topic)
        self._sender.add(
            Decided(
                self._clock.now_ms(),
                DEFAULT_REGION,
                end.group,
                topic,
                end.transaction_id,
                message.tags,
                " ".join(message.keys) or None,
                end.broker,
                MessageType.COMMIT,
                end.transaction_id,
                _STATES[end.decision],
                end.from_check,
            )
        )


def _type_of(kind: SendKind, message: Message) -> MessageType:
    if message.delay_level or message.is_timed:
        return MessageType.DELAY
    return MessageType.HALF if kind is SendKind.HALF else MessageType.NORMAL
