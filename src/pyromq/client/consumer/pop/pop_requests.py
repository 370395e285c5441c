"""Sends the requests of pop consumption: pop, wait for a message, acknowledge, change the invisible time.

The module keeps no state. Source: RocketMQ 5.3.3, MQClientAPIImpl.popMessageAsync, ackMessageAsync.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.clock import Clock
from pyromq.errors import CodeNotSupported, MQError, ResponseCode, StoreCorrupt, from_response
from pyromq.filter.filter import Wanted
from pyromq.message import MessageQueue, StoredMessage
from pyromq.record import decode, decode_all
from pyromq.remoting.bodies import BatchAcks, encode_body
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import (
    BatchAckMessage,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PopMessage,
    PopMessageResponse,
)
from pyromq.remoting.headers.pop_headers import MAX_POPPED, NOTHING_POPPED
from pyromq.remoting.receipt_handle import PopInfos, ReceiptHandle, batch_acks, parse_receipt_handle

FIRST, END = 0, 1  # the start of a group without committed offsets. Source: ConsumeInitMode
ANY_QUEUE = -1

_FULL = ResponseCode.POLLING_FULL


@dataclass(frozen=True, slots=True)
class PopPlace:
    """The queues of a topic at one broker, which a group pops together."""

    topic: str
    broker_name: str

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, 0)


@dataclass(frozen=True, slots=True)
class Popped:
    """The messages of a pop, each with its receipt handle, and the number of damaged records.

    `refusal` is the broker's text if it hands out no message because the group has too many unfinished or waiting pops.
    """

    messages: list[StoredMessage]
    damaged: int = 0
    refusal: str | None = None


class PopRequests:
    """Sends the pop requests of one group. `group` and topics in requests include the namespace."""

    def __init__(self, group: str, cluster: ClusterClient, clock: Clock, *, timeout: float) -> None:
        self._group = group
        self._cluster = cluster
        self._clock = clock
        self._timeout = timeout

    async def pop(self, place: PopPlace, count: int, wanted: Wanted, *, invisible_ms: int, init_mode: int) -> Popped:
        """Pop at most `count` messages, without waiting. They are invisible to the group for `invisible_ms`."""
        header = PopMessage(
            consumer_group=self._group,
            topic=self._cluster.names.wrap(place.topic),
            queue_id=ANY_QUEUE,
            max_count=min(count, MAX_POPPED),
            invisible_ms=invisible_ms,
            poll_ms=0,
            born_ms=self._clock.now_ms(),
            init_mode=init_mode,
            expression_type=wanted.expression_type,
            expression=wanted.expression,
        )
        response = await self._ask(place, header)
        response.check(*NOTHING_POPPED, _FULL)
        if response.code:
            refusal = str(from_response(response.code, response.remark)) if response.code == _FULL else None
            return Popped([], refusal=refusal)
        return self._decoded(place, response, wanted)

    async def arrival(self, place: PopPlace, wait_seconds: float) -> bool:
        """Wait until there is a message to pop. Return False after `wait_seconds`, or if the broker does not wait."""
        header = Notification(
            consumer_group=self._group,
            topic=self._cluster.names.wrap(place.topic),
            queue_id=ANY_QUEUE,
            poll_ms=int(wait_seconds * 1000),
            born_ms=self._clock.now_ms(),
        )
        response = await self._ask(place, header, wait_seconds=wait_seconds)
        response.check(*NOTHING_POPPED, _FULL)
        return not response.code and response.header(NotificationResponse).has_message

    async def ack(self, messages: Iterable[StoredMessage]) -> None:
        """Acknowledge messages. Raises the first error, for example `ReceiptHandleExpired`, after all requests.

        In a batch of several messages, RocketMQ's brokers skip redelivered messages without an error.
        """
        by_place: dict[PopPlace, list[ReceiptHandle]] = {}
        for message in messages:
            handle = parse_receipt_handle(message.receipt_handle or "")
            by_place.setdefault(PopPlace(message.topic, handle.broker_name), []).append(handle)
        failure: MQError | None = None
        for place, handles in by_place.items():
            header: Header = handles[0].ack(self._group, self._cluster.names.wrap(place.topic))
            body = b""
            if len(handles) > 1:
                header = BatchAckMessage()
                acks = batch_acks(self._group, self._cluster.names.wrap(place.topic), handles)
                body = encode_body(BatchAcks(place.broker_name, acks))
            try:
                (await self._ask(place, header, body)).check()
            except MQError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    async def change(self, message: StoredMessage, invisible_ms: int) -> str:
        """Let a message become visible in `invisible_ms` from now. Return the new receipt handle.

        Raises `ReceiptHandleExpired`.
        """
        handle = parse_receipt_handle(message.receipt_handle or "")
        header = handle.change(self._group, self._cluster.names.wrap(message.topic), invisible_ms)
        response = await self._ask(PopPlace(message.topic, handle.broker_name), header)
        return handle.changed(response.check().header(ChangeInvisibleTimeResponse)).encode()

    async def _ask(self, place: PopPlace, header: Header, body: bytes = b"", *, wait_seconds: float = 0.0) -> Response:
        timeout = wait_seconds + self._timeout
        response = await self._cluster.ask_master(place.queue, header, body, timeout=timeout, idempotent=True)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise CodeNotSupported(
                f"broker {place.broker_name} has no pop consumption; brokers of pyromq and RocketMQ 5 have:"
                " use Consumer or PullConsumer here"
            )
        return response

    def _decoded(self, place: PopPlace, response: Response, wanted: Wanted) -> Popped:
        infos = PopInfos(response.header(PopMessageResponse), place.broker_name)
        messages, damaged = sound_records(bytes(response.body), place.broker_name)
        for message in messages:
            message.receipt_handle = infos.handle(message).encode()
            message.reconsume_times = infos.attempts(message)
            message.topic = place.topic  # messages of the retry topic have the subscribed topic, too
        return Popped(messages, damaged)


def sound_records(raw: bytes, broker_name: str) -> tuple[list[StoredMessage], int]:
    """Return the undamaged messages in the body of a pop response, and the number of damaged messages.

    Records after an unreadable record are left out, and the broker redelivers them.
    """
    try:
        return decode_all(raw, check_crc=True, broker_name=broker_name), 0
    except StoreCorrupt:
        pass
    messages: list[StoredMessage] = []
    position = damaged = 0
    while position < len(raw):
        try:
            message = decode(raw, position)
        except StoreCorrupt:
            return messages, damaged + 1
        position += message.size
        if message.is_damaged:
            damaged += 1
        else:
            message.broker_name = broker_name
            messages.append(message)
    return messages, damaged
