"""Decides the log offset at which a follower begins to copy a master's log, and the cut of the follower's own log."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.broker.replication.replica_port import ReplicaLog
from pyromq.broker.replication.replica_stream import FrameRequest, Hello
from pyromq.store.epoch_file import CommonPoint, EpochFile, common_point


@dataclass(frozen=True, slots=True)
class MustCut:
    """The follower must cut its log: the log has bytes after `point`, up to which it equals the master's log."""

    point: CommonPoint


@dataclass(frozen=True, slots=True)
class MustReplace:
    """The follower must begin with an empty log: its log ends before the master's begins, or they share no epoch."""

    reason: str


@dataclass(frozen=True, slots=True)
class MustStop:
    """The follower must stop with an error: an operator must decide about its log."""

    reason: str


@dataclass(frozen=True, slots=True)
class MayFollow:
    """The follower may copy the log: it adopts the master's epochs after the common point, and sends `request`."""

    common: CommonPoint | None
    request: FrameRequest


def first_step(log: ReplicaLog, epochs: EpochFile, hello: Hello) -> MayFollow | MustCut | MustReplace | MustStop:
    """Compare a follower's log with the master's log as its hello describes it. Return the follower's next step."""
    request = FrameRequest(hello.epoch, log.end, log.last_mark())
    if log.end == log.first:
        if log.end == hello.first:
            return MayFollow(None, request)
        return MustReplace(f"the log is empty at {log.end}, the master's log begins at {hello.first}")
    if not epochs.known(log.end):
        text = f"the folder has a log of {log.end - log.first} bytes that is not of the set {hello.set_name}"
        return MustStop(f"{text}: start this replica with an empty folder, or this broker under another brokerName")
    common = common_point(epochs.lines, hello.lines, log.end, hello.end)
    if common is None:
        return MustReplace("no epoch in common with the master")
    if common.end < hello.first:
        return MustReplace(f"equal up to {common.end}, the master's log begins at {hello.first}")
    return MustCut(common) if common.end < log.written_end else MayFollow(common, request)
