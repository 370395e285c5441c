"""A registry in memory, with revisions, and leases by the true time. The set carries requests and answers."""

from __future__ import annotations

from collections.abc import Callable

from pyromq.broker.replication.replica_actions import Reading
from pyromq.broker.replication.set_record import ReplicaInfo, SetRecord

LEASE_SECONDS = 3.0


class ModelRegistry:
    """The truth about a set's record. `on_change` is called after each write."""

    def __init__(self, on_change: Callable[[SetRecord | None, SetRecord], None]) -> None:
        self.record: SetRecord | None = None
        self.key_revision = 0
        self.revision = 10
        self.leases: dict[int, tuple[float, ReplicaInfo]] = {}
        self.is_away = False
        self._on_change = on_change

    def read(self, now: float) -> Reading:
        alive = {number: info for number, (end, info) in self.leases.items() if end > now}
        return Reading(self.record, self.key_revision, alive)

    def swap(self, revision: int, record: SetRecord) -> int | None:
        """Write the record if its key has this revision. Return the new revision, or None."""
        if revision != self.key_revision:
            return None
        old = self.record
        self.revision += 1
        self.key_revision = self.revision
        self.record = record
        self._on_change(old, record)
        return self.revision

    def renew(self, now: float, info: ReplicaInfo) -> None:
        self.leases[info.number] = (now + LEASE_SECONDS, info)
