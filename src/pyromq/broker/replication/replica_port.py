"""The configuration of a `Replica`, and the operations of the store's log that it uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from pyromq.broker.replication.replica_stream import RecordMark
from pyromq.broker.replication.set_record import Member, SetSettings


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """Set, number and incarnation of a replica, and the settings that its decisions use. Times are seconds."""

    cluster: str
    set_name: str
    member: Member
    settings: SetSettings
    sync_flush: bool
    lease_seconds: float = 3.0  # failoverLeaseMillis
    lag_seconds: float = 3.0  # replicaLagMillis: longest lag of an in-sync replica while a send waits for it
    catchup_seconds: float = 15.0  # haMaxTimeSlaveNotCatchup: longest lag of an in-sync replica otherwise


class ReplicaLog(Protocol):
    """The store's log, as `Replica` uses it. All offsets are log offsets. No method waits for a flush."""

    @property
    def first(self) -> int:
        """Log offset of the log's first byte."""
        ...

    @property
    def end(self) -> int:
        """Log offset after the last whole record."""
        ...

    @property
    def written_end(self) -> int:
        """Log offset after the last byte; above `end` while the last record is incomplete."""
        ...

    @property
    def flushed_end(self) -> int: ...

    @property
    def confirmed_end(self) -> int: ...

    def append_bytes(self, offset: int, data: bytes) -> None:
        """Append bytes of a master's log. Raises `StoreError` if `offset` is not `written_end`, or the disk fails."""
        ...

    def confirm(self, end: int) -> None:
        """Make the records up to `end` readable for consumers."""
        ...

    def drop_incomplete(self) -> None:
        """Drop the bytes after the last whole record."""
        ...

    def last_mark(self) -> RecordMark | None:
        """Return the mark of the last whole record; None if the log is empty."""
        ...

    def mark_at(self, offset: int) -> RecordMark | None:
        """Return the mark of the record at an offset; None if no record begins there."""
        ...
