"""A registry of replica sets in this process, for tests of sets without etcd."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from pyromq.broker.replication.registry import (
    ABSENT,
    Changed,
    Conflict,
    Lease,
    Listing,
    Missed,
    Unknown,
    Versioned,
)
from pyromq.errors import LeaseGone, RegistryUnavailable
from pyromq.platforms import platform

_CHECK_SECONDS = 0.05  # time between two checks for expired leases


@dataclass(slots=True)
class _Granted:
    seconds: float
    ends: float
    keys: set[str] = field(default_factory=set)


class MemoryRegistry:
    """A `Registry` without a server. `is_away` makes the registry unreachable; leases still expire."""

    def __init__(self) -> None:
        self.is_away = False
        self._revision = 0
        self._entries: dict[str, Versioned] = {}
        self._changes: list[Changed] = []  # one for each revision
        self._news = asyncio.Event()
        self._leases: dict[int, _Granted] = {}

    async def read(self, key: str) -> Versioned:
        self._reach()
        return self._entries.get(key, ABSENT)

    async def read_all(self, prefix: str) -> Listing:
        self._reach()
        found = {key: entry for key, entry in self._entries.items() if key.startswith(prefix)}
        return Listing(found, self._revision)

    async def swap(
        self, key: str, revision: int, value: bytes | None, *, lease: int | None = None
    ) -> int | Conflict | Unknown:
        try:
            self._reach()
        except RegistryUnavailable as error:
            return Unknown(str(error))
        found = self._entries.get(key, ABSENT)
        if found.revision != revision:
            return Conflict(found)
        if lease is not None:
            if lease not in self._leases:
                raise LeaseGone(f"lease {lease} has ended")
            self._leases[lease].keys.add(key)
        return self._write(key, value)

    async def watch(self, prefix: str, after: int) -> AsyncIterator[Changed | Missed]:
        at = after
        while True:
            self._reach()
            for change in self._changes[at:]:
                if change.key.startswith(prefix):
                    yield change
            at = len(self._changes)
            news = self._news
            try:
                async with asyncio.timeout(_CHECK_SECONDS):
                    await news.wait()
            except TimeoutError:
                self._end_leases()

    async def lease(self, seconds: float) -> Lease:
        self._reach()
        number = len(self._leases) + 1
        while number in self._leases:
            number += 1
        self._leases[number] = _Granted(seconds, time.monotonic() + seconds)
        return await self.keep(number)

    async def keep(self, lease_id: int) -> Lease:
        self._reach()
        sent, granted = platform.boot_seconds(), self._leases.get(lease_id)
        if granted is None:
            return Lease(lease_id, 0, sent)
        granted.ends = time.monotonic() + granted.seconds
        return Lease(lease_id, granted.seconds, sent)

    async def release(self, lease_id: int) -> None:
        self._reach()
        self._end_lease(lease_id)

    async def close(self) -> None:
        pass

    def _reach(self) -> None:
        self._end_leases()
        if self.is_away:
            raise RegistryUnavailable("the registry is unreachable")

    def _end_leases(self) -> None:
        now = time.monotonic()
        for number in [number for number, granted in self._leases.items() if granted.ends < now]:
            self._end_lease(number)

    def _end_lease(self, number: int) -> None:
        granted = self._leases.pop(number, None)
        for key in granted.keys if granted is not None else ():
            if key in self._entries:
                self._write(key, None)

    def _write(self, key: str, value: bytes | None) -> int:
        self._revision += 1
        written = Versioned(value, self._revision)
        if value is None:
            self._entries.pop(key, None)
        else:
            self._entries[key] = written
        self._changes.append(Changed(key, written))
        self._news.set()
        self._news = asyncio.Event()
        return self._revision
