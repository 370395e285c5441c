"""Checks messages of RocketMQ 5's producers, and converts them to properties, flags and bodies of 4.9.

Source: RocketMQ 5.3.3, SendMessageActivity. No network here.
"""

from __future__ import annotations

import re
import zlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from pyromq.compression import compress
from pyromq.errors import IllegalName, UndecodableBody
from pyromq.excerpt import excerpt
from pyromq.java_hash import java_hash
from pyromq.message import RESERVED_PROPERTIES, MessageQueue, Property, SysFlag, encode_properties
from pyromq.names import check_topic, is_system_topic
from pyromq.proxy.grpc_refusal import GrpcRefusal
from pyromq.proxy.proto import definition_pb2 as proto
from pyromq.remoting.header import json_text

MAX_BODY_BYTES = 4 << 20  # limit of a body. Source: ProxyConfig.maxMessageSize
MAX_USER_PROPERTIES = 128  # source: ProxyConfig.userPropertyMaxNum
MAX_PROPERTY_BYTES = 16 << 10  # limit of user properties, tag and keys. Source: ProxyConfig.maxUserPropertySize
MAX_GROUP_BYTES = 63  # limit of a message group. Source: ProxyConfig.maxMessageGroupSize
# The delay levels of 4.9's brokers. Consumers retry after the same delays.
DELAY_LEVEL_SECONDS = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
MAX_MESSAGES = 128  # limit of the messages in one request
TRACE_CONTEXT = "TRACE_CONTEXT"  # a property of RocketMQ 5 only
BORN_HOST = "__BORNHOST"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_NOT_FOR_USERS = RESERVED_PROPERTIES | {Property.SHARDING_KEY, TRACE_CONTEXT, BORN_HOST}
ALL_TYPES: tuple[proto.MessageType, ...] = (proto.NORMAL, proto.FIFO, proto.DELAY, proto.TRANSACTION)


class TopicTypes(NamedTuple):
    """The message types that a topic accepts. Brokers of 4.9 have no timers and deliver at delay levels only."""

    accepted: Sequence[proto.MessageType] = ALL_TYPES
    has_timers: bool = True


class SentMessage(NamedTuple):
    """A checked message for a broker. `property_text` is escaped for JSON."""

    message_id: str
    kind: int  # one of `ALL_TYPES`
    body: bytes
    sys_flag: int
    properties: dict[str, str]
    group: str  # message group, empty without one

    @property
    def property_text(self) -> bytes:
        return json_text(encode_properties(self.properties))


def topic_of(messages: Sequence[proto.Message]) -> str:
    """Return the topic of all messages in a request. Raises `GrpcRefusal`."""
    if not messages:
        raise GrpcRefusal(proto.MESSAGE_CORRUPTED, "the request has no message; send at least one")
    if len(messages) > MAX_MESSAGES:
        text = f"the request has {len(messages)} messages; the limit is {MAX_MESSAGES}: send several requests"
        raise GrpcRefusal(proto.MESSAGE_CORRUPTED, text)
    topic = messages[0].topic.name
    for message in messages:
        if message.topic.name != topic:
            other = excerpt(message.topic.name, 100)
            text = (
                f"one request has messages of topics {excerpt(topic, 100)!r} and {other!r}; send one request for each"
            )
            raise GrpcRefusal(proto.MESSAGE_CORRUPTED, text)
    return topic


def check_topic_name(topic: str) -> None:
    """Raise `GrpcRefusal` for a name that is illegal, or a topic that is not for clients."""
    try:
        check_topic(topic)
    except IllegalName as error:
        raise GrpcRefusal(proto.ILLEGAL_TOPIC, f"topic {excerpt(topic, 130)!r}: {error}") from error
    if is_system_topic(topic):
        raise GrpcRefusal(proto.ILLEGAL_TOPIC, f"topic {topic!r} is a system topic; choose another name")


def sent_message(message: proto.Message, topic: str, types: TopicTypes, now_ms: int) -> SentMessage:
    """Check a message of a topic with these types, and convert it. Raises `GrpcRefusal`."""
    system = message.system_properties
    message_id = system.message_id
    if not message_id.strip() or _CONTROL.search(message_id):
        raise GrpcRefusal(proto.ILLEGAL_MESSAGE_ID, f"message id {excerpt(message_id, 80)!r}: the client must set one")
    kind = _kind_of(system)
    if kind not in types.accepted:
        names = ", ".join(proto.MessageType.Name(each) for each in types.accepted)
        raise GrpcRefusal(
            proto.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"topic {topic!r} takes messages of type {names}, and this one is {proto.MessageType.Name(kind)}; "
            "send to another topic, or create one of this type: `pyromq topic create --type`",
        )
    properties = _properties(message)
    properties[Property.UNIQUE_KEY] = message_id
    if system.born_host:
        properties[BORN_HOST] = _checked_text("born_host", system.born_host)
    if system.trace_context:
        properties[TRACE_CONTEXT] = _checked_text("trace_context", system.trace_context)
    group = ""
    if kind == proto.FIFO:
        group = properties[Property.SHARDING_KEY] = _group_of(system.message_group)
    elif kind == proto.DELAY:
        due_ms = _due_ms(system.delivery_timestamp, now_ms)
        if types.has_timers:
            properties[Property.TIMER_DELIVER_MS] = str(due_ms)
        elif due_ms > now_ms:
            properties[Property.DELAY] = str(_level_of(due_ms - now_ms))
    body, sys_flag = _body_of(message)
    if kind == proto.TRANSACTION:
        sys_flag |= SysFlag.HALF
        # The producers of a topic are one group: a broker may send a check to any of them.
        properties |= {Property.TRANSACTION: "true", Property.PRODUCER_GROUP: topic}
        if seconds := system.orphaned_transaction_recovery_duration.seconds:
            properties[Property.CHECK_IMMUNITY_SECONDS] = str(max(0, seconds))
    return SentMessage(message_id, kind, body, sys_flag, properties, group)


def queue_of_group(group: str, queues: Sequence[MessageQueue]) -> MessageQueue:
    """Return the queue of a message group, which changes only with the topic's queues.

    Java's proxy uses Guava's consistent hash, so it may choose another queue.
    """
    return queues[_jump(java_hash(group) & 0xFFFFFFFF, len(queues))]


def _jump(key: int, buckets: int) -> int:
    """Return the bucket of a key so that few keys move when buckets are added. Source: Lamping and Veach, 2014."""
    bucket, following = -1, 0
    while following < buckets:
        bucket = following
        key = (key * 2862933555777941757 + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((bucket + 1) * ((1 << 31) / ((key >> 33) + 1)))
    return bucket


def _kind_of(system: proto.SystemProperties) -> proto.MessageType:
    if system.message_type in ALL_TYPES:
        return system.message_type
    if system.message_type == proto.MESSAGE_TYPE_UNSPECIFIED:  # the fields of the message decide
        if system.HasField("message_group"):
            return proto.FIFO
        return proto.DELAY if system.HasField("delivery_timestamp") else proto.NORMAL
    names = ", ".join(proto.MessageType.Name(each) for each in ALL_TYPES)
    text = f"message type {system.message_type} is not supported; send one of {names}"
    raise GrpcRefusal(proto.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE, text)


def _properties(message: proto.Message) -> dict[str, str]:
    user, system = message.user_properties, message.system_properties
    properties = {}
    if user:
        if len(user) > MAX_USER_PROPERTIES:
            text = f"the message has {len(user)} properties; the limit is {MAX_USER_PROPERTIES}"
            raise GrpcRefusal(proto.MESSAGE_PROPERTIES_TOO_LARGE, text)
        for name, value in user.items():
            _check_property(name, value)
        properties = dict(user)
    size = sum(len(name) + len(value) for name, value in properties.items())
    if system.HasField("tag"):
        tag = system.tag
        if not tag.strip() or "|" in tag or _CONTROL.search(tag):
            text = f"tag {excerpt(tag, 80)!r}: a tag is not blank and has no `|` and no control characters"
            raise GrpcRefusal(proto.ILLEGAL_MESSAGE_TAG, text)
        properties[Property.TAGS] = tag
        size += len(tag)
    if keys := system.keys:
        for key in keys:
            if not key.strip() or _CONTROL.search(key):
                text = f"key {excerpt(key, 80)!r}: a key is not blank and has no control characters"
                raise GrpcRefusal(proto.ILLEGAL_MESSAGE_KEY, text)
        properties[Property.KEYS] = " ".join(keys)
        size += len(properties[Property.KEYS])
    if size > MAX_PROPERTY_BYTES:
        text = f"properties, tag and keys take {size} characters; the limit is {MAX_PROPERTY_BYTES}"
        raise GrpcRefusal(proto.MESSAGE_PROPERTIES_TOO_LARGE, text)
    return properties


def _check_property(name: str, value: str) -> None:
    reason = ""
    if name in _NOT_FOR_USERS:
        reason = "the name is used by the system"
    elif not name.strip() or not value.strip():
        reason = "name and value must not be blank"
    elif _CONTROL.search(name) or _CONTROL.search(value):
        reason = "name and value must not have control characters"
    if reason:
        text = f"property {excerpt(name, 80)!r}={excerpt(value, 80)!r}: {reason}"
        raise GrpcRefusal(proto.ILLEGAL_MESSAGE_PROPERTY_KEY, text)


def _checked_text(name: str, value: str) -> str:
    if _CONTROL.search(value) or len(value) > 1024:
        text = f"{name} {excerpt(value, 80)!r} has control characters or more than 1024 characters"
        raise GrpcRefusal(proto.BAD_REQUEST, text)
    return value


def _group_of(group: str) -> str:
    size = len(group.encode())
    if not group.strip() or size > MAX_GROUP_BYTES or _CONTROL.search(group):
        raise GrpcRefusal(
            proto.ILLEGAL_MESSAGE_GROUP,
            f"message group {excerpt(group, 80)!r} has {size} bytes; an orderly message needs one of 1 to "
            f"{MAX_GROUP_BYTES} bytes without control characters",
        )
    return group


def _due_ms(moment: Timestamp, now_ms: int) -> int:
    due = int(moment.seconds * 1000 + moment.nanos // 1_000_000)
    if not 0 < due < 1 << 53:
        text = f"delivery timestamp {due} ms since 1970: a delayed message needs a time"
        raise GrpcRefusal(proto.ILLEGAL_DELIVERY_TIME, text)
    return max(due, now_ms)


def _level_of(delay_ms: int) -> int:
    """Return the first delay level of at least `delay_ms`. Raises `GrpcRefusal` beyond the last level."""
    level = bisect_left(DELAY_LEVEL_SECONDS, delay_ms / 1000) + 1
    if level > len(DELAY_LEVEL_SECONDS):
        text = (
            f"delivery in {delay_ms} ms: the brokers are of version 4.9 and deliver at delay levels, which end at "
            f"{DELAY_LEVEL_SECONDS[-1]} s; send the message later, or to RocketMQ 5 or pyromq"
        )
        raise GrpcRefusal(proto.ILLEGAL_DELIVERY_TIME, text)
    return level


def _body_of(message: proto.Message) -> tuple[bytes, int]:
    body = message.body
    if not body:
        raise GrpcRefusal(proto.MESSAGE_BODY_EMPTY, "the message has no body; send at least one byte")
    if len(body) > MAX_BODY_BYTES:
        text = f"the message body has {len(body)} bytes; the limit is {MAX_BODY_BYTES}"
        raise GrpcRefusal(proto.MESSAGE_BODY_TOO_LARGE, text)
    if message.system_properties.body_encoding != proto.GZIP:
        return body, 0
    # Consumers of 4.9 expect zlib.
    return compress(gunzip(body)), SysFlag.COMPRESSED | SysFlag.ZLIB


def gunzip(body: bytes) -> bytes:
    """Decompress a gzip or zlib stream. Raises `GrpcRefusal` for other bytes, or a body above 16 MiB."""
    limit = 4 * MAX_BODY_BYTES
    try:
        reader = zlib.decompressobj(wbits=47)  # 32 + 15: reads gzip and zlib
        plain = reader.decompress(body, limit)
        if not reader.eof:
            raise UndecodableBody("it is incomplete, or has more than 16 MiB decompressed")
    except (zlib.error, UndecodableBody) as error:
        text = f"the message has the encoding GZIP, and its body is not a gzip stream: {error}"
        raise GrpcRefusal(proto.MESSAGE_CORRUPTED, text) from error
    return plain


def seconds_of(duration: Duration) -> float:
    return float(duration.seconds + duration.nanos / 1e9)
