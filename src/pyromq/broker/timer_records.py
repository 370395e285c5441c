"""What the records of waiting messages say, and how they are made: parked ones, cancels, and the ones delivered.

A parked record is the message as it was sent, in the timer topic, with these properties behind its own:
TIMER_OUT_MS, when it is due; REAL_TOPIC and REAL_QID, where it goes. A cancel is one with TIMER_DEL_UNIQKEY,
`TOPIC+KEY`, beside them. The record of a message delivered names the log offset of its parked record, as its
complement (-1 for 0), where others hold that of a half message: no client can write there.
Source: RocketMQ 5.3.3, HookUtils and TimerMessageStore.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import NamedTuple

from pyromq.errors import MessageRefused
from pyromq.message import NAME_VALUE, PAIRS, TIMER_WISHES, Property, StoredMessage, SysFlag, encode_properties
from pyromq.names import TIMER_TOPIC
from pyromq.record import decode
from pyromq.remoting.recall_handle import RecallHandle

ROOM = 300  # characters that parking adds to the properties at most: 127 of them are the topic
LATEST_MS = 1 << 45  # no message is due later: in the year 3084
RECALL_TAG = "_RECALL_TAG_"

_INT = struct.Struct(">i")
_LONG = struct.Struct(">q")
_IPV6_MORE = 12  # bytes that an IPv6 address takes more than an IPv4 one

_DUE = f"{PAIRS}{Property.TIMER_OUT_MS}{NAME_VALUE}".encode()
_TOPIC = f"{PAIRS}{Property.REAL_TOPIC}{NAME_VALUE}".encode()
_KEY = f"{PAIRS}{Property.UNIQUE_KEY}{NAME_VALUE}".encode()
_CANCELS = f"{PAIRS}{Property.TIMER_CANCELS}{NAME_VALUE}".encode()
_PAIRS = PAIRS.encode()
_UNITS = dict(zip(TIMER_WISHES, (1000, 1, 1), strict=True))


class Parked(NamedTuple):
    """What the record of a waiting message, or of a cancel, says."""

    log_offset: int
    due_ms: int
    topic: bytes
    unique_key: bytes  # b"" for a message without one
    is_cancel: bool


def wished_ms(properties: Mapping[str, str], now_ms: int) -> int | None:
    """Return when a message wants to be delivered, ms since 1970; None where it does not say.

    A copy of a message that has waited already does not want to again. Raises `MessageRefused` for what is no number.
    """
    if Property.TIMER_OUT_MS in properties:
        return None
    for name in TIMER_WISHES:
        if (text := properties.get(name)) is not None:
            if not (text.isascii() and text.removeprefix("-").isdecimal() and len(text) < 20):
                raise MessageRefused(f"property {name} is {text[:64]!r}; it must be a whole number")
            value = int(text) * _UNITS[name]
            return value if name == Property.TIMER_DELIVER_MS else now_ms + value
    return None


def park(message: StoredMessage, due_ms: int) -> None:
    """Make a message that is about to be appended one that waits."""
    added = {
        Property.TIMER_OUT_MS: str(due_ms),
        Property.REAL_TOPIC: message.topic,
        Property.REAL_QUEUE_ID: str(message.queue_id),
    }
    message.properties.update(added)
    joint = PAIRS if message.property_text and not message.property_text.endswith(PAIRS) else ""
    message.property_text += joint + encode_properties(added)
    message.sys_flag &= ~SysFlag.ROLLBACK
    message.topic = TIMER_TOPIC
    message.queue_id = 0


def handle_of(message: StoredMessage, broker_name: str) -> str | None:
    """Return the handle that cancels a parked message; None for one without a unique key."""
    properties = message.properties
    if (key := properties.get(Property.UNIQUE_KEY)) is None:
        return None
    due_ms = int(properties[Property.TIMER_OUT_MS])
    return RecallHandle(properties[Property.REAL_TOPIC], broker_name, due_ms, key).encode()


def cancel_of(handle: RecallHandle, *, now_ms: int, born_address: bytes) -> StoredMessage:
    """Return the record that cancels."""
    properties = {
        Property.TAGS: RECALL_TAG,
        Property.UNIQUE_KEY: handle.unique_key,
        Property.TIMER_CANCELS: f"{handle.topic}+{handle.unique_key}",
    }
    message = StoredMessage(
        handle.topic, b"0", encode_properties(properties), born_ms=now_ms, born_address=born_address
    )
    park(message, handle.due_ms)
    return message


def read_parked(record: memoryview) -> Parked:
    """Read what is needed to file a record of the timer topic. Called for every one.

    Raises `ValueError` for one that does not say when it is due.
    """
    flags = _INT.unpack_from(record, 36)[0]
    body_at = 88 + _IPV6_MORE * (bool(flags & SysFlag.BORN_HOST_IPV6) + bool(flags & SysFlag.STORE_HOST_IPV6))
    topic_at = body_at + _INT.unpack_from(record, body_at - 4)[0]
    properties = _PAIRS + bytes(record[topic_at + 1 + record[topic_at] + 2 :])
    due_ms = int(_value(properties, _DUE))
    if not 0 <= due_ms < LATEST_MS:
        raise ValueError(f"due at {due_ms}")
    return Parked(
        _LONG.unpack_from(record, 28)[0],
        due_ms,
        _value(properties, _TOPIC),
        _value(properties, _KEY),
        _CANCELS in properties,
    )


def _value(properties: bytes, name: bytes) -> bytes:
    """Return the value of the last property of that name; b"" without one."""
    place = properties.rfind(name)
    if place < 0:
        return b""
    place += len(name)
    end = properties.find(_PAIRS, place)
    return properties[place:] if end < 0 else properties[place:end]


def delivered_from(record: memoryview) -> int | None:
    """Return the log offset of the parked record that this one was delivered from; None for other records."""
    flags = _INT.unpack_from(record, 36)[0]
    at = 76 + _IPV6_MORE * (bool(flags & SysFlag.BORN_HOST_IPV6) + bool(flags & SysFlag.STORE_HOST_IPV6))
    origin = int(_LONG.unpack_from(record, at)[0])
    return ~origin if origin < 0 else None


def delivery_of(record: bytes) -> StoredMessage:
    """Return the message of a parked record as it goes to its real queue.

    Raises `StoreCorrupt` for a broken record, `MessageRefused` for one that does not say where to go.
    """
    message = decode(record)
    properties = message.properties
    queue_id = properties.get(Property.REAL_QUEUE_ID, "")
    if Property.REAL_TOPIC not in properties or not queue_id.isdecimal():
        raise MessageRefused("the record does not say where to go")
    message.topic = properties[Property.REAL_TOPIC]
    message.queue_id = int(queue_id)
    message.prepared_offset = ~message.log_offset
    return message
