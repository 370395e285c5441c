"""The state of a replica set as one replica knows it, for administrators and for the broker's runtime figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq.broker.replication.operating.set_watch import longest_end
from pyromq.broker.replication.peers import Peer
from pyromq.broker.replication.set_record import Member, SetRecord
from pyromq.remoting.bodies import AcceptedLoss, InSyncReplica, ReplicaSetStatus, ReplicaState

if TYPE_CHECKING:
    from pyromq.broker.replication.replica_server import ReplicaServer


def status_of(server: ReplicaServer, now: float) -> ReplicaSetStatus:
    """Return the state of the set at time `now` of the replica's clock."""
    replica = server.replica
    record = replica.view.record
    return ReplicaSetStatus(
        set_name=server.config.name,
        number=server.number,
        incarnation=server.identity.incarnation,
        is_master=replica.is_master,
        epoch=replica.epoch,
        end=replica.log.end,
        confirmed_end=replica.log.confirmed_end,
        min_in_sync=replica.config.settings.min_in_sync,
        record_epoch=record.epoch if record else 0,
        master=record.master if record else None,
        in_sync=_listed(record.in_sync) if record else [],
        preferred=record.preferred if record else None,
        losses=_losses(record) if record else [],
        replicas=_replicas(server, record, now),
        refusal=server.refusal if replica.is_master else "",
        trouble=server.trouble,
        etcd_seconds=round(server.registry_seconds(now), 3),
        now_ms=server.clock.now_ms(),
    )


def figures_of(server: ReplicaServer, now: float) -> dict[str, str]:
    """Return the entries that a replica adds to the broker's runtime figures."""
    status = status_of(server, now)
    listed = ",".join(str(each.number) for each in status.in_sync)
    behind = "; ".join(f"{each.number} {each.lag_bytes}" for each in status.replicas if each.lag_bytes is not None)
    return {
        "pyromqReplica": str(status.number),
        "pyromqReplicaEpoch": str(status.epoch),
        "pyromqReplicasInSync": listed,
        "pyromqReplicasBehind": behind,
        "pyromqConfirmedEnd": str(status.confirmed_end),
        **({"pyromqReplicaTrouble": status.trouble} if status.trouble else {}),
        **({"pyromqReplicaRefusal": status.refusal} if status.refusal else {}),
    }


def _replicas(server: ReplicaServer, record: SetRecord | None, now: float) -> list[ReplicaState]:
    peers = {peer.number: peer for peer in server.replica.peers.all()}
    numbers = sorted({server.number, *peers})
    return [_replica(server, number, peers.get(number), record=record, now=now) for number in numbers]


def _replica(
    server: ReplicaServer, number: int, peer: Peer | None, *, record: SetRecord | None, now: float
) -> ReplicaState:
    """Return the state of one replica; without `peer`, of the answering replica itself."""
    replica, watch = server.replica, server.watch
    info = replica.view.replicas.get(number)
    if peer is None:
        end: int | None = replica.log.end
        incarnation: int | None = server.identity.incarnation
    else:
        end = peer.end if peer.hello is not None else info.end if info is not None else None
        incarnation = peer.hello.incarnation if peer.hello else info.incarnation if info else None
    is_in_sync = record is not None and incarnation is not None and Member(number, incarnation) in record.in_sync
    return ReplicaState(
        number=number,
        incarnation=incarnation,
        address=server.broker.address if peer is None else info.address if info else None,
        version=info.version if info else None,
        is_master=record is not None and record.master == number,
        is_connected=peer is None or peer.is_connected,
        is_in_sync=is_in_sync,
        end=end,
        lag_bytes=None if end is None else max(0, longest_end(replica) - end),
        lag_seconds=None if end is None else round(watch.lag_seconds(now, end), 3),
        since_ms=watch.since_ms(number),
    )


def _losses(record: SetRecord) -> list[AcceptedLoss]:
    return [
        AcceptedLoss(loss.epoch, loss.master, loss.end, _listed(loss.in_sync), loss.reason) for loss in record.losses
    ]


def _listed(members: tuple[Member, ...]) -> list[InSyncReplica]:
    return [InSyncReplica(member.number, member.incarnation) for member in members]
