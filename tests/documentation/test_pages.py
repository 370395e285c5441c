"""The pages' examples run as they stand there: a page's blocks one after the other, against a cluster of its own."""

import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.waiting import wait_until

from pyromq import Message
from pyromq.clock import SystemClock
from pyromq.testing import BlockingCluster

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# What each page prints; what differs from run to run is left out.
PRINTED = {
    "first-steps.md": ["SendStatus.OK", "b'hello from Python'"],
    "tutorial.md": ["charged 1999 to visa"],
    "how-to/pop-or-push.md": ["resizing cat.png"],
    "how-to/retries.md": ["billed at attempt 2"],
    "how-to/dead-letters.md": ["b'customer 7' GiveUp: no such customer"],
    "how-to/ordering.md": ["[b'open', b'pay in', b'pay out']"],
    "how-to/asyncio.md": ["[b'a book', b'a lamp', b'a pen']", "b'a parcel'"],
    "how-to/from-rabbitmq.md": ["done: resize picture 7"],
    "how-to/from-celery.md": ["cat.png is 300 wide, at attempt 2"],
    "how-to/from-kafka.md": ["N N web b'a book'"],
    "how-to/from-rocketmq-client-python.md": ["ID b'a book'"],
    "how-to/test.md": [],
    "how-to/idempotent-consumers.md": [],
    "how-to/scheduled-work.md": [],
    "delays.md": [],
    "transactions.md": [],
    "batch-transactions.md": ["True"],
}
# A listener prints beside the program, and may receive the message before the send returns: lines are sorted.
ANY_ORDER = {"first-steps.md"}
HERE = {"clients.md", "offset-store.md", "filters.md"}  # a test below runs what they begin, and ends it
# Pages that have a test of their own, and where.
ELSEWHERE = {
    "hooks.md": "tests/test_hooks_page.py",
    "json.md": "tests/test_json_page.py",
    "tls.md": "tests/documentation/test_shell_lines.py",
    "metrics.md": "tests/metrics/test_page_examples.py",
    "spark.md": "tests/spark/test_page_examples.py",
    "spark-reading.md": "tests/spark/test_page_examples.py",
    "spark-streams.md": "tests/spark/test_page_examples.py",
    "spark-writing.md": "tests/spark/test_page_examples.py",
    "spark-jobs.md": "tests/spark/test_page_examples.py",
    "spark-recipes.md": "tests/spark/test_recipes.py",
    "how-to/rocketmq-5-clients.md": "tests/proxy/test_official_client.py",
    "how-to/web-frameworks.md": "tests/documentation/test_web_frameworks.py",
}


def blocks(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    """A cluster by people's clocks, where clients look when they are told nothing; files go to the test's folder."""
    monkeypatch.chdir(tmp_path)
    with BlockingCluster(clock=SystemClock()) as cluster:
        monkeypatch.setenv("NAMESRV_ADDR", cluster.namesrv)
        yield cluster


def run(cluster, examples, names=None):
    """Run examples one after the other, and return what they define."""
    names = {"__name__": "example"} if names is None else names
    for example in examples:
        exec(example.replace("127.0.0.1:9876", cluster.namesrv), names)
    return names


def rows(path, statement):
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def reports():
    """Return the rows of reports that are committed."""
    try:
        return rows("reports.db", "select * from reports")
    except sqlite3.OperationalError:  # no table before the first commit; locked during a commit
        return []


def stored(cluster, topic):
    return sum(status.max_offset for status in cluster.admin().topic_status(topic))


@pytest.mark.parametrize("name", PRINTED)
def test_a_pages_examples_print_what_it_says(name, cluster, capsys):
    names = run(cluster, blocks(name))
    if name == "how-to/test.md":
        names["test_order_is_found"](cluster)
    if name == "how-to/idempotent-consumers.md":
        twice = Message("moves", b"5", keys="order-1")
        names["add"](twice), names["add"](twice)
        names["once"].close()
        assert rows("shop.db", "select total from sums") == [(5,)]
    if name == "how-to/scheduled-work.md":
        try:
            with names["producer"], names["consumer"]:
                for _ in range(2):  # a repeated begin forks no chain
                    names["schedule"](datetime(2026, 11, 23, tzinfo=UTC))
                wait_until(lambda: stored(cluster, "report-times") >= 3)  # the first time twice, this hour once
                wait_until(lambda: len(reports()) == 2)
        finally:
            names["once"].close()
    if name == "tutorial.md":
        names["database"].close()
    if name == "transactions.md":
        assert len(names["paid"]) == 2
        wait_until(lambda: stored(cluster, "orders") == 2)
    if name == "batch-transactions.md":
        wait_until(lambda: stored(cluster, "flights") == 1000)
    printed = re.sub(r"[0-9A-F]{32}", "ID", capsys.readouterr().out)
    lines = re.sub(r"^\d \d ", "N N ", printed).splitlines()
    assert (sorted(lines) if name in ANY_ORDER else lines) == PRINTED[name]


def test_clients_have_namespaces_and_offsets_in_a_store_of_ones_own(cluster, capsys):
    (namespaces,), (own_offsets,) = blocks("clients.md"), blocks("offset-store.md")
    names = run(cluster, [namespaces])
    with names["producer"] as producer:
        producer.send(Message("orders", b"of a namespace"))
    assert "shop%orders" in cluster.admin().topics()
    cluster.producer().send(Message("orders", b"a book"))

    printed = []

    def end():
        try:
            wait_until(lambda: printed.append(capsys.readouterr().out) or "a book\n" in printed)
        finally:
            names["consumer"].stop()

    with ThreadPoolExecutor() as threads:
        ending = threads.submit(end)
        run(cluster, [own_offsets], names)  # until it is stopped
        ending.result()
    with sqlite3.connect("billing.db") as database:
        offsets = "SELECT sum(next_offset) FROM offsets WHERE topic = 'orders'"
        assert database.execute(offsets).fetchone() == (1,)
    database.close()


@pytest.mark.parametrize(
    ("group", "chosen"),
    {
        "audit": ["new 7 EU", "paid 3 EU", "paid 9 CH", "refunded 9 US"],
        "till": ["paid 3 EU", "paid 9 CH", "refunded 9 US"],
        "customs": ["new 7 EU", "refunded 9 US"],
    }.items(),
)
def test_filters_choose_by_tag_and_by_properties(cluster, capsys, group, chosen):
    names = run(cluster, blocks("filters.md"))
    for tags, price, region in (("new", 7, "EU"), ("paid", 3, "EU"), ("refunded", 9, "US"), ("paid", 9, "CH")):
        properties = {"price": str(price), "region": region}
        cluster.producer().send(Message("orders", b"an order", tags=tags, properties=properties))
    lines = []
    with names[group]:
        wait_until(lambda: lines.extend(capsys.readouterr().out.splitlines()) or len(lines) >= len(chosen))
    assert sorted(lines) == chosen


@pytest.mark.parametrize(("name", "test"), ELSEWHERE.items())
def test_a_page_that_is_run_elsewhere_is_named_there(name, test):
    assert f"docs/{name}" in (ROOT / test).read_text()


def test_every_page_with_examples_is_known():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if blocks(page)} == {*PRINTED, *HERE, *ELSEWHERE}
