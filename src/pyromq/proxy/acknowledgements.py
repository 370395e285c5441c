"""Acknowledges messages at brokers, in one request for each topic and broker per turn of the event loop.

A broker answers a batch of acknowledgements with one code. After a refusal each message is acknowledged in a request of
its own, so that each message has its own error. A repeated acknowledgement is not an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from pyromq.errors import MQError, ResponseCode, from_response
from pyromq.message import MessageQueue
from pyromq.net.tasks import Tasks
from pyromq.proxy.cluster_access import REFRESH_SECONDS, TIMEOUT_SECONDS, ClusterAccess
from pyromq.proxy.grpc_dispatch import in_turns
from pyromq.remoting.bodies import BatchAcks, encode_body
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import BatchAckMessage
from pyromq.remoting.receipt_handle import ReceiptHandle, batch_acks

MAX_BATCH = 256  # limit of the messages in a request: the request is encoded in less than 1 ms
_BUSY = (ResponseCode.SYSTEM_BUSY, ResponseCode.FLOW_CONTROL)  # refusals of a broker that has too many requests

Failures = dict[ReceiptHandle, MQError]  # why messages were not acknowledged


@dataclass(frozen=True, slots=True)
class _Destination:
    """A topic at a broker, and the account whose access sends the requests."""

    access: ClusterAccess
    topic: str
    broker_name: str


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """The messages of one client call at one broker."""

    group: str
    handles: Sequence[ReceiptHandle]
    failures: asyncio.Future[Failures]


class Acknowledgements:
    """Collects the acknowledgements of a turn of the event loop, and sends them to the brokers."""

    def __init__(self) -> None:
        self._parts: dict[_Destination, list[_Part]] = {}
        self._no_batches_until: dict[str, float] = {}  # broker name -> end of the time without batches
        self._tasks = Tasks()
        self.close = self._tasks.stop

    async def acknowledge(
        self, access: ClusterAccess, group: str, topic: str, handles: Sequence[ReceiptHandle]
    ) -> Failures:
        """Acknowledge messages of a topic. Return the error of each message whose acknowledgement failed."""
        loop = asyncio.get_running_loop()
        by_broker: dict[str, list[ReceiptHandle]] = {}
        for handle in handles:
            by_broker.setdefault(handle.broker_name, []).append(handle)
        pending = []
        for broker_name, found in by_broker.items():
            for at in range(0, len(found), MAX_BATCH):
                part = _Part(group, found[at : at + MAX_BATCH], loop.create_future())
                pending.append(part.failures)
                self._add(_Destination(access, topic, broker_name), part)
        failures: Failures = {}
        for each in pending:
            failures |= await each
        return failures

    def _add(self, destination: _Destination, part: _Part) -> None:
        if not self._parts:
            asyncio.get_running_loop().call_soon(self._send)
        self._parts.setdefault(destination, []).append(part)

    def _send(self) -> None:
        waiting, self._parts = self._parts, {}
        for destination, parts in waiting.items():
            batch: list[_Part] = []
            for part in parts:
                if sum(len(each.handles) for each in (*batch, part)) > MAX_BATCH:
                    self._tasks.start(self._acknowledge_parts(destination, batch), name="acknowledge")
                    batch = []
                batch.append(part)
            self._tasks.start(self._acknowledge_parts(destination, batch), name="acknowledge")

    async def _acknowledge_parts(self, destination: _Destination, parts: list[_Part]) -> None:
        is_done, error = await self._acknowledge_batch(destination, parts)
        for part in parts:
            if is_done:
                failures = dict.fromkeys(part.handles, error) if error else {}
            else:
                failures = await _acknowledge_one_by_one(destination, part)
            if not part.failures.done():  # the client may have ended its call
                part.failures.set_result(failures)

    async def _acknowledge_batch(self, destination: _Destination, parts: list[_Part]) -> tuple[bool, MQError | None]:
        """Acknowledge messages in one request.

        Return False if each message needs a request of its own, else True and the common error of all messages.
        """
        if sum(len(part.handles) for part in parts) == 1 or self._takes_no_batches(destination):
            return False, None
        acks = [each for part in parts for each in batch_acks(part.group, destination.topic, part.handles)]
        body = encode_body(BatchAcks(destination.broker_name, acks))
        try:
            response = await _ask(destination, -1, BatchAckMessage(), body)
        except MQError as error:  # the broker cannot be reached
            return True, error
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # the broker has no batches of acknowledgements
            self._no_batches_until[destination.broker_name] = destination.access.clock.monotonic() + REFRESH_SECONDS
        if response.code in _BUSY:
            return True, from_response(response.code, response.remark)
        return not response.code, None

    def _takes_no_batches(self, destination: _Destination) -> bool:
        return destination.access.clock.monotonic() < self._no_batches_until.get(destination.broker_name, float("-inf"))


async def _acknowledge_one_by_one(destination: _Destination, part: _Part) -> Failures:
    asks = [asyncio.ensure_future(_failure(destination, part.group, each)) async for each in in_turns(part.handles)]
    found = zip(part.handles, await asyncio.gather(*asks), strict=True)
    return {handle: error for handle, error in found if error is not None}


async def _failure(destination: _Destination, group: str, handle: ReceiptHandle) -> MQError | None:
    try:
        await acknowledge_one(destination.access, group, destination.topic, handle)
    except MQError as error:
        return error
    return None


async def acknowledge_one(access: ClusterAccess, group: str, topic: str, handle: ReceiptHandle) -> None:
    """Acknowledge a message. Raises the broker's error, for example `ReceiptHandleExpired`."""
    header = handle.of_broker.ack(group, topic, broker_name=handle.broker_name)
    (await ask_broker(access, topic, handle, header)).check()


async def ask_broker(access: ClusterAccess, topic: str, handle: ReceiptHandle, header: Header) -> Response:
    """Return the response of the broker that has handed out a message. Raises `Unavailable`."""
    return await _ask(_Destination(access, topic, handle.broker_name), handle.queue_id, header)


async def _ask(destination: _Destination, queue_id: int, header: Header, body: bytes = b"") -> Response:
    queue = MessageQueue(destination.topic, destination.broker_name, queue_id)
    cluster = destination.access.cluster
    return await cluster.ask_master(queue, header, body, timeout=TIMEOUT_SECONDS, idempotent=True)
