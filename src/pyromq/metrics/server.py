"""What every server tells of itself."""

from __future__ import annotations

from pyromq import speedups
from pyromq.metrics.exposition import Exposition, Family, Kind, label_text
from pyromq.remoting.codes import VERSION_NAME
from pyromq.remoting.rejection_log import RejectionLog

INFO = Family("pyromq_info", Kind.GAUGE, "1, with the version and how requests are answered.", ("version", "hot_path"))
CONNECTIONS = Family("pyromq_connections", Kind.GAUGE, "Open connections.")
REFUSED = Family(
    "pyromq_refused_total", Kind.COUNTER, "What was refused, by the setting that limits it, or the reason.", ("reason",)
)

FAMILIES = (INFO, CONNECTIONS, REFUSED)


def tell_info(exposition: Exposition, common: str) -> None:
    """Add which version this is; `common` are the labels that say whose."""
    exposition.add(INFO, f"{common},{label_text(version=VERSION_NAME, hot_path=speedups.hot_path)}", 1)


def tell_server(exposition: Exposition, common: str, *, connections: int, refusals: RejectionLog) -> None:
    """Add what a server has in common with others; `common` are the labels that say which it is."""
    tell_info(exposition, common)
    exposition.add(CONNECTIONS, common, connections)
    for reason, count in sorted(refusals.counts.items()):
        exposition.add(REFUSED, f"{common},{label_text(reason=reason)}", count)
