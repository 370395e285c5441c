"""How a follower begins to take a master's log: from which offset, or what it has to cut off first."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.broker.replication.replica_port import ReplicaLog
from pyromq.broker.replication.replica_stream import FrameRequest, Hello
from pyromq.store.epoch_file import CommonPoint, EpochFile


@dataclass(frozen=True, slots=True)
class MustCut:
    """The follower's log goes on beyond the point up to which it equals the master's."""

    point: CommonPoint


@dataclass(frozen=True, slots=True)
class MustReplace:
    """The follower's log has nothing that the master's log begins with or still holds."""

    reason: str


@dataclass(frozen=True, slots=True)
class MustStop:
    """Only an operator can decide what becomes of the follower's log."""

    reason: str


@dataclass(frozen=True, slots=True)
class MayFollow:
    """The follower adopts the master's epochs from the common point on, and requests frames."""

    common: CommonPoint | None
    request: FrameRequest


def first_step(log: ReplicaLog, epochs: EpochFile, hello: Hello) -> MayFollow | MustCut | MustReplace | MustStop:
    """Return what a follower does next, as the master with this hello has the log."""
    request = FrameRequest(hello.epoch, log.end, log.last_mark())
    if log.end == log.first:
        if log.end == hello.first:
            return MayFollow(None, request)
        return MustReplace(f"the log is empty at {log.end}, the master's log begins at {hello.first}")
    if not epochs.known(log.end):
        text = f"the folder has a log of {log.end - log.first} bytes that is not of the set {hello.set_name}"
        return MustStop(f"{text}: start this replica with an empty folder, or this broker under another brokerName")
    common = epochs.common_with(hello.lines, (log.end, hello.end))
    if common is None:
        return MustReplace("no epoch in common with the master")
    if common.end < hello.first:
        return MustReplace(f"equal up to {common.end}, the master's log begins at {hello.first}")
    return MustCut(common) if common.end < log.written_end else MayFollow(common, request)
