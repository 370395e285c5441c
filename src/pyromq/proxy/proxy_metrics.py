"""The Prometheus metrics of a proxy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from pyromq.metrics.exposition import Exposition, Family, MetricKind, add_server_samples, label_text
from pyromq.proxy.client_table import GrpcClient
from pyromq.proxy.grpc_dispatch import SERVICE, CallCounts
from pyromq.proxy.http2.grpc_status import GrpcCode
from pyromq.proxy.http2.shared_by_connections import SharedByConnections
from pyromq.proxy.proto import definition_pb2 as proto

CALLS = Family(
    "pyromq_proxy_calls_total",
    MetricKind.COUNTER,
    "Answered calls, by method and status of RocketMQ; a status of gRPC has the prefix `grpc:`.",
    ("method", "status"),
)
OPEN_CALLS = Family("pyromq_proxy_open_calls", MetricKind.GAUGE, "Calls without a status yet, Telemetry included.")
CLIENTS = Family("pyromq_proxy_clients", MetricKind.GAUGE, "Known clients, by kind.", ("kind",))
WAITING = Family("pyromq_proxy_waiting_receives", MetricKind.GAUGE, "Receives that wait for messages.")
KEPT = Family(
    "pyromq_proxy_kept_bytes",
    MetricKind.GAUGE,
    "Memory of open calls, their messages in work, and answers that clients have not read.",
    unit="bytes",
)
LATE = Family("pyromq_proxy_late_connections", MetricKind.GAUGE, "Connections with more to do than their share.")
RECEIVED = Family("pyromq_proxy_received_bytes_total", MetricKind.COUNTER, "Bytes from clients.", unit="bytes")
SENT = Family("pyromq_proxy_sent_bytes_total", MetricKind.COUNTER, "Bytes to clients.", unit="bytes")

FAMILIES = (CALLS, OPEN_CALLS, CLIENTS, WAITING, KEPT, LATE, RECEIVED, SENT)


class ProxyMetrics:
    """The metrics of one proxy. The proxy is ready as soon as it listens."""

    def __init__(
        self, address: str, shared: SharedByConnections, counts: CallCounts, clients: Callable[[], Iterable[GrpcClient]]
    ) -> None:
        self._common = label_text(node_type="proxy", node_id=address)
        self._shared = shared
        self._counts = counts
        self._clients = clients

    async def tell(self, exposition: Exposition) -> None:
        shared, common = self._shared, self._common
        add_server_samples(exposition, common, connections=len(shared.connections), refusals=shared.refusals)
        for (path, code), count in sorted(self._counts.items()):
            labels = label_text(method=path.removeprefix(SERVICE), status=_status(code))
            exposition.add(CALLS, f"{common},{labels}", count)
        exposition.add(OPEN_CALLS, common, sum(len(each.streams) for each in shared.connections))
        kinds: Counter[int] = Counter()
        waiting = 0
        for client in self._clients():
            kinds[client.kind] += 1
            waiting += len(client.receives)
        for kind, count in sorted(kinds.items()):
            exposition.add(CLIENTS, f"{common},{label_text(kind=_kind(kind))}", count)
        values = (shared.kept, len(shared.late), shared.received_bytes, shared.sent_bytes)
        for family, value in zip((WAITING, KEPT, LATE, RECEIVED, SENT), (waiting, *values), strict=True):
            exposition.add(family, common, value)

    def faults(self) -> dict[str, str]:
        return {"proxy": ""}


def _status(code: int) -> str:
    if code < proto.OK:
        return f"grpc:{GrpcCode(code).name}"
    return proto.Code.Name(code) if code in proto.Code.values() else str(code)


def _kind(kind: int) -> str:
    return proto.ClientType.Name(kind).lower() if kind in proto.ClientType.values() else "other"
