"""Converts stored messages to messages of RocketMQ 5's clients. No network here.

Source: RocketMQ 5.3.3, GrpcConverter.
"""

from __future__ import annotations

import hashlib

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pyromq.errors import UndecodableBody
from pyromq.message import RESERVED_PROPERTIES, Property, StoredMessage, SysFlag
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.proxy.sent_messages import BORN_HOST, TRACE_CONTEXT
from pyromq.remoting.receipt_handle import ReceiptHandle

_GZIP = b"\x1f\x8b"
# Properties that applications do not see: 4.9's reserved names, and others. Source: 5.3.3, MessageConst.
HIDDEN = RESERVED_PROPERTIES | {
    Property.SHARDING_KEY,
    Property.TRANSACTION_CHECK_TIMES,
    Property.CHECK_IMMUNITY_SECONDS,
    Property.RETRY_REASON,
    Property.FIRST_POP_TIME,
    Property.POP_CHECK_POINT,
    Property.DEAD_LETTER_TOPIC,
    Property.DEAD_LETTER_ID,
    "__transactionId__",
    TRACE_CONTEXT,
    BORN_HOST,
    *("BORN_TIMESTAMP", "DUP_INFO", "INNER_MULTI_QUEUE_OFFSET", "POP_CK_OFFSET"),  # of Java's 5.x proxies and brokers
    *("TIMER_DELAY_LEVEL", "TIMER_DEL_UNIQKEY", "TIMER_DEQUEUE_MS", "TIMER_ENQUEUE_MS", "TIMER_OUT_MS"),
    *("TIMER_ROLL_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "__CRC32#"),
}


def fill_message(
    found: proto.Message, message: StoredMessage, topic: str, *, handle: ReceiptHandle | None = None, attempt: int = 1
) -> None:
    """Fill an empty message. `topic` is the subscribed topic, also for a message of a retry topic."""
    properties = message.properties
    body, encoding = _body_of(message)
    found.body = body
    found.topic.name = topic
    system = found.system_properties
    system.message_id = message.message_id
    system.message_type = _kind_of(properties, message.sys_flag)
    system.body_encoding = encoding
    system.body_digest.type = proto.MD5
    system.body_digest.checksum = checksum_of(body)
    if tag := properties.get(Property.TAGS):
        system.tag = tag
    system.keys.extend(message.keys)
    _set_ms(system.born_timestamp, message.born_ms)
    system.born_host = properties.get(BORN_HOST) or message.born_host
    _set_ms(system.store_timestamp, message.store_ms)
    system.store_host = message.store_host
    system.queue_id = message.queue_id
    system.queue_offset = message.queue_offset
    system.delivery_attempt = attempt
    if handle is not None:
        system.receipt_handle = handle.encode()
        _set_ms(system.invisible_duration, handle.invisible_ms)
    _set_optional(system, properties)
    for name, value in properties.items():
        if name not in HIDDEN:
            found.user_properties[name] = value


def checksum_of(body: bytes) -> str:
    """Return the MD5 of a body in upper-case hex, as clients compare it."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()


def _set_ms(time: Timestamp | Duration, ms: int) -> None:
    """Set a time. protobuf's own function raises for times out of its range, which faulty clients may have stored."""
    time.seconds, time.nanos = ms // 1000, ms % 1000 * 1_000_000


def _set_optional(system: proto.SystemProperties, properties: dict[str, str]) -> None:
    due = properties.get(Property.TIMER_DELIVER_MS, "")
    if due.isascii() and due.isdecimal() and len(due) < 16:
        _set_ms(system.delivery_timestamp, int(due))
    if group := properties.get(Property.SHARDING_KEY):
        system.message_group = group
    if context := properties.get(TRACE_CONTEXT):
        system.trace_context = context
    if origin := properties.get(Property.DEAD_LETTER_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(Property.DEAD_LETTER_ID, "")


def _kind_of(properties: dict[str, str], sys_flag: int) -> proto.MessageType:
    if properties.get(Property.TRANSACTION) == "true":
        return proto.TRANSACTION
    if any(name in properties for name in (Property.TIMER_DELIVER_MS, Property.DELAY)):
        return proto.DELAY
    return proto.FIFO if Property.SHARDING_KEY in properties else proto.NORMAL


def _body_of(message: StoredMessage) -> tuple[bytes, proto.Encoding]:
    """Return the body and its encoding. Clients read gzip only, so a body in another format is decompressed here."""
    body = message.stored_body
    if not message.sys_flag & SysFlag.COMPRESSED:
        return body, proto.IDENTITY
    if body.startswith(_GZIP):
        return body, proto.GZIP
    try:
        return message.body, proto.IDENTITY
    except UndecodableBody:  # the client counts the message as corrupted, and the group's attempts end its retries
        return body, proto.GZIP
