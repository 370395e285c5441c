"""Answers ReceiveMessage, AckMessage, ChangeInvisibleDuration and ForwardMessageToDeadLetterQueue.

A receive is a pop at the queue's broker. Messages that are popped after the end of the receive become visible
immediately.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

from pyromq.errors import CodeNotSupported, MQError, ResponseCode
from pyromq.excerpt import excerpt
from pyromq.filter.filter import filter_of
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks
from pyromq.proxy.acknowledgements import Acknowledgements, acknowledge_one, ask_broker
from pyromq.proxy.client_table import GrpcClient
from pyromq.proxy.cluster_access import TIMEOUT_SECONDS, ClusterAccess, expression_type
from pyromq.proxy.grpc_dispatch import Caller, answers_call, in_turns
from pyromq.proxy.grpc_refusal import GrpcRefusal, ok, status_of
from pyromq.proxy.http2.frames import MAX_FRAME
from pyromq.proxy.http2.grpc_stream import WORK_COPIES, GrpcStream, prefixed
from pyromq.proxy.popped_messages import PoppedMessages
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.renewals import RENEWED_SECONDS, Renewals
from pyromq.proxy.route_service import check_group_name
from pyromq.proxy.sent_messages import check_topic_name, seconds_of
from pyromq.remoting.command import Response
from pyromq.remoting.headers import (
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
    SendMessageBack,
)
from pyromq.remoting.headers.pop_headers import (
    MAX_INVISIBLE_SECONDS,
    MAX_POPPED,
    MIN_INVISIBLE_SECONDS,
    NOTHING_POPPED,
)
from pyromq.remoting.receipt_handle import ReceiptHandle, check_offset, parse_receipt_handle

logger = logger_of(__name__)

MAX_ENTRIES = 1024  # limit of the entries of one acknowledgement
PARSED_AT_ONCE = 64  # entries that are parsed in one turn of the event loop: less than 1 ms
MAX_POLL_SECONDS = 20.0
ANSWER_MARGIN = 0.2  # seconds before the client's deadline at which a waiting receive is answered
DEAD_LETTER_LEVEL = -1  # delay level that makes a message a dead letter


@dataclass(frozen=True, slots=True)
class _Receive:
    """A checked ReceiveMessage request."""

    group: str
    queue: MessageQueue
    header: PopMessage
    poll_seconds: float
    auto_renew: bool
    max_attempts: int  # deliveries before a dead letter. Java's brokers leave the limit to the proxy


class ReceiveService:
    """Answers ReceiveMessage, and the calls that acknowledge, delay or give up received messages."""

    def __init__(self) -> None:
        self._tasks = Tasks()
        self._acks = Acknowledgements()
        self._renewals = Renewals(_change)
        self._parsing = asyncio.Lock()  # held by the one call whose entries are parsed

    async def close(self) -> None:
        await self._renewals.close()
        await self._tasks.stop()
        await self._acks.close()

    @answers_call("ReceiveMessage")
    async def receive(self, caller: Caller, request: service.ReceiveMessageRequest) -> None:
        """Pop messages and send them at the pace of the client."""
        receive = await _checked(caller, request)
        client = await self._client(caller, request)
        popping = asyncio.ensure_future(
            caller.access.cluster.ask_master(
                receive.queue, receive.header, timeout=receive.poll_seconds + TIMEOUT_SECONDS
            )
        )
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        popping.add_done_callback(lambda _: None if ended.done() else ended.set_result(None))
        client.receives.add(ended)
        make_visible = partial(self._make_visible_when_popped, caller.access, receive)
        try:
            await ended
        except asyncio.CancelledError:
            popping.add_done_callback(make_visible)
            raise
        finally:
            client.receives.discard(ended)
        if not popping.done():  # the client terminates
            popping.add_done_callback(make_visible)
            _answer_nothing(caller)
            return
        await self._answer(caller, client, receive, popping.result())

    async def _answer(self, caller: Caller, client: GrpcClient, receive: _Receive, response: Response) -> None:
        if response.code in NOTHING_POPPED:
            _answer_nothing(caller)
            return
        _check_popped(response, receive.queue.broker_name)
        popped = _popped(response, receive)
        dead: set[ReceiptHandle] = set()

        def make_dead_letter(handle: ReceiptHandle, message_id: str) -> None:
            dead.add(handle)
            making = _make_dead_letter(caller.access, receive.group, receive.queue.topic, handle, message_id)
            self._tasks.start(making, name="make a dead letter")

        parts = popped.encoded(None if receive.header.order else receive.max_attempts, make_dead_letter)
        if (first := next(parts, None)) is None:
            _answer_nothing(caller)
            return
        stream = caller.stream
        names = receive.group, receive.queue.topic
        is_refused = stream.connection.is_over_share
        if not is_refused:
            stream.connection.keep(stream, len(response.body) * WORK_COPIES)
            if receive.auto_renew and not response.header(PopMessageResponse).is_renewed:
                # Added before the client can acknowledge the first message.
                self._renewals.add(caller.access, client, *names, popped.handles())
            if await _send_messages(caller, chain([first], parts)):
                self._renewals.forget(caller, *names, dead)
                stream.send(_last_answer(caller))
                stream.finish()
                return
            self._renewals.forget(caller, *names, popped.handles())
        self._make_visible(caller.access, receive, [each for each in popped.handles() if each not in dead])
        if is_refused:
            text = "the client has not read earlier messages; receive fewer messages at once"
            raise GrpcRefusal(proto.TOO_MANY_REQUESTS, text)

    async def _client(self, caller: Caller, request: service.ReceiveMessageRequest) -> GrpcClient:
        """Return the client, registered. After a restart of the proxy, a receive may be the first call of a client."""
        topic = request.message_queue.topic.name
        client = caller.access.clients.register(caller.client_id)
        is_new = not client.group
        if is_new:
            client.kind = proto.PUSH_CONSUMER if request.auto_renew else proto.SIMPLE_CONSUMER
            client.group = request.group.name
        if topic not in client.subscriptions:
            client.subscriptions[topic] = request.filter_expression
            is_new = True
        if is_new and request.auto_renew:
            await caller.access.announce_members(client)
        return client

    def _make_visible_when_popped(
        self, access: ClusterAccess, receive: _Receive, popping: asyncio.Future[Response]
    ) -> None:
        if popping.cancelled() or popping.exception() is not None or popping.result().code != ResponseCode.SUCCESS:
            return
        self._make_visible(access, receive, _popped(popping.result(), receive).handles())

    def _make_visible(self, access: ClusterAccess, receive: _Receive, handles: Sequence[ReceiptHandle]) -> None:
        """Let the broker deliver messages again that reached no client. Does not wait for the broker."""

        async def change() -> None:
            for handle in handles:
                try:
                    await _change(access, receive.group, receive.queue.topic, handle, 0)
                except MQError as error:
                    logger.info("a message of %s is invisible until its time ends: %s", receive.queue, error)

        self._tasks.start(change(), name="make messages visible")

    @answers_call("AckMessage")
    async def ack(self, caller: Caller, request: service.AckMessageRequest) -> service.AckMessageResponse:
        """Acknowledge messages; each entry has its own status."""
        group, topic = _names(request)
        if not 0 < len(request.entries) <= MAX_ENTRIES:
            text = f"the request has {len(request.entries)} entries; send 1 to {MAX_ENTRIES}"
            raise GrpcRefusal(proto.BAD_REQUEST, text)
        await caller.access.route(topic)
        async with self._parsing:
            handles = [_parsed(each) async for each in in_turns(request.entries, at_once=PARSED_AT_ONCE)]
        valid = [each for each in handles if isinstance(each, ReceiptHandle)]
        newest = await self._renewals.newest(caller, group, topic, valid)
        found = await self._acks.acknowledge(caller.access, group, topic, newest)
        failures = {first: found[last] for first, last in zip(valid, newest, strict=True) if last in found}
        self._renewals.forget(caller, group, topic, [each for each in valid if each not in failures])
        answer = service.AckMessageResponse()
        for entry, each in zip(request.entries, handles, strict=True):
            error = failures.get(each) if isinstance(each, ReceiptHandle) else each
            answer.entries.add(
                message_id=entry.message_id,
                receipt_handle=entry.receipt_handle,
                status=ok() if error is None else status_of(error),
            )
        codes = {each.status.code for each in answer.entries}
        status = proto.Status(code=proto.MULTIPLE_RESULTS, message="the entries differ")
        answer.status.CopyFrom(answer.entries[0].status if len(codes) == 1 else status)
        return answer

    @answers_call("ChangeInvisibleDuration")
    async def change(
        self, caller: Caller, request: service.ChangeInvisibleDurationRequest
    ) -> service.ChangeInvisibleDurationResponse:
        """Change the time after which a message becomes visible. The previous receipt handle becomes invalid."""
        group, topic = _names(request)
        seconds = seconds_of(request.invisible_duration)
        if not 0 <= seconds <= MAX_INVISIBLE_SECONDS:
            text = f"invisible_duration is {seconds:g} s; it must be 0 to {MAX_INVISIBLE_SECONDS:g} s"
            raise GrpcRefusal(proto.ILLEGAL_INVISIBLE_TIME, text)
        handle = parse_receipt_handle(request.receipt_handle)
        await caller.access.route(topic)
        (newest,) = await self._renewals.newest(caller, group, topic, [handle])
        changed = await _change(caller.access, group, topic, newest, int(seconds * 1000))
        self._renewals.forget(caller, group, topic, [handle])
        return service.ChangeInvisibleDurationResponse(status=ok(), receipt_handle=changed.encode())

    @answers_call("ForwardMessageToDeadLetterQueue")
    async def make_dead_letter(
        self, caller: Caller, request: service.ForwardMessageToDeadLetterQueueRequest
    ) -> service.ForwardMessageToDeadLetterQueueResponse:
        """Copy a message to the group's dead letters, then acknowledge the message."""
        group, topic = _names(request)
        handle = parse_receipt_handle(request.receipt_handle)
        if handle.log_offset < 0:
            text = f"receipt handle {excerpt(request.receipt_handle, 100)!r} has no log offset of the message"
            raise GrpcRefusal(proto.INVALID_RECEIPT_HANDLE, text)
        await caller.access.route(topic)
        (newest,) = await self._renewals.newest(caller, group, topic, [handle])
        await _make_dead_letter(caller.access, group, topic, newest, request.message_id)
        self._renewals.forget(caller, group, topic, [handle])
        return service.ForwardMessageToDeadLetterQueueResponse(status=ok())


async def _checked(caller: Caller, request: service.ReceiveMessageRequest) -> _Receive:
    group, topic = request.group.name, request.message_queue.topic.name
    check_group_name(group)
    check_topic_name(topic)
    if request.batch_size <= 0:
        raise GrpcRefusal(proto.BAD_REQUEST, f"batch_size is {request.batch_size}; it must be 1 to {MAX_POPPED}")
    invisible = RENEWED_SECONDS if request.auto_renew else seconds_of(request.invisible_duration)
    if not MIN_INVISIBLE_SECONDS <= invisible <= MAX_INVISIBLE_SECONDS:
        limits = f"{MIN_INVISIBLE_SECONDS:g} to {MAX_INVISIBLE_SECONDS:g} s"
        raise GrpcRefusal(proto.ILLEGAL_INVISIBLE_TIME, f"invisible_duration is {invisible:g} s; it must be {limits}")
    expression = request.filter_expression
    kind = expression_type(expression)
    try:
        filter_of(kind, expression.expression or "*")
    except MQError as error:
        raise GrpcRefusal(proto.ILLEGAL_FILTER_EXPRESSION, str(error)) from error
    wanted = seconds_of(request.long_polling_timeout) if request.HasField("long_polling_timeout") else MAX_POLL_SECONDS
    poll = max(0.0, min(wanted, MAX_POLL_SECONDS, caller.stream.seconds_left(MAX_POLL_SECONDS) - ANSWER_MARGIN))
    route = await caller.access.route(topic)
    broker = request.message_queue.broker.name
    if broker not in {each.broker_name for each in route.readable}:
        text = f"broker {excerpt(broker, 100)!r} has no queue of topic {topic!r} that can be read"
        raise GrpcRefusal(proto.FORBIDDEN, text)
    config = await caller.access.group(group)
    header = PopMessage(
        consumer_group=group,
        topic=topic,
        queue_id=-1,
        max_count=min(request.batch_size, MAX_POPPED),
        invisible_ms=int(invisible * 1000),
        poll_ms=int(poll * 1000),
        born_ms=caller.access.clock.now_ms(),
        init_mode=0,
        expression_type=kind,
        expression=expression.expression or "*",
        order=config.is_orderly,
        attempt_id=request.attempt_id or None,
        broker_name=broker,
        renewed_for=caller.client_id if request.auto_renew else None,
    )
    attempts = config.retry_max_times + 1
    return _Receive(group, MessageQueue(topic, broker, -1), header, poll, request.auto_renew, attempts)


def _check_popped(response: Response, broker_name: str) -> None:
    if response.code == ResponseCode.POLLING_FULL:
        text = response.remark or "too many receives wait at the broker; receive with fewer clients, or less often"
        raise GrpcRefusal(proto.TOO_MANY_REQUESTS, text)
    try:
        response.check()
    except CodeNotSupported as error:
        text = f"broker {broker_name} of RocketMQ 4.9 has no pop: consume by a 4.9 client, or use RocketMQ 5 or pyromq"
        raise GrpcRefusal(proto.UNSUPPORTED, text) from error


async def _send_messages(caller: Caller, parts: Iterable[bytes]) -> bool:
    """Send a receive's messages at the pace of the client. Return whether the client has read all.

    Clients drop all messages of a call that fails.
    """
    caller.count(status := ok())
    ready = [prefixed(service.ReceiveMessageResponse(status=status).SerializeToString())]
    size = 0
    for each in parts:
        if size >= MAX_FRAME:
            caller.stream.send_prefixed(b"".join(ready))
            ready, size = [], 0
            if not await _has_room(caller.stream):
                return False
        ready.append(each)
        size += len(each)
    caller.stream.send_prefixed(b"".join(ready))
    return await _has_room(caller.stream)


async def _has_room(stream: GrpcStream) -> bool:
    """Wait until the client has read most of the sent bytes. Return False if the call has ended."""
    try:
        return await stream.until_room()
    except asyncio.CancelledError:
        return False


def _popped(response: Response, receive: _Receive) -> PoppedMessages:
    return PoppedMessages(response, receive.queue.topic, receive.queue.broker_name)


def _answer_nothing(caller: Caller) -> None:
    status = proto.Status(code=proto.MESSAGE_NOT_FOUND, message="no message arrived within the polling time")
    caller.count(status)
    caller.stream.send(service.ReceiveMessageResponse(status=status).SerializeToString())
    caller.stream.send(_last_answer(caller))
    caller.stream.finish()


def _last_answer(caller: Caller) -> bytes:
    last = service.ReceiveMessageResponse()
    last.delivery_timestamp.FromMilliseconds(caller.access.clock.now_ms())
    data: bytes = last.SerializeToString()
    return data


def _names(
    request: service.AckMessageRequest
    | service.ChangeInvisibleDurationRequest
    | service.ForwardMessageToDeadLetterQueueRequest,
) -> tuple[str, str]:
    check_group_name(request.group.name)
    check_topic_name(request.topic.name)
    return request.group.name, request.topic.name


def _parsed(entry: service.AckMessageEntry) -> ReceiptHandle | MQError:
    try:
        handle = parse_receipt_handle(entry.receipt_handle)
        check_offset(handle)
    except MQError as error:
        return error
    return handle


async def _make_dead_letter(
    access: ClusterAccess, group: str, topic: str, handle: ReceiptHandle, message_id: str
) -> None:
    """Copy a message to the group's dead letters, then acknowledge the message."""
    back = SendMessageBack(
        offset=handle.log_offset,
        group=group,
        delay_level=DEAD_LETTER_LEVEL,
        origin_message_id=message_id or None,
        origin_topic=topic,
        broker_name=handle.broker_name,
    )
    (await ask_broker(access, topic, handle, back)).check()
    await acknowledge_one(access, group, topic, handle)


async def _change(
    access: ClusterAccess, group: str, topic: str, handle: ReceiptHandle, invisible_ms: int
) -> ReceiptHandle:
    header = handle.of_broker.change(group, topic, invisible_ms, broker_name=handle.broker_name)
    answer = (await ask_broker(access, topic, handle, header)).check()
    return handle.changed(answer.header(ChangeInvisibleTimeResponse))
