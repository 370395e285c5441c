"""Requests that wait for their replies.

A request is a message that says who waits for what; a consumer's reply goes to the broker, which hands it to this
process over a connection of its own. Source: RocketMQ 4.9.8, RequestFutureHolder and ClientRemotingProcessor.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from pyromq.clock import Clock
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage, decode_properties, encode_properties, pack_address
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import PushReplyMessage

logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that waits: the properties that its message needs, and its reply to come."""

    properties: dict[str, str]
    reply: asyncio.Future[StoredMessage]


class Requests:
    """Notes which requests wait, and takes in the replies."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    @contextmanager
    def waiting(self, client_id: str, seconds: float) -> Iterator[Request]:
        """A request of a client that waits so long; inside the block its reply can come."""
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
        """Complete the request that waits for this; a reply that comes too late is logged."""
        message = _message(header, call.body, self._clock.now_ms())
        correlation_id = message.properties.get(Property.CORRELATION_ID, "")
        request = _waiting.get(correlation_id)
        if request is None:
            logger.warning("a reply of %s comes too late: nobody waits for %r", message.born_host, correlation_id)
        else:
            with suppress(RuntimeError):  # that client's loop was closed just now
                request.reply.get_loop().call_soon_threadsafe(_complete, request.reply, message)
        return Reply()


def _complete(reply: asyncio.Future[StoredMessage], message: StoredMessage) -> None:
    if not reply.done():
        reply.set_result(message)


def _message(header: PushReplyMessage, body: bytes, now_ms: int) -> StoredMessage:
    """Return the reply as a message. It has no place in a log: its offsets are 0."""
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
    """Read `ip:port`; Java puts a slash before it."""
    host, _, port = address.lstrip("/").rpartition(":")
    return pack_address(host.strip("[]"), int(port) if port.isdigit() else 0)


# Of the whole process: clients that share an id on several event loops get each other's replies.
_waiting: dict[str, Request] = {}
