"""The actions that methods of `Replica` return. `ReplicaServer` carries them out in their order.

A *link* is one connection between two replicas. Each replica dials each other replica, so a pair has two links. Frames
of the log flow from the dialled replica to the replica that dialled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from pyromq.broker.replication.replica_stream import FrameRequest, Hello, Report
from pyromq.broker.replication.set_record import ReplicaInfo, SetRecord


class Link(NamedTuple):
    """A connection with the replica `number`. `is_ours`: this replica has dialled the connection."""

    number: int
    is_ours: bool


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of one read of the registry: the set's record, the revision of its key, and the running replicas.

    If the key is absent, `record` is None and `revision` 0. `replicas` has the replicas with a lease, by number.
    """

    record: SetRecord | None
    revision: int
    replicas: dict[int, ReplicaInfo]


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """Read the set's record and the registered replicas together. Result: `record_read` or `read_failed`."""

    number: int


@dataclass(frozen=True, slots=True)
class SwapRecord:
    """Write the set's record if its key still has this revision (0: if the key is absent), without any retry.

    Result: `swap_done` or `swap_failed` with this number.
    """

    number: int
    revision: int
    record: SetRecord


@dataclass(frozen=True, slots=True)
class Dial:
    """Connect to the replication port of a replica, without a retry. Result: `connected`, `refused` or `disconnected`.

    `refused` means that the replication port and the main port both refuse connections.
    """

    number: int


@dataclass(frozen=True, slots=True)
class CloseLink:
    """Send the reason as a `Refusal` unless it is empty, and close the connection. This action has no result."""

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
    """Send the log from `start` on, as it grows, in frames of this epoch to a follower that has dialled this replica.

    The sending ends when the link is closed. Each frame has the confirmed end at the time it is sent. If the confirmed
    end rises and no frame follows, an empty frame carries it to the follower. All links that other replicas have
    dialled get a heartbeat every `HEARTBEAT_SECONDS`: a frame without bytes, with the promised epoch and the log's end.
    """

    number: int
    epoch: int
    start: int


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Act on a higher confirmed end, for example send replies. `ReplicaLog.confirm` has been called."""

    end: int


@dataclass(frozen=True, slots=True)
class BecomeMaster:
    """Make the broker the master. The epoch is on disk, and the log ends with a whole record."""

    epoch: int


@dataclass(frozen=True, slots=True)
class FollowMaster:
    """Make the broker a follower of this master of this epoch, with its tables and background tasks."""

    number: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Serve:
    """From now on refuse sends, or all requests that only a master may answer, with these texts. None: serve them."""

    sends_refused: str | None
    master_refused: str | None


@dataclass(frozen=True, slots=True)
class StepDown:
    """Answer the unconfirmed sends with code 14, and restart the broker as a follower with a new `Replica`.

    `master` is the number of the new master, if it is known. This replica object returns no more actions.
    """

    master: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class CutLog:
    """Close the broker, cut the log to `end` to follow the master of `epoch`, and open it with a new `Replica`.

    The cut bytes are kept. The log must not be cut before `confirmed`, the confirmed end that this replica knows.
    `confirmed` is 0 if the set's record says that confirmed records may be lost. This object returns no more actions.
    """

    end: int
    epoch: int
    confirmed: int


@dataclass(frozen=True, slots=True)
class ReplaceLog:
    """Close the broker, move its log into the folder `cut`, and open it with an empty log and a new incarnation.

    The empty log begins at log offset `first`. The promised epoch stays. This object returns no more actions.
    """

    first: int
    reason: str


@dataclass(frozen=True, slots=True)
class AskOperator:
    """Log, and show in `pyromq doctor`, why the set needs an operator. None: the trouble is over."""

    text: str | None


@dataclass(frozen=True, slots=True)
class StopReplica:
    """Stop the process with this error. This replica object returns no more actions."""

    reason: str


@dataclass(frozen=True, slots=True)
class HandedOver:
    """Report that a planned failover failed, with the reason. A successful one ends with a `StepDown`."""

    reason: str


@dataclass(frozen=True, slots=True)
class MayLeave:
    """Let a stop continue: the replica has left the in-sync list, or has waited `LEAVE_SECONDS` for that."""


Action = (
    ReadRecord | SwapRecord | Dial | CloseLink | SendHello | SendRequest | SendReport | Feed | Confirmed | BecomeMaster
    | FollowMaster | Serve | StepDown | CutLog | ReplaceLog | AskOperator | StopReplica | HandedOver | MayLeave
)  # fmt: skip
Actions = list[Action]
