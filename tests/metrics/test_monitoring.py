"""deploy/monitoring and docs/metrics-list.md: they name metrics that exist, and Prometheus' own tool finds no fault."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.console import console_metrics
from pyromq.console.cluster.cluster_history import ClusterHistory
from pyromq.console.console_metrics import ConsoleMetrics
from pyromq.message import Message
from pyromq.metrics.endpoint import MetricsEndpoint
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.remoting.rejection_log import RejectionLog
from pyromq.testing import FakeClock

from .families import FAMILIES, NAMES, SECTIONS, row
from .scrape import get

ROOT = Path(__file__).parents[2]
MONITORING = ROOT / "deploy" / "monitoring"
PAGE = (ROOT / "docs" / "metrics-list.md").read_text()
_NAME = re.compile(r"\b(?:rocketmq|pyromq|process)_\w+")


def promtool(*arguments, stdin=None):
    """Run Debian's promtool, and return what it complains of."""
    if shutil.which("promtool") is None:
        pytest.skip("promtool is missing: apt-get install prometheus")
    done = subprocess.run(["promtool", *map(str, arguments)], input=stdin, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr or f"exit code {done.returncode}"


def queries():
    """All expressions of the dashboard, those behind its variables included."""
    board = json.loads((MONITORING / "grafana-dashboard.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return shown, [each["definition"] for each in board["templating"]["list"] if "definition" in each]


def test_the_dashboard_asks_for_metrics_that_exist():
    shown, variables = queries()

    assert len(shown) > 20
    for query in shown + variables:
        assert (names := set(_NAME.findall(query)))
        assert names <= NAMES, query


def test_the_dashboard_shows_the_metrics_of_replica_sets():
    shown = " ".join(queries()[0])
    missing = {name for name in NAMES if name.startswith("pyromq_replica")} - set(_NAME.findall(shown))
    assert missing == {"pyromq_replica_confirmed_end", "pyromq_replica_connected", "pyromq_replica_swaps_total"}


def test_labels_of_the_dashboard_are_those_of_its_metrics():
    common = {"cluster", "node_type", "node_id", "job", "instance"}
    labels = {family.name: common | set(family.labels) for family in FAMILIES}
    for query in queries()[0]:
        for name, matchers in re.findall(r"((?:rocketmq|pyromq|process)_\w+)\{([^}]*)\}", query):
            assert set(re.findall(r"(\w+)=", matchers)) <= labels[name], query
        for grouped in re.findall(r"by \(([^)]*)\)", query):
            known = set().union(*(labels[name] for name in _NAME.findall(query)))
            assert set(grouped.split(", ")) <= known, query


def test_alerts_ask_for_metrics_that_exist():
    text = (MONITORING / "alerts.yml").read_text()
    names = set(re.findall(r"\b(?:rocketmq|pyromq)_\w+", text))

    assert len(names) >= 8
    assert names <= NAMES


def test_promtool_takes_rules_and_settings():
    assert promtool("check", "rules", MONITORING / "alerts.yml") == ""
    assert promtool("check", "config", MONITORING / "prometheus.yml") == ""


def test_promtool_takes_the_queries_of_the_dashboard(tmp_path):
    shown = [query.replace("$__rate_interval", "1m") for query in queries()[0]]
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(shown)]
    file = tmp_path / "rules.json"  # JSON is YAML
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))

    assert promtool("check", "rules", file) == ""


async def test_promtool_takes_a_live_scrape(tmp_path):
    async with NameServer(NameServerConfig(port=0)) as names:
        config = BrokerConfig(tmp_path, port=0, namesrv=(names.address,))
        async with Broker(config) as broker, MetricsEndpoint([names.metrics(), broker.metrics()]) as endpoint:
            await _use(names.address)
            text = (await get(endpoint, "/metrics")).body

    told = set(re.findall(r"# TYPE (\w+)", text))
    assert told <= NAMES
    assert {"rocketmq_messages_in_total", "rocketmq_consumer_lag_messages", "pyromq_consumer_queue_lag_seconds"} <= told
    assert promtool("check", "metrics", stdin=text) == ""


async def _use(namesrv):
    from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
    from pyromq.client.consumer.pull.lite_pull_consumer import AsyncPullConsumer
    from pyromq.client.producer.async_producer import AsyncProducer

    async with AsyncProducer("shop", namesrv) as producer:
        await producer.send(Message("orders", b"1"))
    config = ConsumerConfig(consume_from=ConsumeFrom.FIRST)
    async with AsyncPullConsumer("billing", namesrv, config=config) as consumer:
        await consumer.assign(await consumer.queues("orders"))
        assert await consumer.poll(timeout=30)
        await consumer.commit()


async def test_promtool_takes_what_the_console_tells():
    refusals = RejectionLog(FakeClock())
    console = ConsoleMetrics(ClusterHistory(sample_seconds=10), refusals)
    console.note_request("/topics/{name}", 200, 0.02)
    refusals.counts["slowConnections"] += 1
    async with MetricsEndpoint([console]) as endpoint:
        text = (await get(endpoint, "/metrics")).body

    assert {family.name for family in console_metrics.FAMILIES} <= set(re.findall(r"# TYPE (\w+)", text)) <= NAMES
    assert promtool("check", "metrics", stdin=text) == ""


@pytest.mark.parametrize("section", SECTIONS)
def test_the_page_has_every_metric_as_the_code_has_it(section):
    part = PAGE.partition(f"\n### {section}\n")[2].partition("\n#")[0]
    rows = [line for line in part.splitlines() if line.startswith("| `")]

    assert rows == [row(family) for family in SECTIONS[section]]


def test_the_page_has_every_metric_of_clients():
    prometheus_client = pytest.importorskip("prometheus_client")
    from pyromq.client.tracing.prometheus import PrometheusHook

    registry = prometheus_client.CollectorRegistry()
    PrometheusHook(registry)
    part = PAGE.partition("\n## Clients\n")[2].partition("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)`", part, re.MULTILINE))
    assert documented == {
        f"{family.name}_total" if family.type == "counter" else family.name for family in registry.collect()
    }
