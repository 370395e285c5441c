"""Answers acknowledgements of popped messages, and changes of their invisible time.

Source: RocketMQ 5.3.3, AckMessageProcessor and ChangeInvisibleTimeProcessor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pyromq.broker.popping.pop_admission import PopAdmission, check_invisible
from pyromq.broker.popping.pop_table import PopTable, check_handle
from pyromq.broker.popping.pop_waiting import PopWaiting
from pyromq.errors import MQError
from pyromq.remoting.bodies import REQUEST, BatchAck, BatchAcks, decode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    AckMessage,
    BatchAckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
)
from pyromq.remoting.receipt_handle import ORDERLY_REVIVE_QUEUE, ReceiptHandle, decode_bits, parse_receipt_handle
from pyromq.slow_work import SlowWork, yield_slice

_AT_ONCE = 64  # acknowledgements in one turn of the event loop: an expired handle takes up to 20 us


class AckProcessor:
    """Acknowledges messages by their receipt handles. A repeated acknowledgement is not an error."""

    def __init__(self, table: PopTable, admission: PopAdmission, waiting: PopWaiting) -> None:
        self._table = table
        self._admission = admission
        self._waiting = waiting

    @answers(AckMessage)
    def acknowledge(self, header: AckMessage, call: Call) -> Reply:
        """Acknowledge one message. Raises `ReceiptHandleExpired`, `InvalidReceiptHandle`."""
        group, topic = header.consumer_group, header.topic
        handle = parse_receipt_handle(header.receipt_handle)
        check_handle(handle, header.queue_id, header.offset)
        self._admission.check(group, topic, header.queue_id, call.peer)
        if expired := self._finish(group, topic, handle, 1 << handle.offset - handle.start):
            raise self._table.expired(group, topic, handle, expired)
        return Reply()

    @answers(BatchAckMessage)
    def acknowledge_batch(self, header: BatchAckMessage, call: Call) -> Reply | SlowWork[Reply]:
        """Acknowledge messages of several pops.

        All valid entries are acknowledged. Then the error of the first invalid entry is raised.
        """
        acks = decode_body(BatchAcks, call.body, REQUEST).acks
        if len(acks) > _AT_ONCE:
            return self._acknowledge_slowly(acks, call)
        return _outcome([self._acknowledge(ack, call) for ack in acks])

    async def _acknowledge_slowly(self, acks: Sequence[BatchAck], call: Call) -> Reply:
        errors = []
        for ack in acks:
            errors.append(self._acknowledge(ack, call))
            await yield_slice()
        return _outcome(errors)

    def _acknowledge(self, ack: BatchAck, call: Call) -> MQError | None:
        """Acknowledge messages of one pop. Return the error if some messages cannot be acknowledged."""
        handle = ReceiptHandle(
            *(ack.start, ack.pop_ms, ack.invisible_ms, ack.revive_queue, ack.retry, "", ack.queue_id, ack.start)
        )
        topic = handle.topic(ack.group, ack.topic)
        try:
            bits = decode_bits(ack.bits)
            self._admission.check(ack.group, topic, ack.queue_id, call.peer)
        except MQError as error:
            return error
        expired = self._finish(ack.group, topic, handle, bits)
        return self._table.expired(ack.group, topic, handle, expired) if expired else None

    def _finish(self, group: str, topic: str, handle: ReceiptHandle, bits: int) -> int:
        """Acknowledge messages, as `PopTable.acknowledge` does. Resume a waiting pop if an orderly queue is free then.

        Source: RocketMQ 5.3.3, AckMessageProcessor.ackOrderly.
        """
        expired = self._table.acknowledge(group, topic, handle, bits)
        if handle.revive_queue == ORDERLY_REVIVE_QUEUE and self._table.is_free(group, topic, handle.queue_id):
            self._waiting.wake(group, topic)
        return expired

    @answers(ChangeInvisibleTime)
    def change(self, header: ChangeInvisibleTime, call: Call) -> Reply:
        """Change the time after which a message becomes visible. The reply has the values of the new receipt handle.

        Raises `ReceiptHandleExpired`, `InvalidReceiptHandle`, `PopsInFlight`.
        """
        group, topic = header.consumer_group, header.topic
        handle = parse_receipt_handle(header.receipt_handle)
        check_handle(handle, header.queue_id, header.offset)
        check_invisible(header.invisible_ms)
        self._admission.check(group, topic, header.queue_id, call.peer)
        pop = self._table.change(group, topic, handle, header.invisible_ms)
        revive_queue = ORDERLY_REVIVE_QUEUE if pop.is_orderly else 0
        return Reply(ChangeInvisibleTimeResponse(pop.pop_ms, header.invisible_ms, revive_queue))


def _outcome(errors: Iterable[MQError | None]) -> Reply:
    for error in errors:
        if error is not None:
            raise error
    return Reply()
