"""What a replica needs of a store, as small as it can be: a log of records of eight bytes, and notes of epochs."""

from __future__ import annotations

from pathlib import Path

from pyromq.broker.replication.replica_stream import RecordMark
from pyromq.errors import StoreNotWritable
from pyromq.store.epoch_file import EpochFile, EpochStart

RECORD_BYTES = 8


class Died(Exception):
    """The process was killed at a write."""


class ModelLog:
    """A log in memory. What is not flushed is lost with the power, from any byte on."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.first = 0
        self.flushed_end = 0
        self.confirmed_end = 0
        self.is_full = False

    @property
    def end(self) -> int:
        return len(self.data) // RECORD_BYTES * RECORD_BYTES

    @property
    def written_end(self) -> int:
        return len(self.data)

    def piece(self, start: int, most: int) -> bytes:
        return bytes(self.data[start : start + most])

    def append_record(self, number: int) -> None:
        assert len(self.data) == self.end
        self.data += number.to_bytes(RECORD_BYTES, "big")

    def append_bytes(self, offset: int, data: bytes) -> None:
        if self.is_full:
            raise StoreNotWritable("no space left on the model's disk")
        assert offset == len(self.data)
        self.data += data

    def confirm(self, end: int) -> None:
        assert end <= self.end
        self.confirmed_end = max(end // RECORD_BYTES * RECORD_BYTES, self.confirmed_end)

    def drop_incomplete(self) -> None:
        self.cut(self.end)

    def last_mark(self) -> RecordMark | None:
        return self.mark_at(self.end - RECORD_BYTES)

    def mark_at(self, offset: int) -> RecordMark | None:
        if not 0 <= offset < self.end:
            return None
        return RecordMark(offset, int.from_bytes(self.data[offset : offset + RECORD_BYTES], "big"), 0)

    def flush(self) -> None:
        self.flushed_end = len(self.data)

    def cut(self, end: int) -> None:
        del self.data[end:]
        self.flushed_end = min(self.flushed_end, end)

    def reopen(self) -> None:
        """Begin a new process: nothing is known to be confirmed, and a record that is not whole is dropped."""
        self.drop_incomplete()
        self.confirmed_end = 0


class ModelEpochs(EpochFile):
    """The file of epochs, on a disk that is never read. The process may be killed before and behind any write."""

    def __init__(self) -> None:
        super().__init__(Path("/nowhere"))
        self.dies_in = -1  # steps until the process is killed; negative: it is not
        self.is_full = False

    def _save(self, promised: int, lines: list[EpochStart]) -> None:
        if self.is_full:
            raise StoreNotWritable("no space left on the model's disk")
        self._step()
        self.promised, self.lines = promised, lines
        self._step()

    def _step(self) -> None:
        self.dies_in -= 1
        if self.dies_in == 0:
            raise Died

    def reopen(self) -> None:
        """Begin a new process."""
