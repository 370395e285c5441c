"""The registry of replica sets: a small key-value store with compare-and-swap, leases and watches.

This module does not depend on a particular registry. `etcd.py` is the registry on etcd; tests have a simulated
registry.
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
    """All keys that begin with a prefix, with their values at one revision of the registry."""

    entries: dict[str, Versioned]
    revision: int


@dataclass(frozen=True, slots=True)
class Conflict:
    """The result of a compare-and-swap that wrote nothing, because the key had another revision.

    `found` is the key's value and revision at that moment.
    """

    found: Versioned


@dataclass(frozen=True, slots=True)
class Unknown:
    """The result of a compare-and-swap without an answer: the key may have been written, or may still be written."""

    reason: str


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as the registry last granted or renewed it. `seconds` is 0 if the registry does not know the lease.

    `sent` is the time at which the request left this machine, in seconds of `CLOCK_BOOTTIME`. The registry's own count
    of `seconds` begins later.
    """

    id: int
    seconds: float
    sent: float

    @property
    def ends(self) -> float:
        """Earliest time at which the lease may end, in seconds of `CLOCK_BOOTTIME`."""
        return self.sent + self.seconds


@dataclass(frozen=True, slots=True)
class Changed:
    """An event of a watch: a key was written or deleted.

    After a deletion `now.value` is None, and `now.revision` is the revision of the deletion.
    """

    key: str
    now: Versioned


@dataclass(frozen=True, slots=True)
class Missed:
    """An event of a watch: changes up to and including `revision` may be missing, so the caller must read the keys."""

    revision: int


class Registry(Protocol):
    """The operations of a registry.

    All methods except `swap` raise `RegistryUnavailable` if no endpoint answers. All methods raise `RegistryRefused` if
    the registry refuses this client or its request.
    """

    async def read(self, key: str) -> Versioned:
        """Return the newest value of a key (a linearizable read)."""
        ...

    async def read_all(self, prefix: str) -> Listing:
        """Return all keys that begin with a prefix (a linearizable read)."""
        ...

    async def swap(
        self, key: str, revision: int, value: bytes | None, *, lease: int | None = None
    ) -> int | Conflict | Unknown:
        """Compare-and-swap: write a key if it still has this revision (0: if it is absent). None deletes the key.

        Return the revision of the write. With a lease, the key is deleted when the lease ends. The request is never
        sent a second time. Raises `LeaseGone`, and writes nothing, if the registry does not know the lease.
        """
        ...

    def watch(self, prefix: str, after: int) -> AsyncIterator[Changed | Missed]:
        """Yield changes of keys that begin with a prefix, in order, from the first revision later than `after`.

        When an endpoint fails, the watch continues at another. A watch may be late. Read the key before a decision that
        depends on its value.
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
        """Close the connections. Leases last until their time is over."""
        ...
