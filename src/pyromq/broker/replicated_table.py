"""How a table of a broker travels to the other replicas of its set: as a name, a version, and JSON.

The owner of a table declares a `ReplicatedTable`. `replication/tables` sends and takes in all of them alike.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedTable:
    """One table. `version` returns another value after each change.

    `encode(since)` returns what has changed since an earlier version; None: everything. `adopt` takes such a content of
    the master; the future completes when the content is on disk. None: it is on disk already, or is not kept on disk.
    """

    name: str
    version: Callable[[], Hashable]
    encode: Callable[[Hashable | None], bytes]
    adopt: Callable[[bytes], Future[None] | None]
    # Whether a change counts only when all required replicas have it on disk. Such a change precedes later records.
    is_confirmed: bool = False
    # Whether a follower adopts a content only when its log has reached the master's end at that time.
    waits_for_log: bool = False
    seconds: float = 0.0  # least time between two contents


class ChangedKeys:
    """Which keys of a table have changed since a version. The version counts changes."""

    def __init__(self) -> None:
        self.version = 0
        self._changed_at: dict[str, int] = {}  # in the order of the last changes

    def note(self, key: str) -> None:
        """Note that the content of a key has changed."""
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
