"""The page of request codes lists what a broker answers, and names tests that exist."""

import re
from pathlib import Path

from pyromq.testing import Cluster

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "docs" / "compatibility.md"
ACCOUNTS = range(50, 55)  # answered with permissions
REPLICA_SETS = range(100_390, 100_393)  # answered by replicas


def listed_codes(remark=""):
    """Return the codes of a broker's requests on the page; only those whose remark begins like this."""
    part = PAGE.read_text(encoding="utf-8").partition("## Requests to a broker\n")[2].partition("\n#")[0]
    codes = set()
    for numbers in re.findall(rf"^\| ([\d, -]+) \|[^|]*\|[^|]*\| {remark}", part, re.MULTILINE):
        for first, last in re.findall(r"(\d+)(?:-(\d+))?", numbers):
            codes.update(range(int(first), int(last or first) + 1))
    return codes


async def test_a_broker_answers_the_codes_that_the_page_lists_and_no_others():
    async with Cluster() as cluster:
        answered = set(cluster.broker.dispatcher.codes)
    refused = listed_codes("3[:,]")
    assert len(refused) > 10
    assert answered == listed_codes() - refused - {*ACCOUNTS, *REPLICA_SETS}


def test_every_test_that_the_page_names_exists():
    named = set(re.findall(r"[\w/]+/test_\w+\.py", PAGE.read_text(encoding="utf-8")))
    assert named
    assert [path for path in sorted(named) if not (TESTS / path).exists()] == []
