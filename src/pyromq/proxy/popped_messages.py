"""Encodes the messages in a broker's pop response for the client's call, with their receipt handles.

The compiled `ReceivedWriter` encodes most messages. `received_messages` encodes the others by protobuf.
No network here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pyromq import speedups
from pyromq.message import Property, format_address
from pyromq.proxy.http2.frames import MAX_FRAME
from pyromq.proxy.http2.grpc_stream import prefixed
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.proto import service_pb2 as service
from pyromq.proxy.received_messages import HIDDEN, checksum_of, fill_message
from pyromq.proxy.sent_messages import BORN_HOST, TRACE_CONTEXT
from pyromq.record import decode, decode_all
from pyromq.remoting.command import Response
from pyromq.remoting.headers import PopMessageResponse
from pyromq.remoting.receipt_handle import PopInfos, ReceiptHandle

if speedups.is_active:
    from pyromq.speedups.received import ReceivedWriter

_System = proto.SystemProperties
_LEFT_TO_PYTHON = -1  # a record with this property is encoded by protobuf
# System property -> number of its field in `SystemProperties`; 0: clients do not see the property.
_MEANINGS = {
    **dict.fromkeys(HIDDEN, 0),
    Property.TAGS: _System.TAG_FIELD_NUMBER,
    Property.KEYS: _System.KEYS_FIELD_NUMBER,
    Property.UNIQUE_KEY: _System.MESSAGE_ID_FIELD_NUMBER,
    Property.DELAY: _System.MESSAGE_TYPE_FIELD_NUMBER,
    BORN_HOST: _System.BORN_HOST_FIELD_NUMBER,
    Property.TIMER_DELIVER_MS: _System.DELIVERY_TIMESTAMP_FIELD_NUMBER,
    Property.SHARDING_KEY: _System.MESSAGE_GROUP_FIELD_NUMBER,
    TRACE_CONTEXT: _System.TRACE_CONTEXT_FIELD_NUMBER,
    Property.TRANSACTION: _LEFT_TO_PYTHON,
    Property.POP_CHECK_POINT: _LEFT_TO_PYTHON,
    Property.DEAD_LETTER_TOPIC: _LEFT_TO_PYTHON,
}
_writer = (
    ReceivedWriter(
        {name.encode(): field for name, field in _MEANINGS.items()},
        lambda body: checksum_of(body).encode(),
        format_address,
    )
    if speedups.is_active
    else None
)


MakeDeadLetter = Callable[[ReceiptHandle, str], None]  # called with a receipt handle and the message's id


class PoppedMessages:
    """The messages in a broker's response to a pop of a topic. Raises `ProtocolError` for unreadable pop infos."""

    def __init__(self, response: Response, topic: str, broker_name: str) -> None:
        self._records = response.body
        self._topic = topic
        self._invisible_ms = (header := response.header(PopMessageResponse)).invisible_ms
        self._infos = PopInfos(header, broker_name)

    def handles(self) -> list[ReceiptHandle]:
        return [self._infos.handle(each) for each in decode_all(self._records)]

    def encoded(self, max_attempts: int | None, make_dead_letter: MakeDeadLetter) -> Iterator[bytes]:
        """Yield the encoded messages with their gRPC prefixes, several messages in one piece.

        `make_dead_letter` is called for messages that were handed out `max_attempts` times before. They are left out.
        """
        begins: dict[int, bytes] = {}
        if _writer is not None and not self._infos.has_counts and (max_attempts is None or max_attempts > 0):
            begins = self._infos.handle_begins()
        topic, at = self._topic.encode(), 0
        while at < len(self._records):
            if begins and _writer is not None:
                written, at = _writer.write(self._records, at, MAX_FRAME, topic, begins, self._invisible_ms)
                if written:
                    yield written
                    continue
            message = decode(self._records, at)
            at += message.size
            handle, attempts = self._infos.handle(message), self._infos.attempts(message)
            if max_attempts is None or attempts < max_attempts:
                answer = service.ReceiveMessageResponse()
                fill_message(answer.message, message, self._topic, handle=handle, attempt=attempts + 1)
                yield prefixed(answer.SerializeToString())
            else:
                make_dead_letter(handle, message.message_id)
