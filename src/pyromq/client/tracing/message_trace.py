"""Hooks that send trace records to the trace topic, as Java's clients do with `enableMsgTrace`."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import Self

from pyromq.client.blocking.producers import Producer
from pyromq.client.client_config import ProducerConfig
from pyromq.client.client_hooks import (
    ConsumeOutcome,
    ConsumeStatus,
    Decision,
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
    TraceRecord,
    keys_of,
    write_record,
)
from pyromq.clock import Clock, SystemClock
from pyromq.errors import MQError, UsageError
from pyromq.logs import logger_of
from pyromq.message import Message, Property, SendStatus, StoredMessage
from pyromq.message_id import UniqueIds, parse_offset_id
from pyromq.names import TRACE_TOPIC, check_topic
from pyromq.net.connection_config import ConnectionConfig

logger = logger_of(__name__)

MAX_WAITING = 1024 * 16  # limit of unsent trace records; a message of the trace topic holds a few hundred
SEND_SECONDS = 0.5  # longest wait of a record for more records. Source: AsyncTraceDispatcher
MAX_CHARACTERS = 118_000  # limit of the records' text in a message. Source: AsyncTraceDispatcher
MAX_KEY_BYTES = 24_000  # limit of a trace message's keys: all properties together may have 32 KiB
CLOSE_SECONDS = 3.0  # limit of the time in which `close` sends records

_STATES = {
    Decision.COMMIT: "COMMIT_MESSAGE",
    Decision.ROLLBACK: "ROLLBACK_MESSAGE",
    Decision.UNKNOWN: "UNKNOW",
}


class MessageTrace:
    """Sends trace records of any number of clients to a topic.

        trace = MessageTrace()
        producer = Producer("shop", config=ProducerConfig(hooks=(trace,)))
        consumer = Consumer("billing", config=ConsumerConfig(hooks=(trace,)))

    Without `namesrv`, records go to the name servers of the first client with `namesrv`. Without `connections`, TLS
    settings and account are those of the first client with `connections`. Without such clients, the environment names
    them. A thread sends the records every half second. Records that cannot be sent, or exceed the limit, are dropped:
    `dropped` counts them, and the first one is logged. `close` and the end of the program send the remaining records. A
    consumer's messages with TRACE_ON=false are not traced. Source: RocketMQ 4.9.8, SendMessageTraceHookImpl,
    ConsumeMessageTraceHookImpl, EndTransactionTraceHookImpl.
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
        """The number of trace records dropped: not sent, or beyond the limit of unsent records."""
        return self._sender.dropped

    def connect_as(self, connections: ConnectionConfig | None, namesrv: str | None = None) -> None:
        """Use a client's TLS settings, account and name servers, unless set already. Called by clients."""
        self._sender.connect_as(connections, namesrv)

    def close(self) -> None:
        """Send the remaining records, for at most three seconds. Later records are dropped. Idempotent.

        Blocks the calling thread: in a coroutine write `await asyncio.to_thread(trace.close)`.
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
        if first.topic == self._topic or isinstance(outcome.error, UsageError):  # a refused message was never sent
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
        if message is None:  # the message's topic is not known
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


class TraceSender:
    """Sends trace records to the trace topic, in a thread that starts with the first record."""

    def __init__(self, namesrv: str | None, topic: str, connections: ConnectionConfig | None) -> None:
        self._namesrv = namesrv
        self._topic = topic
        self._connections = connections
        self._waiting: deque[TraceRecord] = deque()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._process = os.getpid()
        self._tells_drops = True
        self.dropped = 0

    def add(self, record: TraceRecord) -> None:
        """Add a record, or drop it if `MAX_WAITING` records are unsent or the sender is closed.

        Thread-safe; does not block.
        """
        if len(self._waiting) >= MAX_WAITING or self._closing:
            self._count_dropped(1, "the sender is closed" if self._closing else f"{MAX_WAITING} records are unsent")
            return
        self._waiting.append(record)
        if self._thread is None or not self._thread.is_alive():
            self._start(record)

    def connect_as(self, connections: ConnectionConfig | None, namesrv: str | None) -> None:
        """Use these TLS settings, this account and these name servers, unless set already."""
        self._namesrv = self._namesrv or namesrv
        if self._connections is None and connections is not None:
            self._connections = replace(connections, hooks=())  # RPC hooks of a client are for requests of that client

    def close(self) -> None:
        """Send the remaining records, for at most three seconds. Idempotent."""
        self._closing = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    def _start(self, record: TraceRecord) -> None:
        with self._lock:
            if self._closing or (self._thread is not None and self._thread.is_alive()):
                return
            if self._process != os.getpid():  # in the child of a fork: the parent sends the records before this one
                self._process, self._waiting = os.getpid(), deque([record])
            group = f"_INNER_TRACE_PRODUCER-{record.group}-{'CONSUME' if record.name.startswith('Sub') else 'PRODUCE'}"
            self._thread = threading.Thread(target=self._run, args=(group[:255],), name="pyromq trace", daemon=True)
            self._thread.start()
        atexit.register(_close_one, weakref.ref(self))

    def _run(self, group: str) -> None:
        config = ProducerConfig(timeout=5.0, connections=self._connections, namespace="", max_in_flight=64)
        while True:
            try:
                with Producer(group, self._namesrv, config=config) as producer:
                    self._send_all(producer)
                return
            except MQError as error:
                logger.warning("trace records are not sent yet: %s", error)
                if self._closing or self._wake.wait(SEND_SECONDS * 10):
                    self._count_dropped(len(self._waiting), str(error))
                    return

    def _send_all(self, producer: Producer) -> None:
        while not self._closing:
            self._wake.wait(SEND_SECONDS)
            self._send_waiting(producer)
        self._send_waiting(producer)

    def _send_waiting(self, producer: Producer) -> None:
        while self._waiting:
            records, keys, key_bytes, body = 0, dict[str, None](), 0, ""
            while self._waiting and len(body) < MAX_CHARACTERS:
                new = [key for key in dict.fromkeys(keys_of(self._waiting[0])) if key not in keys]
                key_bytes += _bytes(new)
                if records and key_bytes > MAX_KEY_BYTES:
                    break
                records += 1
                keys |= dict.fromkeys(new)
                body += write_record(self._waiting.popleft())
            try:
                for part in _parts(keys):
                    producer.send(Message(self._topic, body.encode(), keys=part))
            except MQError as error:
                self._count_dropped(records, str(error))
                return
            self._tells_drops = True

    def _count_dropped(self, count: int, reason: str) -> None:
        """Count dropped records. Only the first drop since records were sent is logged."""
        with self._lock:
            self.dropped += count
            tells, self._tells_drops = self._tells_drops, False
        if tells:
            logger.warning("trace records are dropped, and counted in `dropped`: %s", reason)


def _bytes(keys: Iterable[str]) -> int:
    return sum(len(key.encode()) + 1 for key in keys)


def _parts(keys: Iterable[str]) -> list[list[str]]:
    """Return the keys of each message that a text of records needs: mostly one.

    A record of a large batch has more ids than a message may have keys: the record is sent with each part of them. A
    single key beyond the limit is left out.
    """
    parts: list[list[str]] = [[]]
    free = MAX_KEY_BYTES
    for key in keys:
        size = _bytes([key])
        if size > MAX_KEY_BYTES:
            continue
        if size > free:
            parts.append([])
            free = MAX_KEY_BYTES
        parts[-1].append(key)
        free -= size
    return parts


def _close_one(sender: weakref.ref[TraceSender]) -> None:
    alive = sender()
    if alive is not None:
        alive.close()
