"""The button that stops a search, in the browser: the page stays, and the server ends the work."""

import asyncio

import pytest
from tests.console.browser.conftest import Page
from tests.console.conftest import served
from tests.console.search.test_leaving import RUNNING, wait_for
from tests.console.test_console_metrics import of

from pyromq.console.console import Console
from pyromq.console.console_config import ConsoleConfig
from pyromq.message import Message
from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.endpoint import MetricsEndpoint
from pyromq.testing import Cluster

# The page itself presses the button, a second later: the driver is not heard while another page is being loaded.
STOPPED = """
const stop = document.querySelector("[data-stop]"), done = arguments[0];
document.querySelector("form.search").requestSubmit();
const shown = !stop.hidden;
setTimeout(() => { stop.click(); done([shown, stop.hidden]); }, 1000);
"""


@pytest.mark.soak
async def test_a_search_under_way_is_stopped_and_the_page_stays(chromium, tmp_path):
    async with Cluster(linked=True) as cluster:
        await (await cluster.producer()).send(Message("orders", b"a book"))
        console = Console(ConsoleConfig(cluster.namesrv, tmp_path, snapshot_seconds=3600), cluster.clock)
        async with served(console) as base, MetricsEndpoint([console.metrics], MetricsConfig()) as endpoint:
            page = Page(chromium, base)
            await asyncio.to_thread(page.driver.delete_all_cookies)
            await asyncio.to_thread(page.open, "/messages?topic=orders")
            assert not await asyncio.to_thread(page.find("[data-stop]").is_displayed)
            cluster.links[0].answers.pause()
            assert await asyncio.to_thread(page.driver.execute_async_script, STOPPED) == [True, True]
            await wait_for(endpoint, of("pyromq_console_requests_total", page="/messages", status="499"), 1)
            await wait_for(endpoint, RUNNING, 0)
            cluster.links[0].answers.resume()
            assert "a book" in await asyncio.to_thread(lambda: page.find("main").text)
