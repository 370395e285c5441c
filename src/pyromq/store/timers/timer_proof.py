"""Whether the record of a waiting message is whole, and the one that its entry speaks of. It reads no files."""

from __future__ import annotations

from zlib import crc32

from pyromq.errors import StoreCorrupt
from pyromq.message import Property, StoredMessage
from pyromq.record import Buffer, decode
from pyromq.store.timers.timer_bucket import TimerEntry

MISFIT = "its entry is not that of its record"


def sound(record: Buffer, entry: TimerEntry) -> StoredMessage:
    """Return the message of a record. Raises `StoreCorrupt` where it is damaged, or quite another one."""
    if len(record) < entry.size:
        raise StoreCorrupt("the file ends before it")
    message = decode(record, check_crc=True)
    if message.log_offset != entry.log_offset or message.size != entry.size:
        raise StoreCorrupt(MISFIT)
    if not message.properties.get(Property.REAL_QUEUE_ID, "").isdecimal():
        raise StoreCorrupt("it does not say where to go")
    return message


def fits(message: StoredMessage, entry: TimerEntry) -> bool:
    """Whether a message is due when its entry says, and has the key and the topic that belong to it."""
    properties = message.properties
    key, topic = properties.get(Property.UNIQUE_KEY, ""), properties.get(Property.REAL_TOPIC, "")
    due = properties.get(Property.TIMER_OUT_MS, "")
    return (due, crc32(key.encode()), crc32(topic.encode())) == (str(entry.due_ms), entry.key_hash, entry.topic_hash)
