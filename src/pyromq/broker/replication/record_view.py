"""What one replica knows of its set's record: the last one read, and the swaps that may still change it.

A swap without an answer may have happened, may still happen, or never will. It can only happen while the record's key
has the revision that the swap names. So a swap is open until a later revision is known; reading the same revision again
proves nothing.
"""

from __future__ import annotations

from pyromq.broker.replication.replica_actions import Reading, ReadRecord, SwapRecord
from pyromq.broker.replication.set_record import Member, ReplicaInfo, SetRecord

READ_SECONDS = 5.0  # the record is read this often, even if no news comes
RETRY_SECONDS = 0.2  # between reads while the registry does not answer


class RecordView:
    """The record as far as this replica knows it. One read and one swap at most wait for their answers."""

    def __init__(self) -> None:
        self.record: SetRecord | None = None
        self.revision = -1  # no read has been answered yet
        self._found_revision = 0  # by the last read or swap: below `revision` if the registry went back
        self.replicas: dict[int, ReplicaInfo] = {}
        self.read_at = float("-inf")  # when the last answered read was sent
        self.is_restored = False  # the registry went back to an older revision: a backup, or it was emptied
        self._open_swaps: list[SwapRecord] = []
        self._swap: SwapRecord | None = None  # waits for its answer
        self._read: ReadRecord | None = None  # waits for its answer
        self._read_sent = float("-inf")
        self._must_read = True
        self._numbers = 0

    @property
    def is_known(self) -> bool:
        return self.revision >= 0

    @property
    def is_waiting(self) -> bool:
        """Whether a read or a swap waits for its answer, or the record has to be read first."""
        return self._read is not None or self._swap is not None or self._must_read

    @property
    def has_open_swaps(self) -> bool:
        """Whether a swap that got no answer may still happen: the next swap, of any content, makes it impossible."""
        return bool(self._open_swaps)

    def possible_members(self) -> frozenset[Member]:
        """Return the in-sync replicas of all records that the registry may hold now."""
        members = set(self.record.in_sync if self.record else ())
        for swap in self._open_swaps:
            members.update(swap.record.in_sync)
        return frozenset(members)

    def request_read(self) -> None:
        """Have the record read at the next `next_read`."""
        self._must_read = True

    def next_read(self, now: float) -> ReadRecord | None:
        """Return the read that is due, if any."""
        if self._read is not None or self._swap is not None:
            return None
        waited = now - self._read_sent
        if not ((self._must_read and waited >= RETRY_SECONDS) or waited >= READ_SECONDS or waited < 0):
            return None
        return self.read_now(now)

    def read_now(self, now: float) -> ReadRecord | None:
        """Return a read that does not wait for the pause between two reads; None if one waits for its answer."""
        if self._read is not None or self._swap is not None:
            return None
        self._numbers += 1
        self._read = ReadRecord(self._numbers)
        self._read_sent = now
        return self._read

    def read_answered(self, number: int, reading: Reading) -> bool:
        """Take the answer of a read. Return False if it is late, or older than what is known."""
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
        """Note that a read got no answer."""
        if self._read is not None and self._read.number == number:
            self._read = None
            self._must_read = True

    def swap(self, record: SetRecord) -> SwapRecord:
        """Return the swap of the known record for this one. It is open from now on."""
        self._numbers += 1
        swap = SwapRecord(self._numbers, self._found_revision, record)
        self._swap = swap
        self._open_swaps.append(swap)
        return swap

    def swap_done(self, number: int, revision: int) -> SwapRecord | None:
        """Take the answer that a swap has happened. Return the swap; None if the answer is late."""
        swap = self._answered(number)
        if swap is not None and (revision > self.revision or self.is_restored):
            self.is_restored = False
            self._found_revision = revision
            self._learn(swap.record, revision)
        return swap

    def swap_failed(self, number: int) -> None:
        """Note a conflict, or that a swap got no answer. Only a later revision tells what the record is now."""
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
        """Whether a record of a restored registry has been replaced by one that goes on from ours."""
        return reading.record is not None and self.record is not None and reading.record.epoch > self.record.epoch
