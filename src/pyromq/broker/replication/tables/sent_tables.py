"""The tables of a master, as they are sent to its followers. No sockets here.

A table that must be confirmed is sent before any record that was appended after its change. A change counts when all
required replicas have the table on disk.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import NamedTuple

from pyromq.broker.replicated_table import ReplicatedTable
from pyromq.broker.replication.replica_stream import MAX_FRAME_BYTES, TablePiece, TableStored
from pyromq.errors import BrokerError, MQError, ResponseCode


class _Content(NamedTuple):
    """A version of a table. `number` counts the versions of all tables; messages of the stream name this number."""

    version: Hashable
    number: int


@dataclass(slots=True)
class SentToFollower:
    """The last version of each table that was sent on one follower's connection, and the time of sending."""

    versions: dict[str, Hashable] = field(default_factory=dict)
    times: dict[str, float] = field(default_factory=dict)


class _Wait(NamedTuple):
    numbers: dict[str, int]  # table -> number that the replicas must have on disk
    since: float
    kept: Future[None]


class SentTables:
    """The tables of one master.

    `holders()` returns the numbers of the other replicas that must have a change on disk; a string is the reason why no
    change can be confirmed now. `wake` is called when a change must be sent.
    """

    def __init__(
        self,
        tables: Sequence[ReplicatedTable],
        *,
        holders: Callable[[], frozenset[int] | str],
        wake: Callable[[], object],
        now: Callable[[], float],
        timeout_seconds: float,
    ) -> None:
        self._tables = tables
        self._confirmed = [table for table in tables if table.is_confirmed]
        self._holders = holders
        self._wake = wake
        self._now = now
        self._timeout_seconds = timeout_seconds
        self._contents: dict[str, _Content] = {}
        self._encoded: dict[str, tuple[Hashable, bytes]] = {}  # whole contents of confirmed tables, for all followers
        self._count = 0
        self._stored: dict[int, dict[str, int]] = {}  # replica -> table -> number that it has on disk
        self._waits: deque[_Wait] = deque()

    # -- sending

    def due(self, sent: SentToFollower, end: int, *, is_near: bool, now: float) -> list[TablePiece]:
        """Return the changed tables that must now be sent to a follower, in pieces. `end` is the end of the log here.

        A follower that is not near the end of the log gets only tables that must be confirmed.
        """
        pieces: list[TablePiece] = []
        for table in self._tables if is_near else self._confirmed:
            version = table.version()
            if table.name in sent.versions and (
                sent.versions[table.name] == version or now - sent.times[table.name] < table.seconds
            ):
                continue
            number = self._number(table, version)
            data = self._content(table, version, sent.versions.get(table.name))
            sent.versions[table.name], sent.times[table.name] = version, now
            starts = range(0, len(data), MAX_FRAME_BYTES)
            pieces += [
                TablePiece(table.name, number, end, start == starts[-1], data[start : start + MAX_FRAME_BYTES])
                for start in starts
            ]
        return pieces

    def _number(self, table: ReplicatedTable, version: Hashable) -> int:
        known = self._contents.get(table.name)
        if known is None or known.version != version:
            self._count += 1
            known = self._contents[table.name] = _Content(version, self._count)
        return known.number

    def _content(self, table: ReplicatedTable, version: Hashable, since: Hashable | None) -> bytes:
        if not table.is_confirmed:
            return table.encode(since)
        known = self._encoded.get(table.name)
        if known is None or known[0] != version:
            known = self._encoded[table.name] = version, table.encode(None)
        return known[1]

    # -- confirmation

    def fed(self, replica: int) -> None:
        """Mark a newly connected follower as having no table on disk. The replica gets all tables."""
        self._stored[replica] = {}

    def stored(self, replica: int, message: TableStored) -> None:
        """Store that a follower has a version of a table on disk, and complete the futures that waited for it."""
        numbers = self._stored.setdefault(replica, {})
        numbers[message.name] = max(message.version, numbers.get(message.name, 0))
        self.check()

    def when_stored(self) -> Future[None]:
        """Return a future that completes when the required replicas have the present tables on disk.

        The future fails with a `BrokerError` if that takes too long, or if this broker is no longer the master.
        """
        numbers = {table.name: self._number(table, table.version()) for table in self._confirmed}
        wait = _Wait(numbers, self._now(), Future())
        self._waits.append(wait)
        self._wake()
        self.check()
        return wait.kept

    def check(self) -> None:
        """Complete the futures whose tables are stored or whose time is over. Must be called several times a second."""
        while self._waits:
            wait = self._waits[0]
            reason = self._reason(wait)
            if reason and self._now() - wait.since < self._timeout_seconds:
                return
            self._waits.popleft()
            if reason:
                text = "the change is in force and on the master's disk, but not confirmed within"
                code = ResponseCode.FLUSH_SLAVE_TIMEOUT
                wait.kept.set_exception(BrokerError(f"{text} {self._timeout_seconds:g} s: {reason}", code))
            else:
                wait.kept.set_result(None)

    def _reason(self, wait: _Wait) -> str:
        """Return the reason why a change is not confirmed yet; "" if it is."""
        holders = self._holders()
        if isinstance(holders, str):
            return holders
        missing = sorted(replica for replica in holders if self._lacks(replica, wait.numbers))
        return f"replica {', '.join(map(str, missing))} has not stored it" if missing else ""

    def _lacks(self, replica: int, numbers: dict[str, int]) -> bool:
        stored = self._stored.get(replica, {})
        return any(stored.get(name, 0) < number for name, number in numbers.items())

    def step_down(self, error: MQError) -> None:
        """Fail all futures of `when_stored`: another broker is the master, which may not have the changes."""
        while self._waits:
            self._waits.popleft().kept.set_exception(error)
