"""The registry of replica sets: a small key-value store with compare-and-swap, leases and watches.

This module knows no engine. `etcd.py` is the registry on etcd; tests have a simulated registry.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Versioned:
    """The value of a key, and the registry's revision at which the value was written.

    An absent key has the value None and revision 0.
    """

    value: bytes | None
    revision: int


ABSENT = Versioned(None, 0)


@dataclass(frozen=True, slots=True)
class Listing:
    """All keys below a prefix, as they were together at one revision of the registry."""

    entries: dict[str, Versioned]
    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """A swap was refused, for ever: the key had another revision. `found` is what the key had at that moment."""

    found: Versioned


@dataclass(frozen=True, slots=True)
class Unknown:
    """A swap got no answer: it may have happened, may still happen, or may never happen."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the registry last granted or renewed it. `seconds` is 0 if the registry does not know the lease.

    The time counts from `sent`, when the request left this machine, in seconds of `CLOCK_BOOTTIME`: the registry's
    own count began later.
    """

    id: int
    seconds: float
    sent: float

    @property
    def ends(self) -> float:
        """When the lease ends at the earliest, in seconds of `CLOCK_BOOTTIME`."""
        return self.sent + self.seconds


@dataclass(frozen=True, slots=True)
class Changed:
    """News of a watch: a key was written, or deleted (`now.value` is None, `now.revision` that of the deletion)."""

    key: str
    now: Versioned


@dataclass(frozen=True, slots=True)
class Missed:
    """News of a watch: changes up to and including `revision` may be missing, so the keys must be read."""

    revision: int


class Registry(Protocol):
    """What replica sets need of a consensus engine. All methods but `swap` raise `RegistryUnavailable` if no endpoint
    answers, and all raise `RegistryRefused` if the registry refuses this client or its request.
    """

    async def read(self, key: str) -> Versioned:
        """Return the newest value of a key, also when an endpoint lies behind the others (linearizable)."""
        ...

    async def read_all(self, prefix: str) -> Listing:
        """Return all keys that begin with a prefix (linearizable)."""
        ...

    async def swap(
        self, key: str, revision: int, value: bytes | None, *, lease: int | None = None
    ) -> int | Conflict | Unknown:
        """Write a key if it still has this revision (0: if it is absent). None deletes the key.

        Return the revision of the write. With a lease, the key is deleted when the lease ends. The request is never
        sent a second time. Raises `LeaseGone` if the registry does not know the lease; nothing was written then.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changed | Missed]:
        """Yield changes of keys that begin with a prefix, in order, from the first revision behind `after`.

        The watch goes on by itself when an endpoint fails. A watch is only news: what decides must be read.
        """
        ...

    async def lease(self, seconds: float) -> Lease:
        """Grant a lease of at least this many seconds."""
        ...

    async def keep(self, lease_id: int) -> Lease:
        """Renew a lease. A lease with `seconds` 0 has ended, together with its keys."""
        ...

    async def release(self, lease_id: int) -> None:
        """End a lease and delete its keys. Releasing an ended lease does nothing."""
        ...

    async def close(self) -> None:
        """Close connections. Leases go on until they end."""
        ...
