"""JSON bodies with the state of a replica set. All of them exist only in pyromq."""

from __future__ import annotations

from msgspec import field

from pyromq.remoting.bodies.body import Body


class InSyncReplica(Body):
    """An entry of a set's in-sync list: a replica's number, and the incarnation of its data folder."""

    number: int
    incarnation: int


class AcceptedLoss(Body):
    """An election of a replica that was not in sync. Confirmed messages after log offset `end` may be lost."""

    epoch: int
    master: int
    end: int
    in_sync: list[InSyncReplica] = field(default_factory=list)
    reason: str = ""


class ReplicaState(Body):
    """One replica, as the answering replica knows it.

    `end` is the log offset after the replica's last record. The lag compares the replica with the longest known log:
    missing bytes, and the seconds since the first missing byte was stored. `since_ms` is the time when `is_in_sync`
    last changed; None if it has not changed since the answering replica started.
    """

    number: int
    incarnation: int | None = None
    address: str | None = None
    version: str | None = None
    is_master: bool = False
    is_connected: bool = False
    is_in_sync: bool = False
    end: int | None = None
    lag_bytes: int | None = None
    lag_seconds: float | None = None
    since_ms: int | None = None


class ReplicaSetStatus(Body):
    """Body of a response: a replica set as the replica `number` knows it.

    `epoch` is the highest epoch that the replica has promised. `record_epoch` to `losses` are the set's record in etcd;
    `record_epoch` is 0 without a record. `refusal` is the reason why the master refuses sends, "" if it takes them.
    `trouble` is the reason why the set cannot elect a master without an administrator. `etcd_seconds` is the time since
    etcd has answered this replica. `now_ms` is the clock of the replica's machine.
    """

    set_name: str
    number: int
    incarnation: int
    is_master: bool
    epoch: int
    end: int
    confirmed_end: int
    min_in_sync: int
    record_epoch: int = 0
    master: int | None = None
    in_sync: list[InSyncReplica] = field(default_factory=list)
    preferred: int | None = None
    losses: list[AcceptedLoss] = field(default_factory=list)
    replicas: list[ReplicaState] = field(default_factory=list)
    refusal: str = ""
    trouble: str | None = None
    etcd_seconds: float = 0.0
    now_ms: int = 0
