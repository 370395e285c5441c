"""A cluster of 1,000 topics x 8 queues and 2,000 groups, in the browser: every list, and what it asks of the broker.

How long each took is printed and not judged: machines differ. What is asked is the same on all of them.
"""

import asyncio
import time

import pytest
from tests.console.browser.conftest import Page
from tests.console.conftest import served
from tests.console.test_many import Counting, fill

from pyromq.console.console import Console
from pyromq.console.console_config import ConsoleConfig
from pyromq.net.connection_config import ConnectionConfig
from pyromq.testing import Cluster

MAX_REQUESTS = {
    "/": 4,  # a snapshot: the name server, and two of each broker
    "/topics": 4,
    "/topics?sort=-messages&page=7": 4,
    "/topics?kind=system": 4,
    "/topics?filter=t0999": 4,
    "/groups": 4,
    "/groups?sort=-lag&page=9": 4,
    "/groups?filter=g1999": 4,
    "/brokers": 4,
    "/dead-letters": 4,
    "/messages": 4,
    "/accounts": 4,
    "/audit": 4,
    "/topics/t0001": 12,
    "/groups/g0001": 16,
    "/brokers/broker-a": 8,
    "/delayed": 12,
    "/transactions": 12,
}


@pytest.mark.soak
async def test_every_list_of_many_topics_and_groups_is_shown(chromium, tmp_path):
    counting = Counting()
    async with Cluster() as cluster:
        await fill(cluster, 1000)
        config = ConsoleConfig(
            cluster.namesrv,
            tmp_path,
            connections=ConnectionConfig(hooks=(counting,)),
            snapshot_seconds=0.001,  # every page asks for its own
            sample_seconds=3600,
        )
        async with served(Console(config)) as base:
            await asyncio.to_thread(look, Page(chromium, base), counting)


def look(page, counting):
    page.driver.delete_all_cookies()
    page.open("/")  # what is asked once, to begin with
    print()
    for path, most in MAX_REQUESTS.items():
        page.run_scripts(False)  # those would ask for the same page again after some seconds
        counting.calls.clear()
        began = time.monotonic()
        page.open(path)
        took, asked = time.monotonic() - began, len(counting.calls)
        print(f"{path:32} {took * 1000:6.0f} ms {asked:3} requests")
        assert asked <= most, (path, counting.calls)
        page.run_scripts(True)
        page.open(path)
        assert page.serious() == [], path
        assert not page.is_too_wide, path
        assert page.complaints() == [], path
        rows = page.driver.execute_script(
            "return Math.max(0, ...[...document.querySelectorAll('tbody')].map((each) => each.rows.length))"
        )
        assert rows <= 50 or path == "/", (path, rows)
    page.open("/topics")
    assert "of 1,000 topics" in page.text
    page.open("/groups")
    assert "of 2,000 groups" in page.text
