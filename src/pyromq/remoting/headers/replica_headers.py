"""Headers of requests to a replica of a set. All of them exist only in pyromq."""

from __future__ import annotations

from pyromq.remoting import bodies
from pyromq.remoting.codes import RequestCode
from pyromq.remoting.header import Header


class ReplicaSetState(Header):
    """Request to a replica for the state of its set, as this replica knows it."""

    code = RequestCode.REPLICA_SET_STATE
    reply_body = bodies.ReplicaSetStatus


class HandOver(Header):
    """Request to the master of a set: make the replica with this number the master, without loss."""

    code = RequestCode.HAND_OVER
    number: int


class AcceptLoss(Header):
    """Request to a replica: become master although confirmed messages may be lost. The set's record keeps `reason`."""

    code = RequestCode.ACCEPT_LOSS
    reason: str
