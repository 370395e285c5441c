"""A consumer that pops, as a plain client does."""

from dataclasses import dataclass

from pyromq.errors import ResponseCode
from pyromq.record import decode_all
from pyromq.remoting.bodies import BatchAck, BatchAcks, encode_body
from pyromq.remoting.headers import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    Notification,
    NotificationResponse,
    PollingInfo,
    PollingInfoResponse,
    PopMessage,
    PopMessageResponse,
)
from pyromq.remoting.receipt_handle import PopInfos, ReceiptHandle, bits_of, encode_bits

EXPIRED = ResponseCode.NO_MESSAGE
NOTHING = ResponseCode.POLLING_TIMEOUT


@dataclass(frozen=True)
class Received:
    """A popped message with its receipt handle."""

    body: bytes
    handle: ReceiptHandle
    attempts: int
    message: object


class Popper:
    """Pops a topic for a group over one connection."""

    def __init__(self, caller, clock, group="g", topic="orders"):
        self.caller = caller
        self.clock = clock
        self.group = group
        self.topic = topic

    def header(self, count=32, *, invisible_ms=60_000, poll_ms=0, queue_id=-1, **fields):
        fields = {"topic": self.topic, "init_mode": 0, "expression_type": "TAG", "expression": "*"} | fields
        return PopMessage(
            consumer_group=self.group,
            queue_id=queue_id,
            max_count=count,
            invisible_ms=invisible_ms,
            poll_ms=poll_ms,
            born_ms=self.clock.now_ms(),
            **fields,
        )

    async def pop(self, count=32, **fields):
        """Return the messages that one pop gets."""
        response = await self.caller.channel.call(self.header(count, **fields), timeout=30)
        assert response.code in (0, NOTHING), response.remark
        return self.received(response) if response.code == 0 else []

    def pop_soon(self, count=32, *, poll_ms=10_000, **fields):
        """Send a pop that may wait; return the future of the response."""
        return self.caller.channel.call_soon(self.header(count, poll_ms=poll_ms, **fields), timeout=30)

    def received(self, response):
        infos = PopInfos(response.header(PopMessageResponse), "broker-a")
        return [
            Received(each.body, infos.handle(each), infos.attempts(each), each) for each in decode_all(response.body)
        ]

    async def ack(self, *received, code=0):
        for each in received:
            header = AckMessage(
                consumer_group=self.group,
                topic=each.handle.topic(self.group, self.topic),
                queue_id=each.handle.queue_id,
                receipt_handle=each.handle.encode(),
                offset=each.handle.offset,
            )
            response = await self.caller.ask(header, code=code)
        return response

    async def ack_batch(self, *received, code=0):
        acks = []
        for each in received:
            handle = each.handle
            acks.append(
                BatchAck(
                    *(self.group, self.topic, handle.retry, handle.start, handle.queue_id, handle.revive_queue),
                    *(handle.pop_ms, handle.invisible_ms, encode_bits(bits_of([handle.offset], handle.start))),
                )
            )
        return await self.caller.ask(BatchAckMessage(), encode_body(BatchAcks("broker-a", acks)), code=code)

    async def change(self, received, invisible_ms, *, code=0):
        """Change when a message becomes visible; return it with its new handle."""
        handle = received.handle
        header = ChangeInvisibleTime(
            consumer_group=self.group,
            topic=handle.topic(self.group, self.topic),
            queue_id=handle.queue_id,
            receipt_handle=handle.encode(),
            offset=handle.offset,
            invisible_ms=invisible_ms,
        )
        response = await self.caller.ask(header, code=code)
        if code:
            return response
        new = response.header(ChangeInvisibleTimeResponse)
        handle = handle._replace(start=handle.offset, pop_ms=new.pop_ms, invisible_ms=new.invisible_ms)
        return Received(received.body, handle, received.attempts, received.message)

    def notification_soon(self, poll_ms=10_000, **fields):
        header = Notification(self.group, self.topic, -1, poll_ms=poll_ms, born_ms=self.clock.now_ms(), **fields)
        return self.caller.channel.call_soon(header, timeout=30)

    async def has_message(self):
        return (await self.notification_soon(0)).header(NotificationResponse).has_message

    async def waiting(self):
        response = await self.caller.ask(PollingInfo(self.group, self.topic, -1))
        return response.header(PollingInfoResponse).waiting


def bodies(received):
    return sorted(each.body for each in received)
