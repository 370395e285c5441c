"""The async producer.

A message is checked and encoded (`pending_send`). After that, `outbox` chooses its queue and connection, and turns the
broker's reply into a result.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyromq.client.arguments import checked
from pyromq.client.client_config import ProducerConfig
from pyromq.client.client_hooks import SendKind, connect_hooks
from pyromq.client.cluster.cluster_client import API_SECONDS, AsyncLifespan, ClusterClient
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.producer.outbox import Outbox
from pyromq.client.producer.pending_send import (
    OrderingKey,
    PendingSend,
    Preparation,
    QueueChooser,
    Selector,
    listed,
    queue_chooser,
)
from pyromq.client.producer.produce_accumulator import ProduceAccumulator
from pyromq.clock import Clock, SystemClock
from pyromq.errors import NoReply, NotRunning, UsageError
from pyromq.logs import logger_of
from pyromq.message import (
    Message,
    MessageQueue,
    Property,
    SendResult,
    StoredMessage,
    decode_properties,
    encode_properties,
    pack_address,
)
from pyromq.message_id import UniqueIds
from pyromq.names import check_producer_group
from pyromq.remoting.bodies import HeartbeatBody, ProducerEntry
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import PushReplyMessage, RecallMessage, RecallMessageResponse
from pyromq.remoting.recall_handle import decode_handle

if TYPE_CHECKING:
    from pyromq.speedups.requests import FastOutbox

logger = logger_of(__name__)

_NO_CODES: frozenset[int] = frozenset()

# Waiting requests of all clients of this process, by correlation id: a broker may push a reply to any connection of a
# client id, on any event loop.
_waiting: dict[str, Request] = {}


class AsyncProducer(AsyncLifespan):
    """Sends messages, for programs with an event loop; `Producer` is the blocking form.

        async with AsyncProducer("orders-service") as producer:
            result = await producer.send(Message("orders", b"...", keys="order-7"), ordering_key="customer-3")

    `group` is the producer group. `namesrv` is `host:port`, several joined by `;`. None means the environment's
    `NAMESRV_ADDR`, else `127.0.0.1:9876`. Times are in seconds. Entering (or `start`) raises `NoNameServer`
    immediately if no name server can be reached.

    Sending raises `UsageError` (or `IllegalMessage`, `IllegalName`, `NotRunning`) for a message that cannot be sent,
    `TopicNotFound` if no broker has or creates the topic, and a `BrokerError` if a broker refuses the message. It
    raises `Unavailable` or `DeadlineExceeded` if no broker confirmed the message within the timeout; the message
    may still have been stored. A retried message may be stored twice, with the same `message_id`.
    """

    @checked
    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        config: ProducerConfig | None = None,
        clock: Clock | None = None,
    ) -> None:
        check_producer_group(group)
        self.config = config or ProducerConfig()
        self._names = namespace_of(self.config.namespace, namesrv)
        wire_group = self._names.checked_group(group)
        self.group = group
        self._clock = clock or SystemClock()
        self._requests = Requests(self._clock)
        self._cluster = ClusterClient(
            namesrv,
            self._clock,
            announce=lambda client_id: HeartbeatBody(client_id, producers=[ProducerEntry(wire_group)]),
            answerers=self._answerers(),
            instance=self.config.instance,
            producer_group=wire_group,
            names=self._names,
            vip_channel=self.config.vip_channel,
            connections=self.config.connections,
            heartbeat_seconds=self.config.heartbeat_seconds,
            route_refresh_seconds=self.config.route_refresh_seconds,
            forget_deleted=True,
        )
        self._outbox = Outbox(wire_group, self._cluster, self.config, self._clock)
        connect_hooks(self.config.hooks, self.config.connections, namesrv)
        self._preparation = Preparation(
            group, self.config, self._names, self._clock, client_id=lambda: self._cluster.client_id
        )
        self._batching: ProduceAccumulator | None = None
        if self.config.linger_seconds:
            self._batching = ProduceAccumulator(
                self._cluster, self.config, self._clock, outbox=self._outbox, preparation=self._preparation
            )
        self._requested_topics: set[str] = set()
        self._cluster.deleted_topics.on_forgotten.append(self._requested_topics.discard)
        self._closing = False
        self._fast_outbox: FastOutbox | None = None  # the compiled outbox for plain messages

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` immediately if no name server can be reached, `UsageError` after `close`."""
        if self._closing:
            raise UsageError(f"the producer of group {self.group} was closed; make a new one")
        await self._cluster.start()
        ids = UniqueIds(self._cluster.ip, self._clock)
        self._preparation.begin(ids)
        if self._preparation.hooks is None and not self._names.name and self._batching is None:
            self._fast_outbox = self._outbox.open_fast_outbox(ids, asyncio.get_running_loop().create_future)

    async def close(self) -> None:
        """Refuse new sends, wait for replies to earlier ones, leave the group, close the connections. Idempotent."""
        self._closing = True
        self._fast_outbox = None
        if self._cluster.running:
            try:
                await self.flush()
            finally:
                await self._cluster.close()

    async def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send a message and return its queue and offset.

        Messages with the same `ordering_key` (a string, a whole number or bytes) go to the same queue.
        `selector(queues, message)` returns one of the queues; its exceptions are raised here. `queue` is one of
        `queues(topic)`. Without these, queues take turns. `timeout` (seconds) covers all attempts. Network failures and
        the response codes in `ProducerConfig.retry_codes` are retried at another broker. With a chosen queue only
        network failures are retried, at the same broker.
        """
        outbox = self._outbox  # the condition of `is_full`, repeated here to save a call
        if outbox.in_flight >= self.config.max_in_flight or outbox.pending_bytes >= outbox.max_bytes:
            await self.room()
        if (
            queue is None
            and ordering_key is None
            and selector is None
            and timeout is None
            and self._fast_outbox is not None
        ):
            future = self._fast_outbox.send(message, self.config.retry_codes, False)
            if future is not None:
                result: SendResult = await future
                return result
        return await self.begin(message, queue_chooser(message, queue, ordering_key, selector), timeout)

    def send_soon(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> asyncio.Future[SendResult]:
        """Send without waiting. The future returned gets the result or the error of `send`.

        Call this on the event loop. Messages of one turn of the event loop are written together, those of one queue in
        order. Network failures are retried, which may change the order; a broker's refusal is not. Raises `UsageError`
        while `max_in_flight` messages, or `max_pending_bytes`, are in flight: await some of the futures, or `flush()`.
        """
        if self.is_full:
            what = f"{self.in_flight} messages wait for their replies (max_in_flight)"
            if self.in_flight < self.config.max_in_flight:
                what = f"{self._outbox.pending_bytes} bytes wait for their replies (max_pending_bytes)"
            raise UsageError(f"{what}; await some futures or flush() first")
        return self.begin_soon(message, queue_chooser(message, queue, ordering_key, selector), timeout)

    def begin_soon(
        self, message: Message, choose: QueueChooser | None, timeout: float | None
    ) -> asyncio.Future[SendResult]:
        """Begin a send as `send_soon`, without the limit of messages in flight: the caller has waited for `room`."""
        if choose is None and timeout is None and self._fast_outbox is not None:
            future = self._fast_outbox.send(message, _NO_CODES, False)
            if future is not None:
                return future
        if (future := self._batched(message, choose, timeout)) is not None:
            return future
        pending = self._prepare(message, choose, timeout)
        self._outbox.send(pending)
        return pending.future

    def begin(
        self, message: Message, choose: QueueChooser | None, timeout: float | None, *, at_once: bool = False
    ) -> asyncio.Future[SendResult]:
        """Begin a send and return its future. `at_once`: write the request in this call, not at the end of the turn."""
        if at_once and choose is None and timeout is None and self._fast_outbox is not None:
            future = self._fast_outbox.send(message, self.config.retry_codes, True)
            if future is not None:
                return future
        if (future := self._batched(message, choose, timeout)) is not None:
            return future
        pending = self._prepare(message, choose, timeout)
        pending.at_once = at_once
        if choose is None:
            pending.retry_codes = self.config.retry_codes
        self._outbox.send(pending)
        return pending.future

    async def send_batch(
        self,
        messages: Iterable[Message],
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        timeout: float | None = None,
    ) -> SendResult:
        """Send messages of one topic in one request to one queue; their queue offsets are consecutive.

        The messages must have the same `wait_stored`, no delay, and together at most `max_message_bytes`.
        """
        await self.room()
        self.check_open()
        members = listed(messages)
        choose = queue_chooser(members[0], queue, ordering_key, None)
        if self._batching is not None:
            self._batching.send_open(self._preparation.topic(members[0].topic))
        pending = self._preparation.batch(members, choose, timeout)
        self._outbox.send(pending)
        return await pending.future

    async def send_one_way(
        self, message: Message, *, queue: MessageQueue | None = None, ordering_key: OrderingKey | None = None
    ) -> None:
        """Write a message to a broker's connection and return. The broker does not confirm it.

        Raises `DeadlineExceeded` if the broker does not read from the connection within `ProducerConfig.timeout`.
        """
        choose = queue_chooser(message, queue, ordering_key, None)
        pending = self._prepare(message, choose, None, kind=SendKind.ONE_WAY)
        error: BaseException | None = None
        try:
            channel, chosen = await self._outbox.reach(pending)
            header = self._outbox.header(pending, chosen)
            channel.notify(header, pending.body)
            await channel.writable(header.code, self.config.timeout)
        except BaseException as failure:
            error = failure
            raise
        finally:
            if pending.ended is not None:
                pending.ended(None, error)

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        ordering_key: OrderingKey | None = None,
        selector: Selector | None = None,
        timeout: float | None = None,
    ) -> StoredMessage:
        """Send a message and return the reply of a consumer's `reply` method.

        `timeout` (seconds) covers sending and waiting. Raises `NoReply` if the message was stored but no reply arrived
        in time, and the errors of `send`. Only this client gets the reply.
        """
        choose = queue_chooser(message, queue, ordering_key, selector)
        seconds = self.config.timeout if timeout is None else timeout
        deadline = self._preparation.deadline(seconds)
        await self.room()
        self.check_open()
        await self._be_known(self._preparation.topic(message.topic), seconds)
        with self._requests.waiting(self._cluster.client_id, seconds) as request:
            pending = self._prepare(message, choose, timeout, kind=SendKind.REQUEST, more=request.properties)
            pending.deadline = deadline
            pending.retry_codes = frozenset() if choose else self.config.retry_codes
            self._outbox.send(pending)
            await pending.future
            try:
                async with asyncio.timeout(max(0.0, pending.deadline - self._clock.monotonic())):
                    return await request.reply
            except TimeoutError as error:
                raise NoReply(
                    f"send request message to <{message.topic}> OK, but wait reply message timeout, {seconds:g} s; "
                    "is a consumer there that replies?"
                ) from error

    async def _be_known(self, topic: str, seconds: float) -> None:
        """Register at every broker of the topic before the first request: any of these brokers may relay the reply."""
        if topic in self._requested_topics:
            return
        with suppress(TimeoutError):  # the request itself raises this error
            async with asyncio.timeout(seconds):
                await self._outbox.route(topic)
                await self._cluster.heartbeat()
                self._requested_topics.add(topic)

    async def cancel(self, recall_handle: str | None) -> str:
        """Cancel a message sent with `deliver_at` or `delay`, by its send result's `recall_handle`; return its id.

        Any producer of any process may cancel the message. After this method returns, it is not delivered. Raises
        `RecallRefused` if the message was delivered or cancelled before, and `UsageError` for None, the handle of a
        message without delay. After `Unavailable` the message may be cancelled or not.
        """
        return await recall(
            self._cluster, recall_handle, group=self._names.wrap(self.group), timeout=self.config.timeout
        )

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the writable queues of a topic, in order of broker name and queue id."""
        return list((await self._outbox.route(self._preparation.topic(topic))).writable)

    @property
    def in_flight(self) -> int:
        """The number of messages that wait for their replies."""
        return self._outbox.in_flight

    @property
    def is_full(self) -> bool:
        """True while sending must wait, because `max_in_flight` messages or `max_pending_bytes` are in flight."""
        outbox = self._outbox
        return outbox.in_flight >= self.config.max_in_flight or outbox.pending_bytes >= outbox.max_bytes

    async def flush(self) -> None:
        """Send open batches, and wait until every message sent so far has its reply or has failed."""
        await self._room_below(1)

    async def room(self) -> None:
        """Wait until fewer messages and bytes are in flight than `max_in_flight` and `max_pending_bytes`."""
        await self._room_below(self.config.max_in_flight)

    def check_open(self) -> None:
        """Raise `NotRunning` before `start` and after `close` was called. Thread-safe."""
        self._cluster.check_running()
        if self._closing:
            raise NotRunning(f"the producer of group {self.group} is being closed and sends no more messages")

    async def _room_below(self, limit: int) -> None:
        if self._batching is not None and (limit == 1 or self.is_full):
            self._batching.send_open()
        await self._outbox.room_below(limit)

    def _batched(
        self, message: Message, choose: QueueChooser | None, timeout: float | None
    ) -> asyncio.Future[SendResult] | None:
        """Add a message to a batch and return the message's future; None if it must be sent alone."""
        if self._batching is None:
            return None
        self.check_open()
        return self._batching.add(message, choose, timeout)

    def _answerers(self) -> list[object]:
        """Return the processors of brokers' requests; a transaction producer adds one for transaction checks."""
        return [self._requests]

    def _prepare(
        self,
        message: Message,
        choose: QueueChooser | None,
        timeout: float | None,
        *,
        kind: SendKind = SendKind.SINGLE,
        more: Mapping[str, str] | None = None,
    ) -> PendingSend:
        if self._closing or not self._cluster.running:
            self.check_open()
        if self._batching is not None:
            # The open batch is sent first: its messages are older.
            self._batching.send_open(self._preparation.topic(message.topic))
        return self._preparation.message(message, choose, timeout, kind=kind, more=more)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that waits for its reply: the properties of its message, and the future of the reply."""

    properties: dict[str, str]
    reply: asyncio.Future[StoredMessage]


class Requests:
    """The requests of a producer that wait for replies; replies pushed by brokers complete them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @contextmanager
    def waiting(self, client_id: str, seconds: float) -> Iterator[Request]:
        """Yield a request that can be answered until the block ends; its message names `seconds` as the time limit."""
        correlation_id = str(uuid.uuid4())
        properties = {
            Property.CORRELATION_ID: correlation_id,
            Property.REPLY_TO_CLIENT: client_id,
            Property.TTL: str(int(seconds * 1000)),
        }
        request = Request(properties, asyncio.get_running_loop().create_future())
        _waiting[correlation_id] = request
        try:
            yield request
        finally:
            del _waiting[correlation_id]
            request.reply.cancel()

    @answers(PushReplyMessage)
    def take(self, header: PushReplyMessage, call: Call) -> Reply:
        """Complete the request that a pushed reply answers. If that request no longer waits, log the reply."""
        message = _message(header, call.body, self._clock.now_ms())
        correlation_id = message.properties.get(Property.CORRELATION_ID, "")
        request = _waiting.get(correlation_id)
        if request is None:
            logger.warning(
                "a reply of %s is dropped because no request with correlation id %r waits any more",
                message.born_host,
                correlation_id,
            )
        else:
            with suppress(RuntimeError):  # the event loop of the requesting client was closed meanwhile
                request.reply.get_loop().call_soon_threadsafe(_complete, request.reply, message)
        return Reply()


def _complete(reply: asyncio.Future[StoredMessage], message: StoredMessage) -> None:
    if not reply.done():
        reply.set_result(message)


def _message(header: PushReplyMessage, body: bytes, now_ms: int) -> StoredMessage:
    """Return a reply as a message. A reply is in no commit log, so its offsets are 0."""
    properties = decode_properties(header.properties or "") | {Property.ARRIVE_TIME: str(now_ms)}
    return StoredMessage(
        header.topic,
        body,
        encode_properties(properties),
        header.queue_id,
        header.flag,
        header.sys_flag,
        header.born_ms,
        _packed(header.born_host),
        header.reconsume_times or 0,
        store_ms=header.store_ms,
        store_address=_packed(header.store_host),
    )


def _packed(address: str) -> bytes:
    """Return the packed form of an address `ip:port`; Java puts a slash before the address."""
    host, _, port = address.lstrip("/").rpartition(":")
    return pack_address(host.strip("[]"), int(port) if port.isdigit() else 0)


async def recall(
    cluster: ClusterClient, recall_handle: str | None, *, group: str | None = None, timeout: float = API_SECONDS
) -> str:
    """Cancel a scheduled message and return its unique id. After this returns, the message is not delivered.

    One attempt of `timeout` seconds. Raises `TopicNotFound`, and `RecallRefused` for an illegal handle or if the
    message was delivered or cancelled before. After `Unavailable` the message may be cancelled or not. Source: RocketMQ
    5.3.3, DefaultMQProducerImpl.
    """
    if not isinstance(recall_handle, str):
        raise UsageError(
            f"cancel takes the recall_handle of a send result, not {recall_handle!r}; only messages that wait for"
            " deliver_at or delay have one"
        )
    cluster.check_running()
    handle = decode_handle(recall_handle)
    if (await cluster.route(handle.topic)).master(handle.broker_name) is None:
        await cluster.refresh(handle.topic)
    queue = MessageQueue(handle.topic, handle.broker_name, 0)
    order = RecallMessage(
        topic=handle.topic, recall_handle=recall_handle, producer_group=group, broker_name=handle.broker_name
    )
    answer = (await cluster.ask_master(queue, order, timeout=timeout)).check()
    return answer.header(RecallMessageResponse).message_id
