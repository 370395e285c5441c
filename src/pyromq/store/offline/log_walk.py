"""The records of a stopped store's log, one after the other, past everything that is damaged.

A record is sound if its lengths fit each other, its body fits its checksum and it says its own log offset. Where none
begins, the next sound one is looked for: so a flipped bit costs one record, not all behind it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass

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
    said_log_offset,
    unpack_size_and_magic,
)
from pyromq.store.offline.stopped_store import StoppedFile, StoppedStore


@dataclass(frozen=True, slots=True)
class Damage:
    """Log offsets between which no sound record lies. `is_tail`: nothing sound is behind it.

    `store_ms` is the store time of the record before, 0 if there is none.
    """

    file: StoppedFile
    start: int
    end: int
    reason: str
    is_tail: bool
    store_ms: int


class LogWalk:
    """Everything in the log, in order. `end` is the log offset behind the last sound record, once it was iterated.

    `around`: only what is in the file with that log offset, and in those behind it.
    """

    def __init__(self, store: StoppedStore, *, around: int = 0) -> None:
        self.end = store.log_begin
        self.last_store_ms = 0
        self._size = store.segment_bytes
        self._files = [file for file in store.log_files if file.base + store.segment_bytes > around]
        while self._files and not self._files[-1].data_end:  # made ahead of the writer
            self._files.pop()

    def __iter__(self) -> Iterator[StoredMessage | Damage]:
        previous: StoppedFile | None = None
        for file in self._files:
            while previous is not None and previous.base + self._size < file.base:  # missing ones
                previous = StoppedFile(
                    file.path.with_name(f"{previous.base + self._size:020}"), previous.base + self._size, b""
                )
                yield Damage(
                    previous,
                    previous.base,
                    previous.base + self._size,
                    "the file is missing",
                    False,
                    self.last_store_ms,
                )
            yield from self._of_file(file, is_last=file is self._files[-1])
            previous = file

    def _of_file(self, file: StoppedFile, *, is_last: bool) -> Iterator[StoredMessage | Damage]:
        position = 0
        while position <= self._size - BLANK_SIZE:
            found = self._record(file, position)
            if isinstance(found, StoredMessage):
                position += found.size
                self.end = file.base + position
                self.last_store_ms = max(self.last_store_ms, found.store_ms)
                yield found
                continue
            if not found:
                self.end = file.base + self._size
                return
            end = self._next_sound(file, position)
            if end is None and is_last and file.data_end <= position:
                return
            is_tail = end is None and is_last
            stop = self._size if end is None else end
            yield Damage(file, file.base + position, file.base + stop, found, is_tail, self.last_store_ms)
            position = stop

    def _record(self, file: StoppedFile, position: int) -> StoredMessage | str:
        """Return the sound record at a position, else what is wrong; "" for the blank at a file's end."""
        content = file.view
        if position + BLANK_SIZE > len(content):
            return "the file is cut short"
        size, magic = unpack_size_and_magic(content, position)
        if magic == BLANK_MAGIC and size == self._size - position:
            return ""
        if magic != MAGIC:
            return f"no record begins here, but {bytes(content[position : position + 8]).hex()}"
        if not 0 < size <= self._size - position:
            return f"a record that says {size} bytes"
        try:
            message = decode(content, position, check_crc=True)
        except StoreCorrupt as error:
            return str(error)
        if message.log_offset != file.base + position:
            return f"a record that belongs to log offset {message.log_offset}"
        return message

    def _next_sound(self, file: StoppedFile, position: int) -> int | None:
        """Return where the next sound record, or the blank at the end, begins; None if nowhere in this file."""
        content = file.view
        for found in _places(file.content, position + 1 + MAGIC_AT):
            start = found - MAGIC_AT
            if content[found : found + len(BLANK_MAGIC_BYTES)] == BLANK_MAGIC_BYTES:
                if _is_blank(content, start, self._size):
                    return start
            elif said_log_offset(content, start) == file.base + start and isinstance(
                self._record(file, start), StoredMessage
            ):
                return start
        return None


def _is_blank(content: memoryview, position: int, size: int) -> bool:
    if position + BLANK_SIZE > len(content):
        return False
    return bool(unpack_size_and_magic(content, position) == (size - position, BLANK_MAGIC))


def _places(content: mmap.mmap | bytes, start: int) -> Iterator[int]:
    """Yield where one of the two magic numbers stands, in order."""
    record, blank = content.find(MAGIC_BYTES, start), content.find(BLANK_MAGIC_BYTES, start)
    while record >= 0 or blank >= 0:
        if blank < 0 or 0 <= record < blank:
            yield record
            record = content.find(MAGIC_BYTES, record + 1)
        else:
            yield blank
            blank = content.find(BLANK_MAGIC_BYTES, blank + 1)
