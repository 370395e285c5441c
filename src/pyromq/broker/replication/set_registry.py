"""The keys of one replica set in the registry: its record, its settings, its replicas and their numbers.

/pyromq/CLUSTER/SET/state        the record, which names the master and the replicas in sync
/pyromq/CLUSTER/SET/settings     the settings that are equal on all replicas
/pyromq/CLUSTER/SET/numbers      the numbers given to replicas, as a JSON list
/pyromq/CLUSTER/SET/replica/N    a running replica; the key ends with the replica's lease
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

import msgspec

from pyromq.broker.replication.registry import Changed, Conflict, Missed, Registry, Unknown, Versioned
from pyromq.broker.replication.replica_actions import Reading
from pyromq.broker.replication.set_record import (
    MAX_REPLICA_NUMBER,
    ReplicaInfo,
    SetRecord,
    SetSettings,
    decode_value,
)
from pyromq.errors import ProtocolError, RegistryUnavailable, UsageError

_PAUSE_SECONDS = 0.2  # time before a compare-and-swap without an answer is checked and repeated
_ROOT = "/pyromq"

T = TypeVar("T")


class SetRegistry:
    """Reads and writes the keys of one replica set in a registry. All methods raise the errors of `Registry`."""

    def __init__(self, registry: Registry, cluster: str, set_name: str) -> None:
        self._registry = registry
        self._prefix = f"{_ROOT}/{cluster}/{set_name}/"
        self._set_name = set_name
        self._info_revision = 0  # revision of the last write of `replica/N`
        self._settings: SetSettings | None = None  # the settings that the set has agreed on

    def watch(self, after: int) -> AsyncIterator[Changed | Missed]:
        """Yield changes of the set's keys later than the registry's revision `after`. Changes may be reported late."""
        return self._registry.watch(self._prefix, after)

    def is_news(self, change: Changed | Missed, replicas: dict[int, ReplicaInfo]) -> bool:
        """Whether the set's record may have changed, or a registration is new, ended, or of another process.

        `replicas` are the known registrations. Each replica writes its log's end once a second, which is no news.
        """
        if isinstance(change, Missed) or change.key == self._key("state"):
            return True
        if not change.key.startswith(self._key("replica/")):
            return False
        info = self._decode(ReplicaInfo, change.key.removeprefix(self._prefix), change.now)
        known = None if info is None else replicas.get(info.number)
        if info is None or known is None:
            return True
        return (known.incarnation, known.address, known.ha_address) != (info.incarnation, info.address, info.ha_address)

    async def read(self) -> tuple[Reading, int]:
        """Return the set's record with the registered replicas, and the registry's revision."""
        found = await self._registry.read_all(self._prefix)
        state = found.entries.get(self._key("state"))
        record = self._decode(SetRecord, "state", state) if state is not None else None
        replicas = {
            info.number: info
            for key, entry in found.entries.items()
            if key.startswith(self._key("replica/"))
            and (info := self._decode(ReplicaInfo, key.removeprefix(self._prefix), entry)) is not None
        }
        return Reading(record, 0 if state is None else state.revision, replicas), found.revision

    async def swap(self, revision: int, record: SetRecord) -> int | Conflict | Unknown:
        """Write the set's record if its key still has this revision. The request is sent once, without a retry."""
        return await self._registry.swap(self._key("state"), revision, msgspec.json.encode(record))

    async def agree(self, settings: SetSettings) -> None:
        """Write these settings for a new set. Raises `UsageError` if the set already has other settings."""
        while True:
            found = await self._registry.read(self._key("settings"))
            noted = self._decode(SetSettings, "settings", found)
            if noted is not None:
                break
            if isinstance(await self._registry.swap(self._key("settings"), 0, msgspec.json.encode(settings)), int):
                noted = settings
                break
            await asyncio.sleep(_PAUSE_SECONDS)
        if (difference := settings.difference(noted)) is not None:
            raise UsageError(
                f"the replica set {self._set_name} has other settings: {difference}; start every replica of a set with"
                " equal settings"
            )
        self._settings = settings

    async def claim_number(self, wanted: int | None) -> int:
        """Reserve a number for a replica with a new folder: `wanted`, or the lowest number that was never given."""
        key = self._key("numbers")
        while True:
            found = await self._registry.read(key)
            given = set(self._numbers(found))
            number = wanted or min(set(range(1, MAX_REPLICA_NUMBER + 1)) - given, default=0)
            if not number:
                raise UsageError(f"the replica set {self._set_name} has given all numbers up to {MAX_REPLICA_NUMBER}")
            if number in given:
                return number
            answer = await self._registry.swap(key, found.revision, msgspec.json.encode(sorted(given | {number})))
            if isinstance(answer, int):
                return number
            await asyncio.sleep(_PAUSE_SECONDS)

    async def register(self, info: ReplicaInfo, lease: int) -> None:
        """Write the registration of this replica, under its lease.

        Raises `UsageError` if another process is registered with this number: a copied folder, or two sets of one name.
        """
        key = self._key(f"replica/{info.number}")
        answer = await self._registry.swap(key, self._info_revision, msgspec.json.encode(info), lease=lease)
        if isinstance(answer, int):
            self._info_revision = answer
            return
        if isinstance(answer, Unknown):
            raise RegistryUnavailable(answer.reason)
        other = self._decode(ReplicaInfo, f"replica/{info.number}", answer.found)
        if other is not None and (other.incarnation, other.address) != (info.incarnation, info.address):
            what = "a copy of this data folder" if other.incarnation == info.incarnation else "another replica"
            raise ReplicaNumberTaken(
                f"replica {info.number} of the set {self._set_name} runs at {other.address} already, with {what}: give"
                " each replica a folder and a replicaId of its own, and each set a brokerName of its own"
            )
        is_gone = answer.found.value is None  # the lease has ended, or the registry was emptied
        self._info_revision = 0 if is_gone else answer.found.revision
        if is_gone and self._settings is not None:
            await self.agree(self._settings)
        await self.register(info, lease)

    def _key(self, name: str) -> str:
        return self._prefix + name

    def _numbers(self, found: Versioned) -> list[int]:
        if found.value is None:
            return []
        try:
            return msgspec.json.decode(found.value, type=list[int])
        except msgspec.DecodeError as error:
            raise ProtocolError(f"the registry's value of {self._key('numbers')} is not a list: {error}") from error

    def _decode(self, kind: type[T], name: str, found: Versioned) -> T | None:
        return None if found.value is None else decode_value(kind, found.value, self._key(name))


class ReplicaNumberTaken(UsageError):
    """Another process runs as this replica of the set. Its registration ends with its lease."""
