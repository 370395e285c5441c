"""What a replica asks of the process around it. Each event of `Replica` returns actions, to be done in their order.

A *link* is one connection between two replicas. Each replica dials each other one, so a pair has two links: frames flow
from the dialled side to the side that dialled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyromq.broker.replication.replica_stream import FrameRequest, Hello, Report
from pyromq.broker.replication.set_record import ReplicaInfo, SetRecord


class Link(NamedTuple):
    """A connection with the replica `number`. `is_ours`: this replica has dialled it."""

    number: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """What one read of the registry found: the set's record with the revision of its key, and the replicas alive.

    An absent record is None with revision 0. `replicas` has those whose lease the registry holds.
    """

    record: SetRecord | None
    revision: int
    replicas: dict[int, ReplicaInfo]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the record and the registered replicas at once; answer with `record_read`, or `read_failed`."""

    number: int


@dataclass(frozen=True, slots=True)
class SwapRecord:
    """Write the record if its key still has this revision (0: if it is absent), without any retry.

    Answer with `swap_done`, `swap_conflict` or `swap_unknown` and this number.
    """

    number: int
    revision: int
    record: SetRecord


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to the replication port of a replica once; answer with `connected`, `refused` or `disconnected`.

    `refused` means that the replication port and the main port both refuse connections.
    """

    number: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Send the reason as a `Refusal`, if there is one, and close the connection. No event follows."""

    link: Link
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SendHello:
    link: Link
    hello: Hello


@dataclass(frozen=True, slots=True)
class SendRequest:
    """Send a request for frames on the link that this replica has dialled."""

    number: int
    request: FrameRequest


@dataclass(frozen=True, slots=True)
class SendReport:
    """Send a report on the link that this replica has dialled."""

    number: int
    report: Report


@dataclass(frozen=True, slots=True)
class Feed:
    """Send frames of this epoch from `start` on, as the log grows, to a replica that has dialled this one.

    Feeding ends with the link. Each frame carries the log's confirmed end at the time it is sent. A rise of the
    confirmed end is sent at once if no frame follows. Every link that another replica has dialled gets a heartbeat (a
    frame without bytes, with the promised epoch and the log's end) each `HEARTBEAT_SECONDS`, fed or not.
    """

    number: int
    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The log's confirmed end has risen to `end`; `ReplicaLog.confirm` has been called."""

    end: int


@dataclass(frozen=True, slots=True)
class BecomeMaster:
    """Promote the broker. The epoch is promised and noted; the log ends with a whole record."""

    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class FollowMaster:
    """The replica now takes the log from this master of this epoch; its tables and tasks follow it, too."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Serve:
    """From now on refuse sends, or all that only a master may answer, with these texts; None: serve them."""

    sends_refused: str | None
    master_refused: str | None


@dataclass(frozen=True, slots=True)
class StepDown:
    """Answer what waits for confirmation with 14, close the broker, and open it as a follower with a new `Replica`.

    `master` is the number of the new master, if it is known. This replica object returns no more actions.
    """

    master: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class CutLog:
    """Close the broker, cut the log to `end` to follow the master of `epoch`, and open it with a new `Replica`.

    The cut bytes are kept. Nothing before `confirmed` may be cut: all records that this replica knows to be confirmed,
    or 0 if the set's record notes that they may be lost. This replica object returns no more actions.
    """

    end: int
    epoch: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class ReplaceLog:
    """Close the broker, keep its log aside, begin an empty one at `first` under a new incarnation, and open it anew.

    The promise stays. This replica object returns no more actions.
    """

    first: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskOperator:
    """Say aloud that the set cannot go on alone: log it, and show it in `doctor`. None: the trouble is over."""

    text: str | None


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop the process with this error. This replica object returns no more actions."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """A planned failover that was asked for ended without one, for this reason; a `StepDown` is the other outcome."""

    reason: str


@dataclass(frozen=True, slots=True)
class MayLeave:
    """The replica has left the in-sync list, or waited long enough: the process may stop."""


Action = (
    ReadRecord | SwapRecord | Dial | CloseLink | SendHello | SendRequest | SendReport | Feed | Confirmed | BecomeMaster
    | FollowMaster | Serve | StepDown | CutLog | ReplaceLog | AskOperator | StopReplica | HandedOver | MayLeave
)  # fmt: skip
Actions = list[Action]
