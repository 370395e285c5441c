"""The record of a replica set in the registry, and the registration of each replica. Plain values, no I/O.

A replica set consists of the brokers with one broker name. The set's record names the master, its epoch, and the
replicas in sync. All replicas obey the record. The record changes only by compare-and-swap on its revision.

    state        {"epoch": 7, "master": 2, "inSync": [[1, 8817], [2, 4403]], "preferred": null, "losses": []}
    replica/N    {"number": 1, "incarnation": 8817, "address": "10.0.0.1:10911", ...}
    settings     {"fileBytes": 1073741824, "minInSync": 2, "unclean": false}
"""

from __future__ import annotations

from typing import NamedTuple, Self, TypeVar

import msgspec

from pyromq.errors import ProtocolError
from pyromq.excerpt import excerpt

MAX_REPLICA_NUMBER = 255  # a replica's number is its broker id in routes; broker ids above belong to slaves

_T = TypeVar("_T")


class Member(NamedTuple):
    """A replica's number and incarnation. A new incarnation may lack log records that an earlier one had reported."""

    number: int
    incarnation: int


class Loss(msgspec.Struct, frozen=True, rename="camel"):
    """The election of a replica that was not in sync. The set's record keeps all of these elections.

    Confirmed messages after log offset `end` may be lost. `in_sync` is the in-sync list before the election.
    """

    epoch: int
    master: int
    end: int
    in_sync: tuple[Member, ...]
    reason: str


class SetRecord(msgspec.Struct, frozen=True, rename="camel"):
    """The master of a set, its epoch, and the replicas in sync.

    `epoch` counts masters. `in_sync` includes the master unless the master has restarted with a new incarnation.
    `preferred` is the number of the replica that is elected before others.
    """

    epoch: int
    master: int | None
    in_sync: tuple[Member, ...]
    preferred: int | None = None
    losses: tuple[Loss, ...] = ()

    def __post_init__(self) -> None:
        numbers = [member.number for member in self.in_sync]
        if self.epoch < 1:
            raise ValueError(f"epoch {self.epoch} is below 1")
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"a replica is twice in the in-sync list {numbers}")
        for number in (*numbers, self.master, self.preferred):
            if number is not None and not 1 <= number <= MAX_REPLICA_NUMBER:
                raise ValueError(f"replica number {number} is not from 1 to {MAX_REPLICA_NUMBER}")

    def is_in_sync(self, member: Member) -> bool:
        return member in self.in_sync

    def with_in_sync(self, members: frozenset[Member]) -> Self:
        """Return the record of the same epoch and master with another in-sync list."""
        return msgspec.structs.replace(self, in_sync=tuple(sorted(members)))


class SetSettings(msgspec.Struct, frozen=True, rename="camel"):
    """The settings that must be equal on all replicas of a set."""

    file_bytes: int
    min_in_sync: int
    unclean: bool

    def difference(self, other: SetSettings) -> str | None:
        """Return the settings that differ, with both values, or None."""
        names = (("file_bytes", "mappedFileSizeCommitLog"), ("min_in_sync", "minInSyncReplicas"))
        pairs = [
            f"{java} is {_java(mine)} here and {_java(theirs)} there"
            for field, java in (*names, ("unclean", "enableElectUncleanMaster"))
            if (mine := getattr(self, field)) != (theirs := getattr(other, field))
        ]
        return ", ".join(pairs) or None


class ReplicaInfo(msgspec.Struct, frozen=True, rename="camel"):
    """The registration of a replica under its lease.

    The registration may be out of date, so it never decides which records are confirmed.

    `address` is host:port of the broker, `ha_address` host:port of the replication stream.
    `end` is the log offset after the last whole record, `last_epoch` the epoch of that record.
    """

    number: int
    incarnation: int
    address: str
    ha_address: str
    version: str
    end: int = 0
    last_epoch: int = 0


def _java(value: object) -> str:
    """Return a setting's value as a properties file has it."""
    return str(value).lower()


def decode_value(kind: type[_T], data: bytes, key: str) -> _T:
    """Return a value of the registry. Raises `ProtocolError` that names the key if the JSON does not fit."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, RecursionError) as error:
        text = f"the registry's value of {key} is not a {kind.__name__}: {excerpt(error)}; it is {excerpt(data)}"
        raise ProtocolError(text) from error
