"""One file of the key index: a hash table. Each slot has a chain of entries, the newest entry first.

    header              byte   type   meaning
    begin store time    0      long   ms, of the first entry's record
    end store time      8      long   ms, of the last entry's record
    begin log offset    16     long   of the first entry's record
    end log offset      24     long   of the last entry's record
    used slots          32     int
    next entry          36     int    number of the next entry; the first entry has number 1

    slot (4 bytes, at 40 + 4 s)       int    number of the newest entry of the chain, 0 none

    entry (20 bytes, after the slots at 20 times its number)
    key hash            0      int
    log offset          4      long
    seconds             12     int    since the begin store time
    previous entry      16     int    of the chain, 0 none

Until its first entry is written, a new file has the end of the previous file as its beginning. The seconds of the first
entry are counted from that time. Source: RocketMQ 4.9.8, IndexFile, IndexHeader and IndexService.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from pyromq import speedups
from pyromq.java_hash import java_hash
from pyromq.message import Property, decode_properties
from pyromq.names import TIMER_TOPIC
from pyromq.record import RecordHead
from pyromq.slow_work import PagesToLoad
from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.log.segmented_log import Segment

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.indexing import IndexTail
else:

    class IndexTail:
        """The header fields and the layout of an index file, for plain and compiled code.

        Entries have disk space up to file position `reserved_end`. Slots have disk space in blocks of `stretch_bytes`
        whose byte in `ready` is 1. The compiled form adds the method `enter(records, log_offset=, last_store_ms=,
        most=, skipped=)`. The method indexes the records in a view of the log up to the first unusual record, except
        records of topic `skipped`. The method returns the log offset reached and the number of records; a record with
        many keys counts as several.
        """

        __slots__ = (
            "begin_log_offset",
            "begin_ms",
            "end_log_offset",
            "end_ms",
            "entries",
            "entries_at",
            "file",
            "next_entry",
            "ready",
            "reserved_end",
            "slots",
            "stretch_bytes",
            "used_slots",
        )


__all__ = ["IndexTail"]

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
LOOKED_AT = 200  # limit of entries visited between two yields of a search: up to 1 ms
_PAGE_BYTES = 4096
ENTRY = struct.Struct(">iqii")
_KEY = struct.Struct(">iq")  # the first fields of an entry: key hash and log offset
_ALLOCATED_BYTES = 1 << 20  # bytes of disk space per allocation for entries
_STRETCH = 1 << 15  # bytes per allocation for slots; a multiple of the slot size
_INT_MAX = (1 << 31) - 1
_MAX_CACHED = 200  # limit of characters of a key part whose hash is cached
_COUNTER = 4  # a unique id ends with a counter of 4 hex digits; the other digits change once a ms
_hash_of_start = lru_cache(maxsize=1024)(java_hash)


def key_of_entry(key_hash: int, log_offset: int) -> bytes:
    """Return the first bytes (key hash and log offset) of an index entry."""
    return _KEY.pack(key_hash, log_offset)


def index_file_bytes(slots: int, entries: int) -> int:
    return HEADER.size + slots * SLOT.size + entries * ENTRY.size


class IndexFile(IndexTail):
    """One file of the key index. Only one thread may add entries. The header is written by `write_header`."""

    __slots__ = ()
    file: Segment

    def __init__(self, path: Path, slots: int, entries: int, disk: Disk = LOCAL_DISK) -> None:
        self.file = Segment(path, index_file_bytes(slots, entries), scattered=True, disk=disk)
        self.slots = slots
        self.entries = entries
        self.entries_at = HEADER.size + slots * SLOT.size
        self.begin_ms = self.end_ms = self.begin_log_offset = self.end_log_offset = 0
        self.used_slots = 0
        self.next_entry = 1
        self.reserved_end = 0
        self.stretch_bytes = _STRETCH
        self.ready = bytearray(-(-self.entries_at // _STRETCH))

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self.entries

    @property
    def is_empty(self) -> bool:
        return self.next_entry <= 1

    @property
    def has_plausible_head(self) -> bool:
        """True if the header's values are possible in a file of this size."""
        return (
            1 <= self.next_entry <= self.entries
            and 0 <= self.used_slots <= self.slots
            and 0 <= self.begin_log_offset <= self.end_log_offset
            and 0 <= self.begin_ms <= self.end_ms
        )

    def create(self, *, end_ms: int, end_log_offset: int) -> None:
        """Create the file. `end_ms` and `end_log_offset` are the end of the previous file, 0 without one.

        Raises `OSError`.
        """
        self.file.create()
        self.file.allocate(0, self.entries_at)
        self._prepare_slots(0)
        self.begin_ms = self.end_ms = end_ms
        self.begin_log_offset = self.end_log_offset = end_log_offset
        self.write_header()

    def load(self) -> None:
        [content] = self.file.read([(0, HEADER.size)])  # a map could allocate an unwritten page
        header = HEADER.unpack(content)
        self.begin_ms, self.end_ms, self.begin_log_offset, self.end_log_offset, self.used_slots, next_entry = header
        self.next_entry = next_entry or 1

    def reserve(self, hashes: Sequence[int]) -> None:
        """Allocate disk space for the entries of these key hashes, at most up to the file's end. Raises `OSError`."""
        self._prepare_slots(0)
        for key_hash in hashes:
            self._prepare_slots((HEADER.size + key_hash % self.slots * SLOT.size) // _STRETCH)
        start = self.entries_at + self.next_entry * ENTRY.size
        needed = min(start + len(hashes) * ENTRY.size, self.file.size)
        if needed > max(start, self.reserved_end):  # False if the file is full
            self.file.prepare(start, needed + _ALLOCATED_BYTES)
            self.reserved_end = min(needed + _ALLOCATED_BYTES, self.file.size)

    def _prepare_slots(self, number: int) -> None:
        if not self.ready[number]:
            self.file.prepare(number * _STRETCH, number * _STRETCH + _STRETCH)
            self.ready[number] = 1

    def put(self, key_hash: int, log_offset: int, store_ms: int) -> None:
        """Add an entry. The file must not be full, and `reserve` must have been called with `key_hash`."""
        memory = self.file.memory
        number = self.next_entry
        slot_at = HEADER.size + key_hash % self.slots * SLOT.size
        previous = SLOT.unpack_from(memory, slot_at)[0]
        if previous >= number:
            previous = self._counted(previous)
        if not 0 < previous < number:
            previous = 0
            self.used_slots += 1
        seconds = min(max(store_ms - self.begin_ms, 0) // 1000, _INT_MAX) if self.begin_ms > 0 else 0
        ENTRY.pack_into(memory, self.entries_at + number * ENTRY.size, key_hash, log_offset, seconds, previous)
        SLOT.pack_into(memory, slot_at, number)
        if number <= 1:
            self.begin_ms = store_ms
            self.begin_log_offset = log_offset
        self.end_ms = store_ms
        self.end_log_offset = log_offset
        self.next_entry = number + 1

    def _counted(self, number: int) -> int:
        """Return the number of the newest valid entry of a chain, starting at entry `number`; 0 if there is none.

        A killed process may have added newer entries that the header does not count.
        """
        while self.next_entry <= number < self.entries:
            newer, number = number, ENTRY.unpack_from(self.file.memory, self.entries_at + number * ENTRY.size)[3]
            if number >= newer:
                return 0
        return number

    def write_header(self) -> None:
        HEADER.pack_into(
            self.file.memory,
            0,
            self.begin_ms,
            self.end_ms,
            self.begin_log_offset,
            self.end_log_offset,
            self.used_slots,
            self.next_entry,
        )

    def overlaps(self, begin_ms: int, end_ms: int) -> bool:
        """Return True if the file may hold records stored from `begin_ms` to `end_ms`, both included."""
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms

    def last_entries_of(self, log_offset: int) -> int:
        """Return how many entries at the end of the file lead to the record at `log_offset`."""
        number = self.next_entry - 1
        while (
            number > 0 and ENTRY.unpack_from(self.file.memory, self.entries_at + number * ENTRY.size)[1] == log_offset
        ):
            number -= 1
        return self.next_entry - 1 - number

    def search(self, key_hash: int, *, begin_ms: int, end_ms: int) -> Iterator[int | PagesToLoad]:
        """Yield the log offset of each record with a key hash, the newest first, and in between pages to load.

        The caller must load these pages before the next step. Entries added meanwhile are not found.
        """
        file = self.file
        memory = file.memory  # keeps the file mapped if the file is deleted meanwhile
        slot_at = HEADER.size + key_hash % self.slots * SLOT.size
        yield file.to_load(slot_at, slot_at + SLOT.size)
        number = self._counted(SLOT.unpack_from(memory, slot_at)[0])
        end, looked_at, page = self.next_entry, 0, -1
        while 0 < number < end:
            entry_at = self.entries_at + number * ENTRY.size
            if entry_at // _PAGE_BYTES != page:
                page = entry_at // _PAGE_BYTES
                if to_load := file.to_load(entry_at, entry_at + ENTRY.size):
                    yield to_load
            entry = ENTRY.unpack_from(memory, entry_at)
            entry_hash, log_offset, seconds, previous = entry
            store_ms = self.begin_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms <= store_ms <= end_ms:
                yield log_offset
            if seconds < 0 or store_ms < begin_ms or previous >= number:
                break
            number, looked_at = previous, looked_at + 1
            if looked_at % LOOKED_AT == 0:
                yield []


def is_found_by(record: RecordHead, topic: str, key: str) -> bool:
    """Return True if a record has this topic, and has the key as unique id or in the property KEYS."""
    if record.topic != topic:
        return False
    properties = decode_properties(record.property_text)
    return key == properties.get(Property.UNIQUE_KEY) or key in properties.get(Property.KEYS, "").split(" ")


def key_hashes(topic: str, property_text: str) -> list[int]:
    """Return the index hash of each key of a message: the unique id first, then the words of the property KEYS.

    [] for a message waiting for its delivery time: such a message is indexed after its delivery.
    """
    return [index_hash(joined_hash(*key)) for key in keys_of(topic, property_text)]


def keys_of(topic: str, property_text: str) -> list[tuple[str, str]]:
    """Return the keys of a message for `joined_hash`: each as a beginning that many messages share, and an end.

    [] for a message waiting for its delivery time.
    """
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
    """Return the hash that index files hold: the absolute value of a Java hash; 0 for -2^31."""
    value = abs(value)
    return value if value <= 0x7FFFFFFF else 0


def joined_hash(start: str, end: str) -> int:
    """Return `java_hash(start + end)` from the cached hash of `start`: h(a + b) = h(a) 31^len(b) + h(b)."""
    if not end.isascii() or len(start) > _MAX_CACHED or len(end) > _MAX_CACHED:
        return java_hash(start + end)
    value: int = (_hash_of_start(start) * 31 ** len(end) + java_hash(end)) & 0xFFFFFFFF
    return value - 0x100000000 if value & 0x80000000 else value
