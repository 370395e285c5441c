"""The Prometheus metrics of a name server."""

from __future__ import annotations

from collections.abc import Sized

from pyromq.metrics.exposition import Exposition, Family, MetricKind, add_server_samples, label_text
from pyromq.nameserver.routes import RouteTable
from pyromq.remoting.rejection_log import RejectionLog

BROKERS = Family("pyromq_namesrv_brokers", MetricKind.GAUGE, "Brokers that are registered, by address.")
TOPICS = Family("pyromq_namesrv_topics", MetricKind.GAUGE, "Topics that brokers have registered.")

FAMILIES = (BROKERS, TOPICS)


class NameServerMetrics:
    """The metrics of one name server. The server is ready as soon as it listens."""

    def __init__(self, address: str, routes: RouteTable, refusals: RejectionLog, sessions: Sized) -> None:
        self._common = label_text(node_type="nameserver", node_id=address)
        self._routes = routes
        self._refusals = refusals
        self._sessions = sessions

    async def tell(self, exposition: Exposition) -> None:
        add_server_samples(exposition, self._common, connections=len(self._sessions), refusals=self._refusals)
        exposition.add(BROKERS, self._common, len(list(self._routes.addresses())))
        exposition.add(TOPICS, self._common, len(self._routes))

    def faults(self) -> dict[str, str]:
        return {"name server": ""}
