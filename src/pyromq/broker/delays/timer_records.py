"""Records of scheduled messages: waiting (parked) messages, cancels, and delivered messages.

A parked record is the message as sent, in the timer topic, followed by these properties: TIMER_OUT_MS, its due time;
REAL_TOPIC and REAL_QID, its destination. A cancel has TIMER_DEL_UNIQKEY, `TOPIC+KEY`, directly before these properties.
No client can put a property there, since the broker appends CLUSTER to each sent message. A delivered record has the
complement of its parked record's log offset (-1 for 0), in the field for the half message's offset. No client can write
this field.
Source: RocketMQ 5.3.3, HookUtils and TimerMessageStore.
"""

from __future__ import annotations

from zlib import crc32

from pyromq.errors import MessageRefused
from pyromq.message import (
    NAME_VALUE,
    PAIRS,
    TIMER_PROPERTIES,
    Property,
    StoredMessage,
    SysFlag,
    decode_properties,
    encode_properties,
)
from pyromq.names import TIMER_TOPIC
from pyromq.record import decode, log_offset_of, prepared_offset_of, texts_at
from pyromq.remoting.recall_handle import RecallHandle

_MAX_DIGITS = 40  # limit of a delivery time's digits; a longer string is refused as no number
LATEST_MS = 1 << 45  # later than any due time (ms since 1970): the year 3084
RECALL_TAG = "_RECALL_TAG_"

_WITHOUT_TRANSACTION = ~SysFlag.ROLLBACK

_DELIVER = f"{PAIRS}{Property.TIMER_DELIVER_MS}{NAME_VALUE}"
_DELIVER_LENGTH = len(_DELIVER)
_OUT = f"{Property.TIMER_OUT_MS}{NAME_VALUE}"
_REAL_TOPIC = f"{Property.REAL_TOPIC}{NAME_VALUE}"
_DUE = f"{PAIRS}{_OUT}".encode()
_TOPIC = _REAL_TOPIC.encode()
_KEY = f"{PAIRS}{Property.UNIQUE_KEY}{NAME_VALUE}"
_KEY_LENGTH = len(_KEY)
_KEY_BYTES = _KEY.encode()
_CANCELS = f"{PAIRS}{Property.TIMER_CANCELS}{NAME_VALUE}%b+%b".encode()
_PAIRS = PAIRS.encode()
_UNITS = dict(zip(TIMER_PROPERTIES, (1000, 1, 1), strict=True))


# Due time (ms), CRC-32 of the unique key, topic. A plain tuple, since one is made for every scheduled message.
ScheduledMessage = tuple[int, int, str]

# Content of a parked record or a cancel: log offset, due time (ms), topic, unique key (or b""), whether a cancel.
Parked = tuple[int, int, bytes, bytes, bool]


def asked_due_ms(text: str, now_ms: int) -> int | None:
    """Return the delivery time (ms since 1970) that these properties ask for; None if they ask for none.

    A delivered copy of a scheduled message asks for none. Raises `MessageRefused` if the time is not a number, and for
    a cancel in RocketMQ 5's form.
    """
    place = text.find(_DELIVER)
    if place >= 0 and text.count("TIMER_") == 1:  # the usual form: searched, which is faster than parsing
        value = text[place + _DELIVER_LENGTH :].partition(PAIRS)[0]
        if len(value) < 20 and value.isascii() and value.isdecimal():
            return int(value)
    properties = decode_properties(text)
    if Property.TIMER_OUT_MS in properties:
        return None
    for name in TIMER_PROPERTIES:
        if (asked := properties.get(name)) is not None:
            if Property.TIMER_CANCELS in properties:
                raise MessageRefused(
                    f"property {Property.TIMER_CANCELS} is the broker's own: cancel a scheduled message by the recall"
                    " handle that came with the answer to its send"
                )
            if not (asked.isascii() and asked.removeprefix("-").isdecimal() and len(asked) < _MAX_DIGITS):
                raise MessageRefused(
                    f"property {name} is {asked[:64]!r}; it must be a whole number of less than {_MAX_DIGITS} digits"
                )
            ms = int(asked) * _UNITS[name]
            return ms if name == Property.TIMER_DELIVER_MS else now_ms + ms
    return None


def park(message: StoredMessage, due_ms: int) -> None:
    """Turn a message into a parked one (waiting in the timer topic), before the append."""
    text = message.property_text
    joint = "" if not text or text[-1] == PAIRS else PAIRS
    message.property_text = (
        f"{text}{joint}TIMER_OUT_MS\x01{due_ms}\x02REAL_TOPIC\x01{message.topic}\x02REAL_QID\x01{message.queue_id}"
    )
    message.sys_flag &= _WITHOUT_TRANSACTION
    message.topic = TIMER_TOPIC
    message.queue_id = 0


def unique_key_of(text: str) -> str:
    """Return the unique key in a property text; "" if there is none."""
    place = text.rfind(_KEY)
    if place >= 0 and (key := text[place + _KEY_LENGTH :].partition(PAIRS)[0]):  # the usual form
        return key
    return decode_properties(text).get(Property.UNIQUE_KEY, "")


def cancel_of(handle: RecallHandle, *, now_ms: int, born_address: bytes) -> StoredMessage:
    """Return the record that cancels the scheduled message of a recall handle, to be appended to the timer topic."""
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
    """Return the content of a parked record or a cancel. Called for every record read from the timer topic.

    Raises `ValueError` if the record has no valid due time.
    """
    content = bytes(record)
    begin = texts_at(content)[1] - 1
    place = content.rfind(_DUE)
    ours = content[place + len(_DUE) :].split(_PAIRS)
    if place < begin or len(ours) != 3 or not ours[1].startswith(_TOPIC):
        return _parse_parked(content)
    due_ms = int(ours[0])
    if not 0 <= due_ms < LATEST_MS:
        raise ValueError(f"due at {due_ms}")
    key_at = content.rfind(_KEY_BYTES, begin, place)
    if key_at < 0:
        return _parse_parked(content)
    key_at += len(_KEY_BYTES)
    key, topic = content[key_at : content.index(_PAIRS, key_at)], ours[1][len(_TOPIC) :]
    if not key:  # an earlier property pair may hold the key
        return _parse_parked(content)
    return log_offset_of(content), due_ms, topic, key, content.endswith(_CANCELS % (topic, key), begin, place)


def _parse_parked(content: bytes) -> Parked:
    """Return the content of a parked record of any form, by decoding all of the record. Raises `ValueError`."""
    message = decode(content)
    properties = message.properties
    due = properties.get(Property.TIMER_OUT_MS, "")
    if not due.isdecimal() or not int(due) < LATEST_MS:
        raise ValueError(f"due at {due!r}")
    return (
        message.log_offset,
        int(due),
        properties.get(Property.REAL_TOPIC, "").encode(),
        properties.get(Property.UNIQUE_KEY, "").encode(),
        Property.TIMER_CANCELS in properties,
    )


def scheduled_of(message: StoredMessage) -> ScheduledMessage | None:
    """Return the fields of a parked message that the index keeps; None if the message's record must be read instead."""
    text = message.property_text
    if Property.TIMER_CANCELS in text:
        return None
    ours = text[text.rfind(_OUT) + len(_OUT) :].split(PAIRS)
    if len(ours) != 3 or not ours[0].isdecimal():
        return None
    return int(ours[0]), crc32(unique_key_of(text).encode()), ours[1].removeprefix(_REAL_TOPIC)


def delivered_from(record: memoryview) -> int | None:
    """Return the log offset of the parked record from which a record was delivered; None for other records."""
    origin = prepared_offset_of(record)
    return ~origin if origin < 0 else None


def delivery_of(message: StoredMessage) -> StoredMessage:
    """Turn a parked message into a message for its real queue.

    Raises `MessageRefused` if the message names no queue.
    """
    properties = message.properties
    queue_id = properties.get(Property.REAL_QUEUE_ID, "")
    if Property.REAL_TOPIC not in properties or not queue_id.isdecimal():
        raise MessageRefused("the record names no topic and queue")
    message.topic = properties[Property.REAL_TOPIC]
    message.queue_id = int(queue_id)
    message.prepared_offset = ~message.log_offset
    return message
