"""The pages' examples run as they stand there: a page's blocks one after the other, against a cluster of its own."""

import re
from pathlib import Path

import pytest

from pyromq.clock import SystemClock
from pyromq.testing import BlockingCluster

DOCS = Path(__file__).parents[2] / "docs"
# What each page prints; what differs from run to run is left out.
PRINTED = {
    "first-steps.md": ["SendStatus.OK", "b'hello from Python'"],
    "tutorial.md": ["charged 1999 to visa"],
    "how-to/retries.md": ["billed at attempt 2"],
    "how-to/dead-letters.md": ["b'customer 7' GiveUp: no such customer"],
    "how-to/ordering.md": ["[b'open', b'pay in', b'pay out']"],
    "how-to/from-kafka.md": ["N N web b'a book'"],
    "how-to/from-rocketmq-client-python.md": ["ID b'a book'"],
    "how-to/test.md": [],
    "how-to/idempotent-consumers.md": [],
    "delays.md": [],
}
ELSEWHERE = {"how-to/web-frameworks.md", "hooks.md", "json.md", "metrics.md", "spark-recipes.md"}  # have tests of their own
# Lines that show a form, beside text that explains it: they use names that no block makes.
FORMS = {"clients.md", "filters.md", "security.md", "transactions.md", "spark.md", "spark-jobs.md"}


def blocks(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", PRINTED)
def test_a_pages_examples_print_what_it_says(name, capsys):
    names = {"__name__": "example"}
    with BlockingCluster(clock=SystemClock()) as cluster:  # people's clocks
        for block in blocks(name):
            exec(block.replace("127.0.0.1:9876", cluster.namesrv), names)
        if name == "how-to/test.md":
            names["test_order_is_found"](cluster)
    if name == "how-to/idempotent-consumers.md":
        twice = names["Message"]("moves", b"5", keys="order-1")
        names["add"](twice), names["add"](twice)
        assert names["total"]() == 5
        names["database"].close()
    if name == "tutorial.md":
        names["database"].close()
    printed = re.sub(r"[0-9A-F]{32}", "ID", capsys.readouterr().out)
    assert re.sub(r"^\d \d ", "N N ", printed).splitlines() == PRINTED[name]


@pytest.mark.parametrize("name", sorted(FORMS))
def test_what_is_not_run_compiles(name):
    for block in blocks(name):
        compile(block, name, "exec")


def test_every_page_with_examples_is_known():
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert {page for page in pages if blocks(page)} == {*PRINTED, *ELSEWHERE, *FORMS}
