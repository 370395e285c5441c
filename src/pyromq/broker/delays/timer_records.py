"""What the records of waiting messages say, and how they are made: parked ones, cancels, and the ones delivered.

A parked record is the message as it was sent, in the timer topic, with these properties behind its own:
TIMER_OUT_MS, when it is due; REAL_TOPIC and REAL_QID, where it goes. A cancel is one with TIMER_DEL_UNIQKEY,
`TOPIC+KEY`, directly before them: no client's property stands there, since the broker adds CLUSTER to each message
sent. The record of a message delivered names the log offset of its parked record, as its
complement (-1 for 0), where others hold that of a half message: no client can write there.
Source: RocketMQ 5.3.3, HookUtils and TimerMessageStore.
"""

from __future__ import annotations

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

_MOST_DIGITS = 40  # of what is still called a number
LATEST_MS = 1 << 45  # no message is due later: in the year 3084
RECALL_TAG = "_RECALL_TAG_"

_WITHOUT_TRANSACTION = ~SysFlag.ROLLBACK

_DELIVER = f"{PAIRS}{Property.TIMER_DELIVER_MS}{NAME_VALUE}"
_DELIVER_LENGTH = len(_DELIVER)
_DUE = f"{PAIRS}{Property.TIMER_OUT_MS}{NAME_VALUE}".encode()
_TOPIC = f"{Property.REAL_TOPIC}{NAME_VALUE}".encode()
_KEY = f"{PAIRS}{Property.UNIQUE_KEY}{NAME_VALUE}"
_KEY_LENGTH = len(_KEY)
_KEY_BYTES = _KEY.encode()
_CANCELS = f"{PAIRS}{Property.TIMER_CANCELS}{NAME_VALUE}%b+%b".encode()
_PAIRS = PAIRS.encode()
_UNITS = dict(zip(TIMER_PROPERTIES, (1000, 1, 1), strict=True))


# What is known of a message when it is parked: the handle that cancels it (b"" without a unique key), when it is due
# (ms), CRC-32 of its unique key, topic. A plain tuple, as the next: one is made for every message.
ScheduledMessage = tuple[bytes, int, int, str]

# What the record of a waiting message, or of a cancel, says: log offset, due time (ms), topic, unique key (b"" without
# one), and whether it is a cancel.
Parked = tuple[int, int, bytes, bytes, bool]


def asked_due_ms(text: str, now_ms: int) -> int | None:
    """Return when a message with these properties wants to be delivered, ms since 1970; None where it does not say.

    A copy of a message that has waited already does not want to again. Raises `MessageRefused` for what is no number,
    and for a cancel in the form that RocketMQ 5 stores.
    """
    place = text.find(_DELIVER)
    if place >= 0 and text.count("TIMER_") == 1:  # nearly always; searched, not parsed
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
            if not (asked.isascii() and asked.removeprefix("-").isdecimal() and len(asked) < _MOST_DIGITS):
                raise MessageRefused(
                    f"property {name} is {asked[:64]!r}; it must be a whole number of less than {_MOST_DIGITS} digits"
                )
            ms = int(asked) * _UNITS[name]
            return ms if name == Property.TIMER_DELIVER_MS else now_ms + ms
    return None


def park(message: StoredMessage, due_ms: int) -> None:
    """Make a message that is about to be appended one that waits."""
    text = message.property_text
    joint = "" if not text or text[-1] == PAIRS else PAIRS
    message.property_text = (
        f"{text}{joint}TIMER_OUT_MS\x01{due_ms}\x02REAL_TOPIC\x01{message.topic}\x02REAL_QID\x01{message.queue_id}"
    )
    message.sys_flag &= _WITHOUT_TRANSACTION
    message.topic = TIMER_TOPIC
    message.queue_id = 0


def unique_key_of(text: str) -> str:
    """Return the unique key among properties as text; "" without one."""
    place = text.rfind(_KEY)
    if place >= 0 and (key := text[place + _KEY_LENGTH :].partition(PAIRS)[0]):  # nearly always; searched, not parsed
        return key
    return decode_properties(text).get(Property.UNIQUE_KEY, "")


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
    if not key:  # an earlier pair may name it
        return _parse_parked(content)
    return log_offset_of(content), due_ms, topic, key, content.endswith(_CANCELS % (topic, key), begin, place)


def _parse_parked(content: bytes) -> Parked:
    """Read what is needed to file a record of the timer topic, whatever its form."""
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


def delivered_from(record: memoryview) -> int | None:
    """Return the log offset of the parked record that this one was delivered from; None for other records."""
    origin = prepared_offset_of(record)
    return ~origin if origin < 0 else None


def delivery_of(message: StoredMessage) -> StoredMessage:
    """Make a parked message what goes to its real queue. Raises `MessageRefused` for one that does not say where."""
    properties = message.properties
    queue_id = properties.get(Property.REAL_QUEUE_ID, "")
    if Property.REAL_TOPIC not in properties or not queue_id.isdecimal():
        raise MessageRefused("the record does not say where to go")
    message.topic = properties[Property.REAL_TOPIC]
    message.queue_id = int(queue_id)
    message.prepared_offset = ~message.log_offset
    return message
