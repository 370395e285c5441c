"""One replica's view of its set's record: the record as last read, and the replica's own writes in progress.

A *swap* is a compare-and-swap of the record's key in the registry. A swap without an answer may have written the
record, or may still write it. A swap can only write while the key has the revision that the swap names. So a swap
stays *open* until a later revision of the key is known. A read of the same revision does not close the swap.
"""

from __future__ import annotations

from pyromq.broker.replication.replica_actions import Reading, ReadRecord, SwapRecord
from pyromq.broker.replication.set_record import Member, ReplicaInfo, SetRecord

READ_SECONDS = 5.0  # time between two reads of the record while the watch reports no change
RETRY_SECONDS = 0.2  # time between two reads while the registry does not answer


class RecordView:
    """The set's record as far as this replica knows it. At most one read and one swap wait for their answers."""

    def __init__(self) -> None:
        self.record: SetRecord | None = None
        self.revision = -1  # -1 until the registry has answered a read
        self._found_revision = 0  # of the last answer; below `revision` if the registry was restored from a backup
        self.replicas: dict[int, ReplicaInfo] = {}
        self.read_at = float("-inf")  # time at which the last read with an answer was sent
        self.is_restored = False  # whether the registry has an older revision than before: restored or emptied
        self._open_swaps: list[SwapRecord] = []
        self._swap: SwapRecord | None = None  # the swap that waits for its answer
        self._read: ReadRecord | None = None  # the read that waits for its answer
        self._read_sent = float("-inf")
        self._must_read = True
        self._numbers = 0

    @property
    def is_known(self) -> bool:
        return self.revision >= 0

    @property
    def is_waiting(self) -> bool:
        """Whether a read or a swap waits for its answer, or the record must be read before the next swap."""
        return self._read is not None or self._swap is not None or self._must_read

    @property
    def has_open_swaps(self) -> bool:
        """Whether a swap without an answer may still write the record. The next successful swap prevents that."""
        return bool(self._open_swaps)

    def possible_members(self) -> frozenset[Member]:
        """Return the in-sync replicas of all records that the registry may hold now."""
        members = set(self.record.in_sync if self.record else ())
        for swap in self._open_swaps:
            members.update(swap.record.in_sync)
        return frozenset(members)

    def request_read(self) -> None:
        """Make the next call of `next_read` return a read."""
        self._must_read = True

    def next_read(self, now: float) -> ReadRecord | None:
        """Return a read of the record if one is due; None if none is due."""
        if self._read is not None or self._swap is not None:
            return None
        waited = now - self._read_sent
        if not ((self._must_read and waited >= RETRY_SECONDS) or waited >= READ_SECONDS or waited < 0):
            return None
        return self.read_now(now)

    def read_now(self, now: float) -> ReadRecord | None:
        """Return a read of the record, without a pause after the last read; None if a read or swap is unanswered."""
        if self._read is not None or self._swap is not None:
            return None
        self._numbers += 1
        self._read = ReadRecord(self._numbers)
        self._read_sent = now
        return self._read

    def read_answered(self, number: int, reading: Reading) -> bool:
        """Store the record that a read found. Return False if the answer is late, or older than the known record."""
        if self._read is None or self._read.number != number:
            return False
        self._read = None
        self._must_read = False
        self.read_at = self._read_sent
        self.replicas = reading.replicas
        self._found_revision = reading.revision
        if reading.revision < self.revision and not self._is_written_by_operator(reading):
            self.is_restored = True
            return False
        self.is_restored = False
        self._learn(reading.record, reading.revision)
        return True

    def read_failed(self, number: int) -> None:
        """Read the record again after a pause, because the registry did not answer this read."""
        if self._read is not None and self._read.number == number:
            self._read = None
            self._must_read = True

    def swap(self, record: SetRecord) -> SwapRecord:
        """Return a swap that replaces the known record by this record. The swap is open from now on."""
        self._numbers += 1
        swap = SwapRecord(self._numbers, self._found_revision, record)
        self._swap = swap
        self._open_swaps.append(swap)
        return swap

    def swap_done(self, number: int, revision: int) -> SwapRecord | None:
        """Store the record that a swap has written. Return the swap; None if the answer is late."""
        swap = self._answered(number)
        if swap is not None and (revision > self.revision or self.is_restored):
            self.is_restored = False
            self._found_revision = revision
            self._learn(swap.record, revision)
        return swap

    def swap_failed(self, number: int) -> None:
        """Read the record again now, because the swap had a conflict or got no answer. The swap is still open."""
        if self._answered(number) is not None:
            self._must_read = True
            self._read_sent = float("-inf")

    def _answered(self, number: int) -> SwapRecord | None:
        swap = self._swap
        if swap is None or swap.number != number:
            return None
        self._swap = None
        return swap

    def _learn(self, record: SetRecord | None, revision: int) -> None:
        if revision != self.revision:
            self._open_swaps = [swap for swap in self._open_swaps if swap.revision == revision]
        self.record = record
        self.revision = revision

    def _is_written_by_operator(self, reading: Reading) -> bool:
        """Whether an operator has replaced the record of a restored registry by one with a higher epoch."""
        return reading.record is not None and self.record is not None and reading.record.epoch > self.record.epoch
