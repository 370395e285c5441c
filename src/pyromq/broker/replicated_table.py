"""The description of a broker's table that a replica set copies to its followers: name, version, and JSON content.

The module with the table makes a `ReplicatedTable`. `replication/tables` sends and receives all such tables.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedTable:
    """One table. `version` returns another value after each change.

    `encode(since)` returns the changes since an earlier version as JSON; None: the whole table. `adopt(data)` applies
    JSON from the master. Its future completes when the content is on disk; None: it is already, or is never on disk.
    """

    name: str
    version: Callable[[], Hashable]
    encode: Callable[[Hashable | None], bytes]
    adopt: Callable[[bytes], Future[None] | None]
    # Whether a change counts only when all required replicas have it on disk. Such a change precedes later records.
    is_confirmed: bool = False
    # Whether a follower adopts the content only when its log has reached the master's log end at the time of copying.
    waits_for_log: bool = False
    seconds: float = 0.0  # shortest time between two copies


class ChangedKeys:
    """Remembers the version at which each key of a table last changed. The version counts changes."""

    def __init__(self) -> None:
        self.version = 0
        self._changed_at: dict[str, int] = {}  # in the order of the last changes

    def note(self, key: str) -> None:
        """Raise the version, because the content of a key has changed."""
        self.version += 1
        self._changed_at.pop(key, None)
        self._changed_at[key] = self.version

    def since(self, version: int) -> list[str]:
        """Return the keys that have changed since a version."""
        keys = []
        for key, changed_at in reversed(self._changed_at.items()):
            if changed_at <= version:
                break
            keys.append(key)
        return keys
