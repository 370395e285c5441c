"""Every metric there is, of servers."""

from pyromq.broker import broker_metrics as broker
from pyromq.broker.replication.operating import replica_metrics
from pyromq.console import console_metrics as console
from pyromq.metrics import endpoint, exposition
from pyromq.nameserver import name_server_metrics
from pyromq.proxy import proxy_metrics

SECTIONS = {
    "Brokers": broker.FAMILIES,
    "Replicas": replica_metrics.FAMILIES,
    "Name servers": name_server_metrics.FAMILIES,
    "The console": console.FAMILIES,
    "The proxy": proxy_metrics.FAMILIES,
    "Every server": exposition.FAMILIES,
    "The process": endpoint.PROCESS_FAMILIES,
    "The scrape": endpoint.SCRAPE_FAMILIES,
}
FAMILIES = [family for section in SECTIONS.values() for family in section]
NAMES = {family.name for family in FAMILIES}


def row(family):
    """Return a metric's line in docs/metrics-list.md."""
    labels = ", ".join(f"`{label}`" for label in family.labels)
    return f"| `{family.name}` | {family.kind.value} | {labels} | {family.unit} | {family.meaning} |"
