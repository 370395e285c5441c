"""The keys of a record and their hashes in index files. Source: RocketMQ 4.9.8, IndexService."""

from __future__ import annotations

from functools import lru_cache

from pyromq.java_hash import java_hash
from pyromq.message import Property, decode_properties
from pyromq.names import TIMER_TOPIC
from pyromq.record import RecordHead

_COUNTER = 4  # hex digits at the end of a unique id; the digits before change once a millisecond


def is_found_by(record: RecordHead, topic: str, key: str) -> bool:
    """Whether a record has this topic, and the key as unique id or among its keys."""
    if record.topic != topic:
        return False
    properties = decode_properties(record.property_text)
    return key == properties.get(Property.UNIQUE_KEY) or key in properties.get(Property.KEYS, "").split(" ")


def key_hashes(topic: str, property_text: str) -> list[int]:
    """Return the hash of each key of a message: its unique id first, then the words of KEYS.

    Scheduled messages have none: they are indexed when they are delivered.
    """
    return [index_hash(joined_hash(*key)) for key in keys_of(topic, property_text)]


def keys_of(topic: str, property_text: str) -> list[tuple[str, str]]:
    """Return each key as two parts for `joined_hash`: a begin that many messages share, and an end."""
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
    """Return the absolute value of a hash, as in index files; 0 for -2^31, which has none in Java."""
    value = abs(value)
    return value if value <= 0x7FFFFFFF else 0


def joined_hash(start: str, end: str) -> int:
    """Return `java_hash(start + end)` from cached hashes: h(a + b) = h(a) 31^len(b) + h(b)."""
    if not end.isascii() or len(start) > _MOST_REMEMBERED or len(end) > _MOST_REMEMBERED:
        return java_hash(start + end)
    value: int = (_hash_of_start(start) * 31 ** len(end) + _hash_of_end(end)) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value


_MOST_REMEMBERED = 200  # characters of a cached part: a topic and an id, or an ordinary key
_hash_of_start = lru_cache(maxsize=1024)(java_hash)
_hash_of_end = lru_cache(maxsize=65536)(java_hash)  # all counters
