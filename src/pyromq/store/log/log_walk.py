"""Reads the records of a commit log in order. Used by recovery, by the rebuild of queues, and by the offline check.

A record is intact if its lengths agree, its body matches its checksum, and it holds its own log offset. After a damaged
record the walk continues at the next intact record, so a flipped bit costs one record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pyromq.errors import StoreCorrupt
from pyromq.message import StoredMessage
from pyromq.record import (
    BLANK_MAGIC,
    BLANK_MAGIC_BYTES,
    BLANK_SIZE,
    MAGIC,
    MAGIC_AT,
    MAGIC_BYTES,
    decode,
    texts_at,
    unpack_size_and_magic,
)
from pyromq.store.log.segmented_log import Segment, file_name

_SECTOR = 512  # bytes of a disk sector, the unit that every disk writes atomically
_PIECE = 1 << 20  # bytes per read call while searching the next intact record after damage
_ZEROS = bytes(_PIECE + len(MAGIC_BYTES))
_MAGICS = re.compile(re.escape(MAGIC_BYTES) + b"|" + re.escape(BLANK_MAGIC_BYTES))


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of the log without an intact record, from log offset `start` to `end`.

    The range lies in one file, which begins at log offset `base`. `is_tail`: no intact record follows this range in the
    log. `is_empty`: all bytes of the range are zero. `store_ms` is the highest store time (ms since 1970) of the
    earlier records, 0 without earlier records.
    """

    path: Path
    base: int
    start: int
    end: int
    reason: str
    store_ms: int
    is_empty: bool = False
    is_tail: bool = False


class LogWalk:
    """Iterates over the messages and `Damage` of a log from `start`, where a record begins.

    Zeros at the log's end are no damage. `position` is the log offset after the last intact record, or of the next file
    after a blank record (end mark of a file). Files may be missing or short. After damage, at most `searched_bytes` of
    each file are searched for the next intact record. With `may_be_torn`, zeros in topic or properties that a crash
    left count as damage, because the checksum covers only the body.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        segment_bytes: int,
        start: int = 0,
        *,
        check_crc: bool = True,
        may_be_torn: bool = False,
        searched_bytes: int | None = None,
    ) -> None:
        self._segments = [each for each in segments if each.base + segment_bytes > start]
        self.position = max(start, self._segments[0].base if self._segments else 0)
        self.last_store_ms = 0
        self._segment_bytes = segment_bytes
        self._check_crc = check_crc
        self._may_be_torn = may_be_torn
        self._searched_bytes = searched_bytes or segment_bytes

    def __iter__(self) -> Iterator[StoredMessage | Damage]:
        pending: list[Damage] = []
        for found in self._all():
            if isinstance(found, Damage):
                pending.append(found)
                continue
            yield from pending
            pending.clear()
            yield found
        while pending and pending[-1].is_empty:
            pending.pop()
        yield from (replace(damage, is_tail=True) for damage in pending)

    def _all(self) -> Iterator[StoredMessage | Damage]:
        expected, start = self._segments[0].base if self._segments else 0, self.position
        for segment in self._segments:
            while expected < segment.base:
                path, end = segment.path.with_name(file_name(expected)), expected + self._segment_bytes
                yield Damage(path, expected, expected, end, "the file is missing", self.last_store_ms)
                expected = end
            yield from self._of(segment, max(start - segment.base, 0))
            expected = segment.base + self._segment_bytes

    def _of(self, segment: Segment, position: int) -> Iterator[StoredMessage | Damage]:
        base, end = segment.base, self._segment_bytes
        while position <= end - BLANK_SIZE:
            memory = segment.written(position)
            try:
                while position <= end - BLANK_SIZE and not _is_blank(memory, position):
                    message = self._record(memory, position, base)
                    position += message.size
                    self.position = base + position
                    self.last_store_ms = max(self.last_store_ms, message.store_ms)
                    yield message
                self.position = base + end
                return
            except StoreCorrupt as error:
                following, is_empty = self._search(segment, position)
                stop = end if following is None else following
                yield Damage(segment.path, base, base + position, base + stop, str(error), self.last_store_ms, is_empty)
                position = stop

    def _record(self, memory: memoryview, position: int, base: int) -> StoredMessage:
        """Return the intact record at a file position. Raises `StoreCorrupt` with the fault if there is none."""
        if position + BLANK_SIZE > len(memory):
            raise StoreCorrupt("the file is cut short")
        if unpack_size_and_magic(memory, position)[1] != MAGIC:
            raise StoreCorrupt(f"no record begins here, but {bytes(memory[position : position + 8]).hex()}")
        message = decode(memory, position, check_crc=self._check_crc)
        if position + message.size > len(memory):
            raise StoreCorrupt("the record is incomplete")
        if message.log_offset != base + position:
            raise StoreCorrupt(f"a record that belongs to log offset {message.log_offset}")
        if self._may_be_torn and ("\0" in message.property_text or "\0" in message.topic):
            _check_torn(message, memory, position)
        return message

    def _search(self, segment: Segment, start: int) -> tuple[int | None, bool]:
        """Return the file position of the next intact or blank record after `start`; None if none is found.

        Also return whether all bytes from `start` up to that position are zero.
        """
        is_empty = True
        for piece in range(start, min(start + self._searched_bytes, segment.size), _PIECE):
            [content] = segment.read([(piece, _PIECE + len(MAGIC_BYTES))])  # read, not mapped: a map allocates holes
            if _ZEROS.startswith(content):
                continue
            for found in _MAGICS.finditer(content):
                position = piece + found.start() - MAGIC_AT
                if position > start and self._is_sound(segment, position):
                    return position, is_empty and not content[: position - piece].strip(b"\0")
            is_empty = False
        return None, is_empty

    def _is_sound(self, segment: Segment, position: int) -> bool:
        memory = segment.written(position)
        if _is_blank(memory, position):
            return bool(unpack_size_and_magic(memory, position)[0] == self._segment_bytes - position)
        return self.has_record(segment, position)

    def has_record(self, segment: Segment, position: int) -> bool:
        """Return True if an intact record begins at this file position of a segment."""
        try:
            return self._record(segment.written(position), position, segment.base) is not None
        except StoreCorrupt:
            return False


def _is_blank(memory: memoryview, position: int) -> bool:
    return position + BLANK_SIZE <= len(memory) and unpack_size_and_magic(memory, position)[1] == BLANK_MAGIC


def _check_torn(message: StoredMessage, memory: memoryview, position: int) -> None:
    """Raise `StoreCorrupt` if a crash left zeros in topic or properties of a record.

    Zeros of a crash reach the end of a disk sector. Zeros that a client sent are followed by other bytes.
    """
    topic_at, properties_at = texts_at(memory, position)
    for begin, end in ((topic_at, properties_at - 2), (properties_at, position + message.size)):
        for sector_end in range(begin - begin % _SECTOR + _SECTOR, end + _SECTOR, _SECTOR):
            last = min(end, sector_end) - 1
            if last >= begin and not any(memory[last:sector_end]):
                raise StoreCorrupt("the record is torn")
