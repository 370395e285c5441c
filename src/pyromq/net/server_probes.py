"""Probes suspected and silent servers over separate connections, so that a slow request makes no server silent."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from pyromq.clock import Clock
from pyromq.errors import DeadlineExceeded, Unavailable
from pyromq.net.channel import Pool
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.silent_servers import SilentServers
from pyromq.net.tasks import Tasks, every
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.headers import BrokerState

LATE_SECONDS = 5.0  # time limit of the reply to a probe: a later reply still shows that a silent server is only slow
CHECK_SECONDS = 0.1  # pause between two checks for suspected and silent servers
_PARTS = 10  # of the wait for a reply: a process that stands still loses one part, and the server keeps the others


async def keep_probing(silent: SilentServers, connections: ConnectionConfig, clock: Clock) -> None:
    """Probe suspected and silent servers, until cancelled. Return immediately if another task does so."""
    if silent.is_probed:
        return
    silent.is_probed = True
    pool, probes = Pool(Dispatcher(), clock, replace(connections, silent=None)), Tasks()
    probed: dict[str, asyncio.Task[None]] = {}

    async def check() -> None:
        for address in silent.doubtful():
            if address not in probed or probed[address].done():
                probed[address] = probes.start(_probe(silent, pool, address, clock), name=f"probe {address}")

    try:
        await every(CHECK_SECONDS, check, clock)
    finally:
        silent.is_probed = False
        await probes.stop()
        await pool.close()


async def _probe(silent: SilentServers, pool: Pool, address: str, clock: Clock) -> None:
    began = clock.monotonic()
    asking = asyncio.create_task(_sign_of_life(pool, address))
    try:
        await _wait_awake(asking, silent.life_seconds(address))
        if not asking.done() and not silent.has_replied_since(address, began):
            is_connected = pool.open_channel(address) is not None
            wrong = "takes requests, but answers none" if is_connected else "cannot be reached"
            silent.fall_silent(address, f"{address} {wrong}")
        await asyncio.wait({asking})
    finally:
        asking.cancel()
    error = asking.exception()
    if not isinstance(error, Unavailable):
        silent.probe_answered(address, began)
    elif not isinstance(error, DeadlineExceeded):
        silent.fall_silent(address, str(error))


async def _wait_awake(asking: asyncio.Task[None], seconds: float) -> None:
    """Wait until a task is done, or this process has been awake for some seconds."""
    for _ in range(_PARTS):
        if not asking.done():
            # Unlike `asyncio.timeout`, this accepts an answer that arrived while the event loop was busy.
            await asyncio.wait({asking}, timeout=seconds / _PARTS)


async def _sign_of_life(pool: Pool, address: str) -> None:
    """Send a server a probe. A refusal is a reply, too."""
    await (await pool.channel(address)).call(BrokerState(), timeout=LATE_SECONDS)
