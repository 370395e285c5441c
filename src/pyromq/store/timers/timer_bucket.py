"""The scheduled messages of one hour, in three files that only grow.

    NAME.entries   36 bytes per message, in order of arrival; an entry's place is the message's number

        entry        bytes   type   meaning
        due time     8       long   ms since 1970
        key hash     4       uint   CRC-32 of the unique key, 0 without one
        topic hash   4       uint   CRC-32 of the topic
        log offset   8       long   of the record in the commit log
        checksum     2       ushort CRC-16 (CCITT) of the rest, 1 instead of 0; 0: none, as in files of older brokers
        position     6              of the record in NAME.records
        size         4       int    of the record

    NAME.records   the records as in the commit log, back to back
    NAME.finished  8 bytes per message delivered or cancelled: its number, and the number with all bits inverted
    NAME.done      replaces NAME.finished in buckets of older brokers: 4 bytes per message, the number alone

All integers are big-endian. Records are copied after their entries are written; before that, only the log has the
records.
"""

from __future__ import annotations

import struct
from array import array
from binascii import crc_hqx
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from pyromq import speedups
from pyromq.errors import StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage
from pyromq.record import Buffer, decode
from pyromq.slow_work import FilePiece, NotInMemory
from pyromq.store.disk import LOCAL_DISK, Disk, remove_file
from pyromq.store.timers.growing_file import GrowingFile

MISFIT = "its entry is not that of its record"

# Limit of key hashes in a sorted array made from two smaller ones. Merging to this size takes 2 ms.
LONGEST_RUN = 16_384
_NUMBER_BITS = 32
_NUMBER = (1 << _NUMBER_BITS) - 1

_HEAD = struct.Struct(">qIIq")
_REST = struct.Struct(">HIi")
_pack_head, _pack_rest = _HEAD.pack, _REST.pack  # bound once, as every message needs them
_LOW_BITS = 0xFFFFFFFF

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.timed import BucketTail
else:

    class BucketTail:
        """The end of a bucket. `entries` are the unwritten entries.

        The records of all entries end at position `records_end`. `needed_from` is the log offset of the first record
        that is not copied, None if all records are copied. `finished` has a byte for each message, 1 if the message is
        delivered or cancelled; None if the bytes are not in memory.
        """

        __slots__ = ("entries", "finished", "needed_from", "records_end")

        def add(self, due_ms: int, key_hash: int, topic_hash: int, log_offset: int, size: int) -> None:
            """Add the entry of a message whose record is at `log_offset` in the commit log. Log offsets must ascend."""
            head = _pack_head(due_ms, key_hash, topic_hash, log_offset)
            rest = _pack_rest(self.records_end >> 32, self.records_end & _LOW_BITS, size)
            self.entries += head + (crc_hqx(rest, crc_hqx(head, 0)) or 1).to_bytes(2) + rest
            self.records_end += size
            if self.needed_from is None:
                self.needed_from = log_offset
            if self.finished is not None:
                self.finished.append(0)


__all__ = ["BucketTail"]

logger = logger_of(__name__)

HOUR_MS = 3_600_000
ENTRY_BYTES = 36
_FINISHED = struct.Struct(">II")
_OLD_FINISHED = struct.Struct(">I")
UNKNOWN_MS = -1  # due time that stands for a damaged entry
ENTRY = struct.Struct(">qIIqHHIi")
_CHECKSUM_AT, _REST_AT = 24, 26
_DUE_AND_KEY = struct.Struct(">qI")
_KEY = struct.Struct(">8xI24x")
_ALL_BITS = 0xFFFFFFFF
_DAMAGED_ENTRY = b"\xff" * ENTRY_BYTES  # stands for an entry that cannot be read: its checksum is wrong
_AHEAD_BYTES = 1 << 20  # bytes of entries loaded from the disk per request
_LOOKED_AT = 512  # entries read one by one between two yields
_AT_ONCE = 1_024  # entries or marks read between two yields: 0.5 ms


class TimerEntry(NamedTuple):
    """The entry of one scheduled message. `is_whole`: the entry has its correct checksum, or none."""

    due_ms: int
    key_hash: int
    topic_hash: int
    log_offset: int
    position: int
    size: int
    is_whole: bool = True


def read_entry(content: Buffer) -> TimerEntry:
    """Return the entry that these 36 bytes hold."""
    due_ms, key_hash, topic_hash, log_offset, _, high, low, size = ENTRY.unpack(content)
    return TimerEntry(due_ms, key_hash, topic_hash, log_offset, high << 32 | low, size, _is_whole(content))


def _is_whole(content: Buffer) -> bool:
    checksum = content[_CHECKSUM_AT] << 8 | content[_CHECKSUM_AT + 1]
    return not checksum or checksum == (crc_hqx(content[_REST_AT:], crc_hqx(content[:_CHECKSUM_AT], 0)) or 1)


class BucketSizes(NamedTuple):
    """The number of valid bytes in each file of a bucket. `done` counts the file of the finished messages."""

    entries: int = 0
    records: int = 0
    done: int = 0


@dataclass(slots=True)
class _MarkReading:
    """Progress of reading which messages are finished: the marks before file position `position` are read.

    `spoiled` of these marks are damaged or repeated.
    """

    flags: bytearray = field(default_factory=bytearray)
    spoiled: int = 0
    position: int = 0


class TimerBucket(BucketTail):
    """The scheduled messages of one hour.

    `hour` counts hours since 1970, `count` messages, `pending` unfinished messages. A message is finished after it was
    delivered or cancelled. The records of the first `copied` messages are copied from the commit log. Marks of finished
    messages, and key hashes, are read from the files when they are needed, in steps, and stay in memory until
    `release`.
    """

    __slots__ = (
        *("_disk", "_done", "_entries", "_keys", "_learning", "_marks", "_records", "_spoiled"),
        *("copied", "hour", "listed", "name"),
    )

    def __init__(
        self,
        folder: Path,
        name: str,
        hour: int,
        sizes: BucketSizes = BucketSizes(),  # noqa: B008
        *,
        disk: Disk = LOCAL_DISK,
    ) -> None:
        self._disk = disk
        self.name = name
        self.hour = hour
        self.listed = 0  # message number before which entries are in memory, sorted by due time
        self._entries = GrowingFile(folder / f"{name}.entries", sizes.entries, disk=disk)
        self._records = GrowingFile(folder / f"{name}.records", sizes.records, disk=disk)
        is_old = disk.size(folder / f"{name}.done") is not None
        self._marks = _OLD_FINISHED if is_old else _FINISHED
        self._done = GrowingFile(folder / f"{name}.{'done' if is_old else 'finished'}", sizes.done, disk=disk)
        self._spoiled = 0  # number of damaged or repeated marks
        self.entries = self._entries.tail
        self.records_end = sizes.records
        self.copied = self.count
        self.needed_from = None
        self.finished = None
        self._learning: _MarkReading | None = None
        self._keys: KeyHashes | None = None

    def resume(self, copied: int) -> None:
        """Continue after a start, with `copied` records already copied. Raises `StoreCorrupt`, `OSError`."""
        last = self.entry(self.count - 1)
        self.records_end = last.position + last.size
        self._set_copied(copied)
        self.release()

    def without(self, name: str, *, keep: int, undone: set[int]) -> TimerBucket:
        """Return a new bucket with the first `keep` messages of this one, named `name`.

        The messages with these `undone` numbers are unfinished. Raises `StoreCorrupt`, `OSError`.
        """
        other = TimerBucket(self._entries.path.parent, name, self.hour, disk=self._disk)
        other.entries += self._content(0, keep)
        other.copied = min(self.copied, keep)
        last_copied = self.entry(other.copied - 1) if other.copied else None
        copied_end = 0 if last_copied is None else last_copied.position + last_copied.size
        if copied_end:
            other._records.tail += self._records.read(0, copied_end)
        if keep:
            last = self.entry(keep - 1)
            other.records_end = last.position + last.size
        if other.copied < keep:
            other.needed_from = self.entry(other.copied).log_offset
        other.finished = bytearray(keep)
        for number in range(keep):
            if self.is_finished(number) and number not in undone:
                other.finish(number)
        return other

    @property
    def files(self) -> tuple[GrowingFile, GrowingFile, GrowingFile]:
        return self._entries, self._records, self._done

    @property
    def sizes(self) -> BucketSizes:
        return BucketSizes(*(file.size for file in self.files))

    @property
    def count(self) -> int:
        return self._entries.size // ENTRY_BYTES

    @property
    def pending(self) -> int:
        return self.count - (self._done.size // self._marks.size - self._spoiled)

    @property
    def finished_bytes(self) -> int:
        """Size in bytes of the mark of one finished message."""
        return self._marks.size

    @property
    def unwritten(self) -> int:
        return sum(file.unwritten for file in self.files)

    def uncopied(self, count: int, max_bytes: int) -> tuple[list[int], list[int]]:
        """Return log offsets and sizes of the next records to copy: at least one, at most `count`.

        The records have about `max_bytes` in all.
        """
        starts, sizes, room = [], [], max_bytes
        for entry in ENTRY.iter_unpack(self._content(self.copied, count)):
            starts.append(entry[3])
            sizes.append(entry[7])
            room -= entry[7]
            if room <= 0:
                break
        return starts, sizes

    def copy(self, records: Sequence[Buffer]) -> None:
        """Append the records whose places `uncopied` returned."""
        self._records.tail += b"".join(records)
        self._set_copied(self.copied + len(records))

    def _set_copied(self, copied: int) -> None:
        self.copied = copied
        self.needed_from = self.entry(copied).log_offset if copied < self.count else None

    def finish(self, number: int) -> bool:
        """Mark a message as delivered or cancelled. Return False if the message was marked before."""
        finished = self._flags()
        if finished[number]:
            return False
        finished[number] = 1
        self._done.tail += _FINISHED.pack(number, number ^ _ALL_BITS)[: self._marks.size]
        return True

    def is_finished(self, number: int) -> bool:
        return self._flags()[number] == 1

    def entry(self, number: int, *, wait: bool = True) -> TimerEntry:
        return read_entry(self._entries.read(number * ENTRY_BYTES, ENTRY_BYTES, wait=wait))

    def record(self, entry: TimerEntry, *, wait: bool = True) -> bytes | None:
        """Return the record of an entry; None if the record is not copied yet.

        Raises `StoreCorrupt` for impossible entries.
        """
        if not 0 < entry.size <= self.records_end - entry.position:
            raise StoreCorrupt(f"the entry names {entry.size} bytes at position {entry.position}")
        if entry.position >= self._records.size:
            return None
        return self._records.read(entry.position, entry.size, wait=wait)

    def place_of(self, entry: TimerEntry) -> str:
        """Return the text "FILE byte N" for the record of an entry."""
        return f"{self._records.path} byte {entry.position}"

    def waiting_of(self, topic_hash: int, first_ms: int) -> Iterator[list[tuple[int, int]]]:
        """Yield lists of due time (ms) and number of the unfinished messages of a topic, due at `first_ms` or later.

        Each list covers about a thousand entries in order of arrival, and may be empty. Messages may be added
        meanwhile.
        """
        for first in range(0, self.count, _AT_ONCE):
            while not self.read_finished_marks():
                yield []
            flags = self._flags()
            fields = enumerate(ENTRY.iter_unpack(self._content(first, _AT_ONCE)), first)
            yield [
                (due_ms, number)
                for number, (due_ms, _, topic, *_) in fields
                if topic == topic_hash and due_ms >= first_ms and not flags[number]
            ]

    def due_times(self, first: int, count: int, *, wait: bool = True) -> Iterator[tuple[int, int]]:
        """Yield due time (ms) and number of the unfinished messages among `count` entries from number `first` on.

        The due time of a damaged entry is `UNKNOWN_MS`. Without `wait`, raises `NotInMemory` if the entries must be
        read from the disk.
        """
        flags = self._flags()
        try:
            content = self._content(first, count, wait=wait)
        except NotInMemory:
            raise NotInMemory([FilePiece(self._entries.path, first * ENTRY_BYTES, _AHEAD_BYTES)]) from None
        except StoreCorrupt as error:
            logger.warning("%s", error)
            content = b"".join(map(self._entry_or_damage, range(first, min(first + count, self.count))))
        for number, start in enumerate(range(0, len(content), ENTRY_BYTES), first):
            if not flags[number]:
                entry = content[start : start + ENTRY_BYTES]
                yield _DUE_AND_KEY.unpack_from(entry)[0] if _is_whole(entry) else UNKNOWN_MS, number

    def waiting(self, due_ms: int, key_hash: int) -> Iterator[int | None]:
        """Yield the numbers of unfinished messages with this due time and hash of the unique key.

        Yields None after a few milliseconds without a match. Messages may be added, finished and released meanwhile.
        """
        wanted = _DUE_AND_KEY.pack(due_ms, key_hash)
        while not (self.read_finished_marks() and self.read_key_hashes()):
            yield None
        assert self._keys is not None
        for looked_at, number in enumerate(self._keys.numbers(key_hash), 1):
            if not self._flags()[number] and self._content(number, 1).startswith(wanted):
                yield number
            elif not looked_at % _LOOKED_AT:
                yield None
            else:
                continue
            while not self.read_finished_marks():
                yield None

    def number_at(self, log_offset: int) -> int | None:
        """Return the number of the message whose record begins at a log offset; None without such a message."""
        low, high = 0, self.count
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle).log_offset < log_offset:
                low = middle + 1
            else:
                high = middle
        return low if low < self.count and self.entry(low).log_offset == log_offset else None

    def write(self, most: int) -> None:
        """Write up to `most` unwritten bytes to the files. Raises `OSError`."""
        for file in self.files:
            most -= file.write(most)

    def close(self) -> None:
        """Close the files. The next use opens the files again."""
        for file in self.files:
            file.release()

    def release(self) -> None:
        """Close the files and release the memory of everything that the files hold."""
        self.finished = self._learning = self._keys = None
        self.close()

    def delete(self) -> None:
        for file in self.files:
            remove_file(self._disk, file.path)

    def _content(self, first: int, count: int, *, wait: bool = True) -> bytes:
        return self._entries.read(first * ENTRY_BYTES, min(count, self.count - first) * ENTRY_BYTES, wait=wait)

    def _entry_or_damage(self, number: int) -> bytes:
        try:
            return self._content(number, 1)
        except StoreCorrupt:
            return _DAMAGED_ENTRY

    def _flags(self) -> bytearray:
        while not self.read_finished_marks():
            pass
        assert self.finished is not None
        return self.finished

    def read_finished_marks(self) -> bool:
        """Read about a thousand marks of finished messages. Return True once all marks are read.

        Messages whose marks cannot be read count as unfinished.
        """
        if self.finished is not None:
            return True
        known = self._learning = self._learning or _MarkReading()
        known.flags += bytes(self.count - len(known.flags))
        size = min(self._done.size - known.position, _AT_ONCE * self._marks.size)
        try:
            content = self._done.read(known.position, size)
        except StoreCorrupt as error:
            logger.warning("%s; messages may be delivered again", error)
            content = b""
            known.spoiled += size // self._marks.size
        for place, number, fault in read_finished(content, self.count, is_old=self._marks is _OLD_FINISHED):
            if fault:
                logger.warning("%s byte %d is damaged: %s", self._done.path, known.position + place, fault)
                known.spoiled += 1
            else:
                known.spoiled += known.flags[number]
                known.flags[number] = 1
        known.position += size
        if known.position < self._done.size:
            return False
        self.finished, self._spoiled, self._learning = known.flags, known.spoiled, None
        return True

    def read_key_hashes(self) -> bool:
        """Read the key hashes of about a thousand messages. Return True once all key hashes are read."""
        keys = self._keys = KeyHashes() if self._keys is None else self._keys
        if len(keys) < self.count:
            keys.add(key_hash for (key_hash,) in _KEY.iter_unpack(self._content(len(keys), _AT_ONCE)))
        return len(keys) == self.count


def read_finished(content: bytes, count: int, *, is_old: bool) -> Iterator[tuple[int, int, str]]:
    """Yield byte position, message number and fault of each mark of a finished message; "" for an intact mark.

    `count` is the number of messages in the bucket. `is_old`: the marks have 4 bytes, as in files of older brokers.
    """
    marks = _OLD_FINISHED if is_old else _FINISHED
    whole = content[: len(content) // marks.size * marks.size]
    for place, (number, *turned) in enumerate(marks.iter_unpack(whole)):
        fault = ""
        if number >= count:
            fault = f"there is no message {number}"
        elif turned and turned[0] != number ^ _ALL_BITS:
            fault = "its two numbers differ; a message may be delivered again"
        yield place * marks.size, number, fault


class KeyHashes:
    """Finds message numbers by key hash. The length is the number of messages added so far.

    A run is a sorted array of key hashes, each with its message's number. A new run is merged with the previous run
    unless that run is longer. So there are few runs, and each message is moved a few times at most.
    """

    __slots__ = ("_count", "_runs")

    def __init__(self) -> None:
        self._count = 0
        self._runs: list[array[int]] = []

    def __len__(self) -> int:
        return self._count

    def add(self, hashes: Iterable[int]) -> None:
        """Add the key hashes of the next messages, in order of their numbers."""
        run = sorted([key_hash << _NUMBER_BITS | number for number, key_hash in enumerate(hashes, self._count)])
        self._count += len(run)
        while self._runs and len(self._runs[-1]) <= len(run) <= LONGEST_RUN - len(self._runs[-1]):
            run = sorted([*self._runs.pop(), *run])
        self._runs.append(array("Q", run))

    def numbers(self, key_hash: int) -> Iterator[int]:
        """Yield the numbers of the messages with a key hash. Messages added meanwhile are left out."""
        for run in tuple(self._runs):
            place = bisect_left(run, key_hash << _NUMBER_BITS)
            while place < len(run) and run[place] >> _NUMBER_BITS == key_hash:
                yield run[place] & _NUMBER
                place += 1


def decode_verified(record: Buffer, entry: TimerEntry) -> StoredMessage:
    """Return the message of a record. Raises `StoreCorrupt` if the record is damaged or of another entry."""
    if len(record) < entry.size:
        raise StoreCorrupt("the file ends before the record")
    message = decode(record, check_crc=True)
    if message.log_offset != entry.log_offset or message.size != entry.size:
        raise StoreCorrupt(MISFIT)
    if not message.properties.get(Property.REAL_QUEUE_ID, "").isdecimal():
        raise StoreCorrupt("the record does not name its real queue")
    return message


def matches_entry(message: StoredMessage, entry: TimerEntry) -> bool:
    """Return True if due time, key and topic of a message match the entry."""
    properties = message.properties
    key, topic = properties.get(Property.UNIQUE_KEY, ""), properties.get(Property.REAL_TOPIC, "")
    due = properties.get(Property.TIMER_OUT_MS, "")
    return (due, crc32(key.encode()), crc32(topic.encode())) == (str(entry.due_ms), entry.key_hash, entry.topic_hash)
