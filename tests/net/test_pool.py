"""One connection per address: opened when needed, shared, opened again when it broke, gone with the pool."""

import asyncio
import contextlib
import gc
import socket

import pytest

from pyromq.clock import SystemClock
from pyromq.errors import ConnectionLost, NotRunning, Unavailable
from pyromq.net import channel as channel_module
from pyromq.net.channel import Pool
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import MaxOffset


@pytest.fixture
async def pool():
    pool = Pool(Dispatcher(), SystemClock())
    yield pool
    await pool.close()


@pytest.fixture
def address(server):
    return f"127.0.0.1:{server.port}"


def question():
    return MaxOffset(topic="t", queue_id=1)


async def test_a_connection_is_opened_when_first_needed_and_kept(pool, address):
    assert pool.open_channel(address) is None
    channel = await pool.channel(address)
    assert await pool.channel(address) is channel
    assert pool.open_channel(address) is channel
    assert pool.channels() == {address: channel}


async def test_those_who_ask_together_share_one(pool, server, address, until):
    channels = await asyncio.gather(*(pool.channel(address) for _ in range(10)))
    assert len(set(channels)) == 1
    await channels[0].call(question(), timeout=30)
    assert len(server.sessions) == 1


async def test_each_address_has_its_own(pool, serve, offsets, address):
    other = f"127.0.0.1:{(await serve(offsets)).port}"
    first, second = await pool.channel(address), await pool.channel(other)
    assert (first.address, second.address) == (address, other)
    assert pool.channels().keys() == {address, other}


async def test_a_broken_connection_is_replaced(pool, server, address):
    channel = await pool.channel(address)
    call = channel.call_soon(question(), timeout=30)
    await call
    server.cut()
    with pytest.raises(ConnectionLost):
        await channel.call(question(), timeout=30)
    assert pool.open_channel(address) is None
    assert pool.channels() == {}
    again = await pool.channel(address)
    assert again is not channel
    assert (await again.call(question(), timeout=30)).code == 0


async def test_a_server_that_comes_back_is_reached_again(pool, serve, offsets, server, address, until):
    channel = await pool.channel(address)
    await server.close(drain_seconds=0)
    await until(lambda: channel.closed)
    with pytest.raises(Unavailable, match=f"{address} refuses connections"):
        await pool.channel(address)
    await serve(offsets, port=server.port)
    assert (await (await pool.channel(address)).call(question(), timeout=30)).code == 0


async def test_who_fails_to_connect_does_not_keep_others_from_trying(pool, serve, offsets):
    server = await serve(offsets)
    await server.close()
    address = f"127.0.0.1:{server.port}"
    results = await asyncio.gather(*(pool.channel(address) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [Unavailable] * 3
    await serve(offsets, port=server.port)
    assert not (await pool.channel(address)).closed


async def test_a_dropped_connection_is_closed(pool, address):
    channel = await pool.channel(address)
    await pool.drop(address)
    assert channel.closed
    assert pool.open_channel(address) is None
    await pool.drop(address)


async def test_closing_closes_all(pool, serve, offsets, address):
    channels = [await pool.channel(address), await pool.channel(f"127.0.0.1:{(await serve(offsets)).port}")]
    await pool.close()
    assert all(channel.closed for channel in channels)
    assert pool.channels() == {}


async def test_connections_on_their_way_when_the_pool_closes_are_given_up(pool, server, address, until):
    opening = [asyncio.ensure_future(pool.channel(address)) for _ in range(3)]
    await asyncio.sleep(0)
    await pool.close()
    results = await asyncio.gather(*opening, return_exceptions=True)
    assert [type(result) for result in results] == [NotRunning] * 3
    await until(lambda: not server.sessions)
    assert pool.channels() == {}


async def test_who_stops_waiting_does_not_stop_the_others(pool, address):
    first, second = (asyncio.ensure_future(pool.channel(address)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert not (await second).closed
    assert first.cancelled()


async def test_those_who_wait_for_the_unreachable_fail_together(pool, monkeypatch):
    monkeypatch.setattr(channel_module, "CONNECT_SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        address = f"127.0.0.1:{full.getsockname()[1]}"
        with contextlib.ExitStack() as callers:
            for _ in range(3):  # nobody accepts: further ones get no answer from the kernel
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(("127.0.0.1", full.getsockname()[1]))
            results = await asyncio.gather(*(pool.channel(address) for _ in range(5)), return_exceptions=True)
    assert len(set(map(id, results))) == 1
    assert [str(result) for result in results] == [f"{address} cannot be reached within 0.3 s"] * 5


async def test_an_error_that_nobody_waits_for_is_nobodys(pool, until, monkeypatch):
    told, go_on = [], asyncio.Event()

    async def failing(*args, **options):
        await go_on.wait()
        raise Unavailable("no answer")

    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context["message"]))
    monkeypatch.setattr("pyromq.net.channel.connect", failing)
    waiting = asyncio.create_task(pool.channel("127.0.0.1:1"))
    await until(lambda: pool._opening)
    waiting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await waiting
    go_on.set()
    await until(lambda: not pool._opening)
    del waiting
    gc.collect()
    assert told == []
