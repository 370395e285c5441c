"""How a follower begins to take a master's log: from which offset, or what it has to cut off first.

Two replicas have the same bytes up to the end of the last epoch that both know. An epoch ends where the next one
starts, or at the log's end; the smaller of the two ends counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pyromq.broker.replication.replica_port import EpochNotes, ReplicaLog
from pyromq.broker.replication.replica_stream import EpochLine, FrameRequest, Hello


class CommonPoint(NamedTuple):
    """Up to `end` two logs have the same bytes. `epoch` is the last epoch that both replicas know."""

    epoch: int
    end: int


@dataclass(frozen=True, slots=True)
class MustCut:
    """The follower's log and epoch lines go on beyond the common point."""

    point: CommonPoint


@dataclass(frozen=True, slots=True)
class MustReplace:
    """The follower's log has nothing that the master's log begins with or still holds."""

    reason: str


@dataclass(frozen=True, slots=True)
class MustStop:
    """Only an operator can decide what becomes of the follower's log."""

    reason: str


def common_point(
    mine: Sequence[EpochLine], my_end: int, theirs: Sequence[EpochLine], their_end: int
) -> CommonPoint | None:
    """Return how far two logs are equal; None if the replicas have no epoch in common."""
    common = set(mine) & set(theirs)
    if not common:
        return None
    last = max(common)
    return CommonPoint(last.epoch, min(end_of_epoch(last, mine, my_end), end_of_epoch(last, theirs, their_end)))


def end_of_epoch(line: EpochLine, lines: Sequence[EpochLine], log_end: int) -> int:
    """Return where an epoch ends in a log: at the start of the next epoch, or at the log's end if that comes first."""
    return min([log_end, *(other.start for other in lines if other.epoch > line.epoch)])


def first_step(log: ReplicaLog, epochs: EpochNotes, hello: Hello) -> FrameRequest | MustCut | MustReplace | MustStop:
    """Return what a follower does next, as the master with this hello has the log."""
    lines = epochs.lines
    is_empty = log.end == log.first
    if not lines and not is_empty:
        text = f"the folder has a log of {log.end - log.first} bytes that is not of the set {hello.set_name}"
        return MustStop(f"{text}: a replica joins a set with an empty folder")
    if is_empty and log.end != hello.first:
        return MustReplace(f"the log is empty at {log.end}, the master's log begins at {hello.first}")
    point = common_point(lines, log.end, hello.lines, hello.end)
    if point is None and is_empty:
        point = CommonPoint(0, log.end)
    if point is None:
        return MustReplace("no epoch in common with the master")
    if point.end < hello.first:
        return MustReplace(f"equal up to {point.end}, the master's log begins at {hello.first}")
    if point.end < log.written_end or any(line.epoch > point.epoch for line in lines):
        return MustCut(point)
    return FrameRequest(hello.epoch, log.end, log.last_mark())


def lines_until(hello_lines: Sequence[EpochLine], mine: Sequence[EpochLine], end: int) -> list[EpochLine]:
    """Return the master's lines that a follower must note before it appends at `end`."""
    last = mine[-1].epoch if mine else 0
    return [line for line in hello_lines if line.epoch > last and line.start <= end]


def next_start(hello_lines: Sequence[EpochLine], end: int) -> int | None:
    """Return where the next epoch of the master's lines starts behind `end`."""
    return min((line.start for line in hello_lines if line.start > end), default=None)
