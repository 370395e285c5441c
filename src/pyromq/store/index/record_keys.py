"""The keys that a record is found by, and their hashes in index files. Source: RocketMQ 4.9.8, IndexService."""

from __future__ import annotations

from functools import lru_cache

from pyromq.java_hash import java_hash
from pyromq.message import Property, decode_properties
from pyromq.names import TIMER_TOPIC
from pyromq.record import RecordHead

_COUNTER = 4  # hex digits at the end of a unique id; what is before them changes once a millisecond


def is_found_by(record: RecordHead, topic: str, key: str) -> bool:
    """Whether a record is of that topic, and the key is its unique id or one of its keys."""
    if record.topic != topic:
        return False
    properties = decode_properties(record.property_text)
    return key == properties.get(Property.UNIQUE_KEY) or key in properties.get(Property.KEYS, "").split(" ")


def key_hashes(topic: str, property_text: str) -> list[int]:
    """Return the hash of each key of a message: its unique id first, then the words of KEYS.

    Messages that wait for their time have none: they get theirs where they are delivered, and nobody looks before.
    """
    return [index_hash(joined_hash(*key)) for key in keys_of(topic, property_text)]


def keys_of(topic: str, property_text: str) -> list[tuple[str, str]]:
    """Return what the keys' hashes are made of: begins that are the same for many messages, and ends."""
    if topic == TIMER_TOPIC:
        return []
    properties = decode_properties(property_text)
    keys = []
    if unique := properties.get(Property.UNIQUE_KEY):
        keys.append((f"{topic}#{unique[:-_COUNTER]}", unique[-_COUNTER:]))
    if words := properties.get(Property.KEYS):
        start = f"{topic}#"
        keys += [(start, key) for key in words.split(" ") if key]
    return keys


def index_hash(value: int) -> int:
    """Return what index files hold: the absolute value; that of -2^31 does not exist and becomes 0."""
    value = abs(value)
    return value if value <= 0x7FFFFFFF else 0


def joined_hash(start: str, end: str) -> int:
    """Return `java_hash(start + end)`, by a remembered start: h(a + b) = h(a) 31^len(b) + h(b)."""
    if not end.isascii() or len(start) > _MOST_REMEMBERED or len(end) > _MOST_REMEMBERED:
        return java_hash(start + end)
    value: int = (_hash_of_start(start) * 31 ** len(end) + _hash_of_end(end)) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


_MOST_REMEMBERED = 200  # characters: a topic and an id, or an ordinary key
_hash_of_start = lru_cache(maxsize=1024)(java_hash)
_hash_of_end = lru_cache(maxsize=65536)(java_hash)  # all counters
