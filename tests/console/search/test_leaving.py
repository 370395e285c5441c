"""A browser that is gone wants nothing any more: what was worked out for it ends."""

import asyncio

import httpx
import pytest
from tests.console.conftest import served
from tests.console.test_console_metrics import of
from tests.metrics.scrape import get, samples
from tests.waiting import PATIENCE_SECONDS

from pyromq.console.console import Console
from pyromq.console.console_config import ConsoleConfig
from pyromq.message import Message
from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.endpoint import MetricsEndpoint
from pyromq.testing import Cluster

RUNNING = of("pyromq_console_searches_running")


async def wait_for(endpoint, series, count):
    async with asyncio.timeout(PATIENCE_SECONDS):
        while samples((await get(endpoint, "/metrics")).body).get(series) != count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", ["/messages", "/messages/export"])
async def test_a_search_ends_when_its_browser_is_gone(tmp_path, path):
    async with Cluster(linked=True) as cluster:
        await (await cluster.producer()).send(Message("orders", b"1"))
        console = Console(ConsoleConfig(cluster.namesrv, tmp_path, snapshot_seconds=3600), cluster.clock)
        async with (
            served(console) as address,
            httpx.AsyncClient(base_url=address) as browser,
            MetricsEndpoint([console.metrics], MetricsConfig()) as endpoint,
        ):
            assert (await browser.get(f"{path}?q=1&by=text")).status_code == 200  # from now on the snapshot is known
            cluster.links[0].answers.pause()
            search = asyncio.create_task(browser.get(f"{path}?q=1&by=text"))
            await wait_for(endpoint, RUNNING, 1)
            search.cancel()  # closes the connection, as a browser does
            await wait_for(endpoint, RUNNING, 0)
            await wait_for(endpoint, of("pyromq_console_requests_total", page=path, status="499"), 1)
            cluster.links[0].answers.resume()
            assert (await browser.get(f"{path}?q=1&by=text")).status_code == 200
