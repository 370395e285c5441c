"""Answers consumers that reply to a request: pushes each reply to the producer that waits for it, and stores a copy.

The copy, in topic `<cluster>_REPLY_TOPIC`, is only a record for people. An error in storing it fails no reply.
Source: RocketMQ 4.9.8, ReplyMessageProcessor.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import Future

from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError, MQError
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage, SysFlag, decode_properties, encode_properties, format_address
from pyromq.remoting.bodies import TopicConfig
from pyromq.remoting.command import Call, Reply, Response
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import PushReplyMessage, SendMessageResponse, SendReplyMessage

logger = logger_of(__name__)

PUSH_SECONDS = 10.0  # longest wait for the requester to confirm a pushed reply. Source: Broker2Client.callClient
NOT_STORED = "0"  # message id in the response if the reply is not stored


class ReplyMessageProcessor:
    """Pushes request-reply replies to their requesters, and stores copies."""

    def __init__(self, state: SharedState) -> None:
        self._put_message = state.put_message
        self._admission = state.admission
        self._confirmation = state.confirmation
        self._store = state.store
        self._connections = state.connections
        self._config = state.config
        self._clock = state.clock

    @answers(SendReplyMessage)
    def reply(self, header: SendReplyMessage, call: Call) -> Future[Reply]:
        """Respond with code 0 when the requester has the reply and the stored copy is confirmed.

        If the push to the requester fails, the code is 1.
        """
        topic = self._admission.topic_for(header, call)
        message = self._message(header, call, topic)
        stored = self._config.store_replies and self._append(message)
        answer = SendMessageResponse(
            message_id=message.offset_message_id if stored else NOT_STORED,
            queue_id=message.queue_id,
            queue_offset=message.queue_offset if stored else 0,
            region=self._config.region,
            trace_on="true",
        )
        answered: Future[Reply] = Future()

        def done(failure: str | None) -> None:
            if failure is not None:
                answered.set_result(Reply(answer, code=BrokerError.code, remark=failure))
            elif stored:
                self._confirmation.complete(Reply(answer), answered)
            else:
                answered.set_result(Reply(answer))

        self._push(header, call, done=done)
        return answered

    def _message(self, header: SendReplyMessage, call: Call, topic: TopicConfig) -> StoredMessage:
        """Return the reply as a message to store. Unlike upstream, the message keeps the flag of a compressed body."""
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = random.randrange(max(topic.write_queues, 1))
        return StoredMessage(
            topic.name,
            call.body,
            header.properties or "",
            queue_id,
            header.flag,
            header.sys_flag & (SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK),
            header.born_ms,
            call.peer.packed_address,
            header.reconsume_times or 0,
        )

    def _append(self, message: StoredMessage) -> bool:
        """Store the reply if possible; return whether it was stored.

        Replies of Go clients may be empty: these are not stored.
        """
        if not message.stored_body:
            return False
        try:
            self._confirmation.refuse_if_overloaded()
            self._put_message.put(message)
        except MQError as error:
            logger.warning("a reply to topic %s is not stored: %s", message.topic, error)
            return False
        return True

    def _push(self, header: SendReplyMessage, call: Call, *, done: Callable[[str | None], None]) -> None:
        """Push the reply to the requester; call `done` with None, or with the error in upstream's words."""
        properties = decode_properties(header.properties or "")
        client_id = properties.get(Property.REPLY_TO_CLIENT)
        if client_id is None:
            done(f"reply message properties[{Property.REPLY_TO_CLIENT}] is null")
            return
        requester = self._connections.producer_at(client_id)
        if requester is None:
            done(f"push reply message fail, channel of <{client_id}> not found.")
            return
        now = self._clock.now_ms()
        properties[Property.PUSH_REPLY_TIME] = str(now)
        pushed = PushReplyMessage(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_count=header.default_topic_queue_count,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_ms=header.born_ms,
            flag=header.flag,
            born_host=call.peer.address,
            store_host=format_address(self._store.store_address),
            store_ms=now,
            properties=encode_properties(properties),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
        )

        def answered(result: Response | MQError) -> None:
            if isinstance(result, Response) and not result.code:
                done(None)
            else:
                logger.info("the reply for client %s was not accepted: %s", client_id, result)
                done(f"push reply message to {client_id}fail.")

        requester.session.call(pushed, call.body, timeout=PUSH_SECONDS, answered=answered)
