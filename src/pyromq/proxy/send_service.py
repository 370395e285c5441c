"""Answers SendMessage and RecallMessage: checks messages, sends them to brokers, and returns an entry for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from pyromq.client.producer.pending_send import PendingSend, SendEnded, batch_properties
from pyromq.errors import MessageRefused, MQError, RecallRefused
from pyromq.message import MessageQueue, SendResult, SendStatus, encode_properties
from pyromq.message_id import parse_offset_id
from pyromq.proxy.cluster_access import TIMEOUT_SECONDS
from pyromq.proxy.grpc_dispatch import Caller, answers_call, in_turns
from pyromq.proxy.grpc_refusal import GrpcRefusal, ok, status_of
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.sent_messages import (
    MAX_PROPERTY_BYTES,
    SentMessage,
    TopicTypes,
    check_topic_name,
    queue_of_group,
    sent_message,
    topic_of,
)
from pyromq.proxy.transaction_ids import TransactionId
from pyromq.record import BatchMember, encode_batch
from pyromq.remoting.headers import RecallMessage, RecallMessageResponse
from pyromq.remoting.recall_handle import decode_handle

ANSWER_MARGIN = 0.2  # seconds between the end of a send and the client's deadline, so that the answer arrives in time

# Statuses of messages that are stored, but less safely than configured. Source: RocketMQ 5.3.3, ResponseBuilder.
_LESS_SAFE = {
    SendStatus.FLUSH_DISK_TIMEOUT: (proto.MASTER_PERSISTENCE_TIMEOUT, "stored, but not flushed to disk in time"),
    SendStatus.FLUSH_SLAVE_TIMEOUT: (proto.SLAVE_PERSISTENCE_TIMEOUT, "stored, but not replicated in time"),
    SendStatus.SLAVE_NOT_AVAILABLE: (proto.HA_NOT_AVAILABLE, "stored, but no slave is connected"),
}


class SendService:
    """Answers SendMessage and RecallMessage."""

    def __init__(self) -> None:
        self._checking = asyncio.Lock()  # held by the one request whose messages are checked

    @answers_call("SendMessage")
    def send(
        self, caller: Caller, request: service.SendMessageRequest
    ) -> asyncio.Future[service.SendMessageResponse] | None:
        """Send the messages of a request. One message of a topic with a fresh route is sent without a task."""
        topic = topic_of(request.messages)
        types = caller.access.known_types(topic)
        if types is None:
            check_topic_name(topic)
            return asyncio.ensure_future(self._send_to_new_topic(caller, topic, request.messages))
        if len(request.messages) > 1:
            return asyncio.ensure_future(self._send_several(caller, topic, request.messages, types))
        message = sent_message(request.messages[0], topic, types, caller.access.clock.now_ms())
        _send(caller, topic, message, partial(_answer_one, caller, message))
        return None

    async def _send_to_new_topic(
        self, caller: Caller, topic: str, messages: Sequence[proto.Message]
    ) -> service.SendMessageResponse:
        types = await caller.access.types(topic)
        return await self._send_several(caller, topic, messages, types)

    async def _send_several(
        self,
        caller: Caller,
        topic: str,
        messages: Sequence[proto.Message],
        types: TopicTypes,
    ) -> service.SendMessageResponse:
        """Send messages of one topic. Normal messages are one batch, which is stored whole or not at all."""
        now_ms = caller.access.clock.now_ms()
        async with self._checking:
            checked = [sent_message(each, topic, types, now_ms) async for each in in_turns(messages)]
            if len(checked) > 1 and all(each.kind == proto.NORMAL and not each.sys_flag for each in checked):
                sends = [asyncio.ensure_future(_send_batch(caller, topic, checked))]
            else:
                singles = in_turns(checked)
                sends = [asyncio.ensure_future(_send_alone(caller, topic, each)) async for each in singles]
        return _response([entry for entries in await asyncio.gather(*sends) for entry in entries])

    @answers_call("RecallMessage")
    async def recall(self, caller: Caller, request: service.RecallMessageRequest) -> service.RecallMessageResponse:
        """Cancel a delayed message that is not yet delivered."""
        topic = request.topic.name
        check_topic_name(topic)
        handle = decode_handle(request.recall_handle)
        if handle.topic != topic:
            raise RecallRefused(f"the recall handle is of topic {handle.topic!r}, and the request names {topic!r}")
        await caller.access.route(topic)
        header = RecallMessage(topic=topic, recall_handle=request.recall_handle, broker_name=handle.broker_name)
        queue = MessageQueue(topic, handle.broker_name, 0)
        response = await caller.access.cluster.ask_master(queue, header, timeout=TIMEOUT_SECONDS, idempotent=True)
        message_id = response.check().header(RecallMessageResponse).message_id
        return service.RecallMessageResponse(status=ok(), message_id=message_id)


def _send(caller: Caller, topic: str, message: SentMessage, ended: SendEnded) -> None:
    access = caller.access
    group = message.group
    access.outbox.send(
        PendingSend(
            topic,
            message.message_id,
            0,
            message.body,
            message.sys_flag,
            message.property_text,
            _deadline(caller),
            frozenset(),
            access.sent,
            choose=partial(queue_of_group, group) if group else None,
            ended=ended,
        )
    )


def _deadline(caller: Caller) -> float:
    seconds = min(TIMEOUT_SECONDS, caller.stream.seconds_left(TIMEOUT_SECONDS) - ANSWER_MARGIN)
    return caller.access.clock.monotonic() + max(0.05, seconds)


def _answer_one(caller: Caller, message: SentMessage, result: SendResult | None, error: BaseException | None) -> None:
    caller.reply(_response([_entry(message, result, error)]))


async def _send_alone(caller: Caller, topic: str, message: SentMessage) -> list[service.SendResultEntry]:
    done: asyncio.Future[list[service.SendResultEntry]] = asyncio.get_running_loop().create_future()

    def ended(result: SendResult | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_result([_entry(message, result, error)])

    _send(caller, topic, message, ended)
    return await done


async def _send_batch(caller: Caller, topic: str, messages: Sequence[SentMessage]) -> list[service.SendResultEntry]:
    done: asyncio.Future[list[service.SendResultEntry]] = asyncio.get_running_loop().create_future()

    def ended(result: SendResult | None, error: BaseException | None) -> None:
        if not done.done():
            entries = [_entry(each, result, error) for each in messages]
            if result is not None:
                for number, entry in enumerate(entries):
                    entry.offset = result.queue_offset + number
            done.set_result(entries)

    access = caller.access
    members = [BatchMember(0, each.body, encode_properties(each.properties)) for each in messages]
    access.outbox.send(
        PendingSend(
            topic,
            ",".join([each.message_id for each in messages]),
            0,
            encode_batch(members),
            0,
            batch_properties({}, wait_stored=True),
            _deadline(caller),
            frozenset(),
            access.sent,
            is_batch=True,
            ended=ended,
        )
    )
    return await done


def _entry(message: SentMessage, result: SendResult | None, error: BaseException | None) -> service.SendResultEntry:
    if result is None:
        refusal = error if isinstance(error, MQError) else MQError(str(error))
        return service.SendResultEntry(
            status=status_of(_refusal_for_client(message, refusal)), message_id=message.message_id
        )
    status = ok()
    if result.status is not SendStatus.OK:
        code, text = _LESS_SAFE[result.status]
        status = proto.Status(code=code, message=text)
    transaction_id = message.message_id
    if message.kind == proto.TRANSACTION:
        place = parse_offset_id(result.offset_message_id)
        transaction_id = TransactionId(result.queue.broker_name, place.log_offset, result.queue_offset).encode()
    return service.SendResultEntry(
        status=status,
        message_id=message.message_id,
        transaction_id=transaction_id,
        offset=result.queue_offset,
        recall_handle=result.recall_handle or "",
    )


def _refusal_for_client(message: SentMessage, error: MQError) -> MQError:
    """Return an error whose status tells the client of an illegal delivery time or too large body, else `error`."""
    text = str(error)
    if message.kind == proto.DELAY and ("timer" in text.lower() or "deliver" in text.lower()):
        return GrpcRefusal(proto.ILLEGAL_DELIVERY_TIME, text)
    if isinstance(error, MessageRefused) and len(message.body) > MAX_PROPERTY_BYTES:
        return GrpcRefusal(proto.MESSAGE_BODY_TOO_LARGE, text)  # body and properties exceed the broker's limit
    return error


def _response(entries: Sequence[service.SendResultEntry]) -> service.SendMessageResponse:
    status = entries[0].status
    if any(each.status.code != status.code for each in entries):
        status = proto.Status(code=proto.MULTIPLE_RESULTS, message="the entries differ")
    return service.SendMessageResponse(status=status, entries=entries)
