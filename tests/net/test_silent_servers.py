"""Requests to a server that does not answer fail immediately, until the server answers again."""

import asyncio
import time
from contextlib import asynccontextmanager, suppress

import pytest
from tests.waiting import PATIENCE_SECONDS, until

from pyromq.clock import SystemClock
from pyromq.errors import SilentServer, Unavailable
from pyromq.net import server_probes, silent_servers
from pyromq.net.channel import Pool
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.server_probes import keep_probing
from pyromq.net.silent_servers import SilentServers
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import BrokerState
from pyromq.testing import Cluster


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, seconds in (("SUSPECT_SECONDS", 0.02), ("LIFE_SECONDS", 0.5)):
        monkeypatch.setattr(silent_servers, name, seconds)
    monkeypatch.setattr(server_probes, "CHECK_SECONDS", 0.01)


@asynccontextmanager
async def watched():
    """Give a pool whose servers are watched, and what watches them."""
    silent = SilentServers(SystemClock())
    connections = ConnectionConfig(silent=silent)
    pool = Pool(Dispatcher(), SystemClock(), connections)
    looking = asyncio.create_task(keep_probing(silent, connections, SystemClock()))
    try:
        yield pool, silent
    finally:
        looking.cancel()
        with suppress(asyncio.CancelledError):
            await looking
        await pool.close()


async def ask(pool, address):
    return await (await pool.channel(address)).call(BrokerState(), timeout=2 * PATIENCE_SECONDS)


async def test_a_request_under_way_and_all_later_ones_fail_until_the_server_answers_again():
    async with Cluster(linked=True) as cluster, watched() as (pool, silent):
        link = cluster.links[0]
        assert (await ask(pool, link.address)).code == 0
        assert silent.since_ms(link.address) is None
        link.pause()
        async with asyncio.timeout(PATIENCE_SECONDS):  # the request has twice as much
            with pytest.raises(SilentServer, match="takes requests, but answers none"):
                await ask(pool, link.address)
        for _ in range(100):
            with pytest.raises(SilentServer, match=link.address):
                await ask(pool, link.address)
        assert silent.since_ms(link.address) <= SystemClock().now_ms()
        link.resume()
        await until(lambda: silent.since_ms(link.address) is None)
        assert (await ask(pool, link.address)).code == 0


async def test_a_client_that_stood_still_itself_calls_no_server_silent(monkeypatch):
    monkeypatch.setattr(silent_servers, "LIFE_SECONDS", 0.2)
    async with Cluster(linked=True) as cluster, watched() as (pool, _):
        link = cluster.links[0]
        link.requests.pause()
        asking = asyncio.create_task(ask(pool, link.address))
        await until(lambda: link.connections == 2)  # the other one is the probe's
        link.requests.resume()
        time.sleep(0.4)  # noqa: ASYNC251  the process stands still
        assert (await asking).code == 0


async def test_a_port_without_a_server_is_silent_until_somebody_listens():
    async with Cluster() as cluster, watched() as (pool, silent):
        address = cluster.broker.address
        await cluster.stop_broker()
        with pytest.raises(Unavailable, match="refuses connections"):
            await ask(pool, address)
        with pytest.raises(SilentServer, match="refuses connections: nothing listens there, for 0 s now"):
            await ask(pool, address)
        await cluster.start_broker()
        await until(lambda: silent.since_ms(address) is None)
        assert (await ask(pool, address)).code == 0


async def test_a_slow_request_does_not_make_a_server_silent():
    async with Cluster(linked=True) as cluster, watched() as (pool, silent):
        link = cluster.links[0]
        silent.around(link.address, lambda _: pytest.fail("a request was completed that has no answer yet"))
        await until(lambda: link.connections == 1)  # the look for a sign of life
        assert (await ask(pool, link.address)).code == 0
        assert silent.since_ms(link.address) is None


async def test_a_slow_server_is_silent_only_until_its_first_late_answer(monkeypatch):
    monkeypatch.setattr(silent_servers, "LIFE_SECONDS", 0.05)
    async with Cluster(linked=True) as cluster, watched() as (pool, silent):
        link = cluster.links[0]
        await ask(pool, link.address)
        link.answers.pause()
        with pytest.raises(SilentServer, match="takes requests, but answers none"):
            await ask(pool, link.address)
        await asyncio.sleep(0.3)  # so late is its first answer
        link.answers.delay_seconds = 0.1
        link.answers.resume()
        await until(lambda: silent.since_ms(link.address) is None)
        for _ in range(3):
            assert (await ask(pool, link.address)).code == 0
