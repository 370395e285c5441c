"""The metrics of one replica of a set: those of its present broker, and those of the set."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pyromq.broker.replication.operating.set_status import status_of
from pyromq.metrics.exposition import Exposition, Family, MetricKind, label_text

if TYPE_CHECKING:
    from pyromq.broker.broker import Broker
    from pyromq.broker.broker_metrics import BrokerMetrics
    from pyromq.broker.replication.replica_server import ReplicaServer

_GAUGE = MetricKind.GAUGE

IS_MASTER = Family("pyromq_replica_is_master", _GAUGE, "1 if this replica is the master of its set, else 0.")
EPOCH = Family("pyromq_replica_epoch", _GAUGE, "The highest epoch that this replica has promised.")
IN_SYNC = Family("pyromq_replicas_in_sync", _GAUGE, "Replicas in the set's in-sync list, as this replica knows it.")
CONFIRMED_END = Family(
    "pyromq_replica_confirmed_end",
    _GAUGE,
    "Log offset up to which all required replicas have the log, as this replica knows it.",
)
LAG_BYTES = Family(
    "pyromq_replica_lag_bytes",
    _GAUGE,
    "Bytes of the commit log that a replica lacks, by replica, as this replica knows it.",
    ("replica",),
    "bytes",
)
LAG_SECONDS = Family(
    "pyromq_replica_lag_seconds",
    _GAUGE,
    "Time for which a replica has lacked a byte of the commit log, by replica; at most ten minutes are measured.",
    ("replica",),
    "seconds",
)
CONNECTED = Family(
    "pyromq_replica_connected", _GAUGE, "1 if this replica is connected to the other replica, else 0.", ("replica",)
)
NEEDS_OPERATOR = Family(
    "pyromq_replica_needs_operator", _GAUGE, "1 if the set cannot elect a master without an administrator, else 0."
)
ETCD_SECONDS = Family(
    "pyromq_replica_etcd_seconds", _GAUGE, "Time since etcd has answered this replica.", unit="seconds"
)
SWAPS = Family(
    "pyromq_replica_swaps_total",
    MetricKind.COUNTER,
    "Changes of the set's record that this replica has tried to write, by outcome: done, conflict, unknown.",
    ("outcome",),
)

FAMILIES = (
    *(IS_MASTER, EPOCH, IN_SYNC, CONFIRMED_END, LAG_BYTES, LAG_SECONDS, CONNECTED, NEEDS_OPERATOR, ETCD_SECONDS),
    SWAPS,
)


class ReplicaMetrics:
    """A source of metrics that remains the same object when a replica restarts its broker."""

    def __init__(self, server: ReplicaServer, now: Callable[[], float]) -> None:
        self._server = server
        self._now = now
        self._of: tuple[Broker, BrokerMetrics] | None = None

    def faults(self) -> dict[str, str]:
        """Return the faults of the present broker, and why the set has no master."""
        if not self._server.is_open:
            return {"store": "the broker restarts in its process, to follow another master"}
        return self._of_broker().faults() | {"replica set": self._server.trouble or ""}

    async def tell(self, exposition: Exposition) -> None:
        """Add the samples of the broker and the set. Adds nothing while the broker restarts."""
        server = self._server
        if not server.is_open:
            return
        config = server.config
        self._tell_set(exposition, label_text(cluster=config.cluster, node_type="broker", node_id=config.name))
        await self._of_broker().tell(exposition)

    def _of_broker(self) -> BrokerMetrics:
        broker = self._server.broker
        if self._of is None or self._of[0] is not broker:
            self._of = (broker, broker.metrics())
        return self._of[1]

    def _tell_set(self, exposition: Exposition, common: str) -> None:
        status = status_of(self._server, self._now())
        exposition.add(IS_MASTER, common, int(status.is_master))
        exposition.add(EPOCH, common, status.epoch)
        exposition.add(IN_SYNC, common, len(status.in_sync))
        exposition.add(CONFIRMED_END, common, status.confirmed_end)
        exposition.add(NEEDS_OPERATOR, common, int(status.trouble is not None))
        exposition.add(ETCD_SECONDS, common, status.etcd_seconds)
        for each in status.replicas:
            labels = f"{common},{label_text(replica=str(each.number))}"
            exposition.add(CONNECTED, labels, int(each.is_connected))
            if each.lag_bytes is not None and each.lag_seconds is not None:
                exposition.add(LAG_BYTES, labels, each.lag_bytes)
                exposition.add(LAG_SECONDS, labels, each.lag_seconds)
        for outcome, count in self._server.record.swaps.items():
            exposition.add(SWAPS, f"{common},{label_text(outcome=outcome)}", count)
