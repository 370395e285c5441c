"""One file of the key index: a hash table whose slots begin chains of entries, newest first.

    header              byte   type   meaning
    begin store time    0      long   ms, of the first entry's record
    end store time      8      long   ms, of the last one's
    begin log offset    16     long
    end log offset      24     long
    used slots          32     int
    next entry          36     int    number of the next entry; the first is 1

    slot (4 bytes, at 40 + 4 s)       int    number of the newest entry of the chain, 0 none

    entry (20 bytes, behind the slots at 20 times its number)
    key hash            0      int
    log offset          4      long
    seconds             12     int    since the begin store time
    previous entry      16     int    of the chain, 0 none

A new file's begin is its predecessor's end until the first entry has been written, which therefore counts its seconds
from there. Source: RocketMQ 4.9.8, IndexFile and IndexHeader.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from pyromq.store.disk import LOCAL_DISK, Disk
from pyromq.store.log.segment import Segment

HEADER = struct.Struct(">qqqqii")
SLOT = struct.Struct(">i")
ENTRY = struct.Struct(">iqii")
_KEY = struct.Struct(">iq")  # of an entry: key hash and log offset
_ROOM_BYTES = 1 << 20  # taken from the disk at once
_PAGE = 4096  # slots of 4 bytes never lie on two
_NEWEST = 64  # entries of one hash; one record has not more of them
_EVER_MS = (1 << 63) - 1
_INT_MAX = (1 << 31) - 1


def key_of_entry(key_hash: int, log_offset: int) -> bytes:
    """Return how the entry of a key and a record begins."""
    return _KEY.pack(key_hash, log_offset)


def index_file_bytes(slots: int, entries: int) -> int:
    return HEADER.size + slots * SLOT.size + entries * ENTRY.size


class IndexFile:
    """One writer; the header on disk follows with `write_header`."""

    __slots__ = (
        "_entries",
        "_entries_at",
        "_ready",
        "_room_to",
        "_slots",
        "begin_log_offset",
        "begin_ms",
        "end_log_offset",
        "end_ms",
        "file",
        "next_entry",
        "used_slots",
    )

    def __init__(self, path: Path, slots: int, entries: int, disk: Disk = LOCAL_DISK) -> None:
        self.file = Segment(path, index_file_bytes(slots, entries), scattered=True, disk=disk)
        self._slots = slots
        self._entries = entries
        self._entries_at = HEADER.size + slots * SLOT.size
        self.begin_ms = self.end_ms = self.begin_log_offset = self.end_log_offset = 0
        self.used_slots = 0
        self.next_entry = 1
        self._room_to = 0  # position in the file up to which there is room for entries
        self._ready = bytearray(-(-self._entries_at // _PAGE))  # pages of slots that can be written for certain

    @property
    def is_full(self) -> bool:
        return self.next_entry >= self._entries

    @property
    def is_empty(self) -> bool:
        return self.next_entry <= 1

    @property
    def has_plausible_head(self) -> bool:
        """Whether what the header says can be, in a file of this size."""
        return (
            1 <= self.next_entry <= self._entries
            and 0 <= self.used_slots <= self._slots
            and 0 <= self.begin_log_offset <= self.end_log_offset
            and 0 <= self.begin_ms <= self.end_ms
        )

    def create(self, *, end_ms: int, end_log_offset: int) -> None:
        """Make the file, as successor of one that ends there. Raises `OSError`."""
        self.file.create()
        self.file.allocate(0, self._entries_at)
        self._prepare_page(0)
        self.begin_ms = self.end_ms = end_ms
        self.begin_log_offset = self.end_log_offset = end_log_offset
        self.write_header()

    def load(self) -> None:
        [content] = self.file.read([(0, HEADER.size)])  # mapped, a page that was never written might need room
        header = HEADER.unpack(content)
        self.begin_ms, self.end_ms, self.begin_log_offset, self.end_log_offset, self.used_slots, next_entry = header
        self.next_entry = next_entry or 1

    def reserve(self, hashes: Sequence[int]) -> None:
        """Have room on disk for entries of these keys, as far as the file goes. Raises `OSError`."""
        self._prepare_page(0)
        for key_hash in hashes:
            self._prepare_page((HEADER.size + key_hash % self._slots * SLOT.size) // _PAGE)
        start = self._entries_at + self.next_entry * ENTRY.size
        needed = min(start + len(hashes) * ENTRY.size, self.file.size)
        if needed > max(start, self._room_to):  # a full file needs none
            self.file.prepare(start, needed + _ROOM_BYTES)
            self._room_to = min(needed + _ROOM_BYTES, self.file.size)

    def _prepare_page(self, number: int) -> None:
        if not self._ready[number]:
            self.file.prepare(number * _PAGE, number * _PAGE + _PAGE)
            self._ready[number] = 1

    def put(self, key_hash: int, log_offset: int, store_ms: int) -> None:
        """Add an entry; the file must not be full, and have room. Called for every key of every message."""
        memory = self.file.memory
        number = self.next_entry
        slot_at = HEADER.size + key_hash % self._slots * SLOT.size
        previous = SLOT.unpack_from(memory, slot_at)[0]
        if previous >= number:
            previous = self._counted(previous)
        if not 0 < previous < number:
            previous = 0
            self.used_slots += 1
        seconds = min(max(store_ms - self.begin_ms, 0) // 1000, _INT_MAX) if self.begin_ms > 0 else 0
        ENTRY.pack_into(memory, self._entries_at + number * ENTRY.size, key_hash, log_offset, seconds, previous)
        SLOT.pack_into(memory, slot_at, number)
        if number <= 1:
            self.begin_ms = store_ms
            self.begin_log_offset = log_offset
        self.end_ms = store_ms
        self.end_log_offset = log_offset
        self.next_entry = number + 1

    def _counted(self, number: int) -> int:
        """Return the first entry of a chain that counts: a killed process may have put others before it."""
        while self.next_entry <= number < self._entries:
            newer, number = number, ENTRY.unpack_from(self.file.memory, self._entries_at + number * ENTRY.size)[3]
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
        """Whether the file holds records of that time, both ends included."""
        return begin_ms <= self.end_ms and end_ms >= self.begin_ms

    def leads_to(self, key_hash: int, log_offset: int) -> bool:
        """Whether the newest entries of a key's hash have one for that record."""
        return log_offset in self.find(key_hash, _NEWEST, begin_ms=0, end_ms=_EVER_MS)

    def find(self, key_hash: int, max_count: int, *, begin_ms: int, end_ms: int) -> list[int]:
        """Return log offsets of records whose key has that hash, newest first."""
        found: list[int] = []
        memory = self.file.memory
        number = self._counted(SLOT.unpack_from(memory, HEADER.size + key_hash % self._slots * SLOT.size)[0])
        while 0 < number < self.next_entry and len(found) < max_count:
            entry_hash, log_offset, seconds, previous = ENTRY.unpack_from(
                memory, self._entries_at + number * ENTRY.size
            )
            store_ms = self.begin_ms + seconds * 1000
            if entry_hash == key_hash and begin_ms <= store_ms <= end_ms:
                found.append(log_offset)
            if seconds < 0 or store_ms < begin_ms or previous >= number:
                break
            number = previous
        return found
