"""What the console tells Prometheus of itself: pages, sign-ins, searches, and whether it is of use."""

import asyncio
from dataclasses import replace

import pytest
from tests.console.conftest import PASSWORD, browsing
from tests.metrics.scrape import get, samples
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.console.console_config import ConsoleConfig
from pyromq.console.security.console_accounts import ConsoleAccounts
from pyromq.message import Message
from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.endpoint import MetricsEndpoint
from pyromq.testing import Cluster


@pytest.fixture
async def endpoint(browser):
    async with MetricsEndpoint([browser.console.metrics], MetricsConfig()) as endpoint:
        yield endpoint


def of(name, **labels):
    text = ",".join(f'{label}="{value}"' for label, value in {"node_type": "console", **labels}.items())
    return f"{name}{{{text}}}"


async def test_requests_are_counted_by_page_and_status_and_timed(browser, endpoint):
    await browser.get("/topics")
    for topic in ("one", "another"):
        await browser.get(f"/topics/{topic}", status=404)
    await browser.get("/nowhere/at/all", status=404)
    await browser.post("/new-topic", name="orders", queues="1", permission="rw")
    told = samples((await get(endpoint, "/metrics")).body)

    name = "pyromq_console_requests_total"
    assert told[of(name, page="/topics", status="200")] == 1
    assert told[of(name, page="/topics/{name}", status="404")] == 2
    assert told[of(name, page="none", status="404")] == 1
    assert told[of(name, page="/new-topic", status="303")] == 1
    for page, count in {"/topics": 1, "/topics/{name}": 3}.items():  # the one that was made was shown
        seconds = [value for series, value in told.items() if f'page="{page}",le=' in series]
        assert len(seconds) == 13 and seconds == sorted(seconds)
        assert seconds[-1] == told[of("pyromq_console_request_seconds_count", page=page)] == count
        assert told[of("pyromq_console_request_seconds_sum", page=page)] > 0


async def test_addresses_that_lead_nowhere_make_no_series_of_their_own(browser, endpoint):
    for number in range(20):
        await browser.get(f"/made-up-{number}", status=404)
        await browser.get(f"/topics/made-up-{number}", status=404)
        await browser.get(f"/static/made-up-{number}", status=404)
    told = samples((await get(endpoint, "/metrics")).body)
    pages = [series for series in told if series.startswith("pyromq_console_requests_total")]
    assert len(pages) == 3
    assert "made-up" not in "".join(told)


async def test_refused_sign_ins_are_counted_by_why(config, cluster):
    config.data.mkdir(parents=True)
    ConsoleAccounts(config.data / "accounts.json").save("anna", role="admin", password=PASSWORD)
    async with browsing(config, clock=cluster.clock) as browser:
        for _ in range(5):
            await browser.sign_in("anna", "wrong", status=401)
        await browser.sign_in("anna", status=429)
        async with MetricsEndpoint([browser.console.metrics], MetricsConfig()) as endpoint:
            told = samples((await get(endpoint, "/metrics")).body)
    name = "pyromq_console_sign_ins_refused_total"
    assert told[of(name, reason="wrong name or password")] == 5
    assert told[of(name, reason="too many tries")] == 1


async def test_searches_that_run_are_counted(tmp_path):
    name = of("pyromq_console_searches_running")
    async with Cluster(linked=True) as cluster:
        await (await cluster.producer()).send(Message("orders", b"1"))
        config = ConsoleConfig(cluster.namesrv, tmp_path, snapshot_seconds=3600)
        async with browsing(config, clock=cluster.clock) as browser:
            await browser.get("/messages?q=1&by=text")  # from now on the snapshot is known
            async with MetricsEndpoint([browser.console.metrics], MetricsConfig()) as endpoint:
                cluster.links[0].answers.pause()
                search = asyncio.create_task(browser.get("/messages?q=1&by=text"))
                async with asyncio.timeout(PATIENCE_SECONDS):
                    while samples((await get(endpoint, "/metrics")).body)[name] != 1:
                        await asyncio.sleep(0.01)
                cluster.links[0].answers.resume()
                await search
                assert samples((await get(endpoint, "/metrics")).body)[name] == 0


async def test_it_is_ready_while_the_cluster_answers(browser, cluster, endpoint):
    await until(lambda: not browser.console.history.fault)
    assert (await get(endpoint, "/readyz")).body == "cluster: ok\n"
    assert (await get(endpoint, "/healthz")).body == "ok\n"


async def test_it_is_not_ready_while_nobody_answers(config):
    async with (
        browsing(replace(config, namesrv="127.0.0.1:1")) as browser,
        MetricsEndpoint([browser.console.metrics], MetricsConfig()) as endpoint,
    ):
        await until(lambda: "127.0.0.1:1" in browser.console.history.fault)
        ready = await get(endpoint, "/readyz")
    assert (ready.status, ready.body.startswith("cluster: ")) == (503, True)
    assert "127.0.0.1:1" in ready.body


async def test_an_error_of_ours_is_counted_as_well(browser, endpoint, monkeypatch):
    monkeypatch.setattr(browser.app.state.templates, "get_template", {}.__getitem__)
    await browser.get("/topics", status=500)
    told = samples((await get(endpoint, "/metrics")).body)
    assert told[of("pyromq_console_requests_refused_total", reason="failedRequests")] == 1
    assert told[of("pyromq_console_requests_total", page="/topics", status="500")] == 1
