"""Remembers servers that do not answer or refuse connections, so that requests to them fail immediately."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING

from pyromq.clock import Clock
from pyromq.errors import DeadlineExceeded, MQError, SilentServer, Unavailable
from pyromq.net.tasks import Tasks, every
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Completed, Dispatcher
from pyromq.remoting.headers import BrokerState

if TYPE_CHECKING:  # a pool's configuration has an object of this class
    from pyromq.net.channel import Pool
    from pyromq.net.connection_config import ConnectionConfig

SUSPECT_SECONDS = 0.3  # a server is probed if a request has waited this long and the server has sent nothing since
LIFE_SECONDS = 1.5  # a server that has sent nothing for this long after a probe is silent: users wait for its answers
LATE_SECONDS = 5.0  # time limit of the reply to a probe: a later reply still shows that a silent server is only slow
LOOK_SECONDS = 0.1  # pause between two looks for suspected and silent servers


class SilentServers:
    """The servers that do not answer, by address, for all connections with this object in their `ConnectionConfig`.

    A slow request alone does not make a server silent: `keep_looking` probes the server over a connection of its own.
    Requests to a silent server, also those under way, fail with `SilentServer` until the server answers again. A slow
    server, which answers a probe late, gets twice that time from then on.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Silent servers: monotonic time of their last reply, and the reason of the silence.
        self._silent: dict[str, tuple[float, str]] = {}
        self._heard: dict[str, float] = {}  # monotonic time of the last reply to a request
        self._patience: dict[str, float] = {}  # seconds after a probe from which on a server is silent, if slow before
        self._looking = False
        self._waiting: dict[str, dict[Completed, float]] = {}  # requests under way, with the times of their sending

    def since_ms(self, address: str) -> int | None:
        """Return since when a server does not answer (ms since 1970); None for other servers."""
        if (silent := self._silent.get(address)) is None:
            return None
        return int(self._clock.now_ms() - (self._clock.monotonic() - silent[0]) * 1000)

    def reason(self, address: str) -> str | None:
        """Return the reason why a server is silent; None for other servers."""
        silent = self._silent.get(address)
        return None if silent is None else silent[1]

    def check(self, address: str) -> None:
        """Raise `SilentServer` if the server does not answer."""
        if address in self._silent:
            raise self._error(address)

    def lost(self, address: str, error: Unavailable) -> None:
        """Note that no connection to a server can be opened."""
        self._fall_silent(address, str(error))

    def around(self, address: str, answered: Completed) -> Completed:
        """Note a request. Return the function to call with its response or error, instead of `answered`."""
        waiting = self._waiting.setdefault(address, {})

        def complete(result: Response | MQError) -> None:
            if waiting.pop(complete, None) is None:
                return  # the server was found silent meanwhile
            if not isinstance(result, MQError):
                self._replied(address)
            answered(result)

        waiting[complete] = self._clock.monotonic()
        return complete

    async def keep_looking(self, connections: ConnectionConfig) -> None:
        """Probe suspected and silent servers, until cancelled. Return at once if a task does so."""
        from pyromq.net.channel import Pool

        if self._looking:
            return
        self._looking = True
        pool, probes = Pool(Dispatcher(), self._clock, replace(connections, silent=None)), Tasks()
        probed: dict[str, asyncio.Task[None]] = {}

        async def look() -> None:
            for address in self._doubtful():
                if address not in probed or probed[address].done():
                    probed[address] = probes.start(self._probe(pool, address), name=f"probe {address}")

        try:
            await every(LOOK_SECONDS, look, self._clock)
        finally:
            self._looking = False
            await probes.stop()
            await pool.close()

    def _doubtful(self) -> list[str]:
        """Return silent servers, and servers with a request that has waited since their last reply."""
        latest = self._clock.monotonic() - SUSPECT_SECONDS
        suspects = {
            address for address, waiting in self._waiting.items() if any(at < latest for at in waiting.values())
        }
        return sorted(suspects | self._silent.keys())

    async def _probe(self, pool: Pool, address: str) -> None:
        began = self._clock.monotonic()
        asking = asyncio.create_task(_sign_of_life(pool, address))
        try:
            # Unlike `asyncio.timeout`, this accepts an answer that arrived while the event loop was busy.
            await asyncio.wait({asking}, timeout=self._patience.get(address, LIFE_SECONDS))
            if not asking.done() and self._heard.get(address, began) <= began:
                is_connected = pool.open_channel(address) is not None
                wrong = "takes requests, but answers none" if is_connected else "cannot be reached"
                self._fall_silent(address, f"{address} {wrong}")
            await asyncio.wait({asking})
        finally:
            asking.cancel()
        error = asking.exception()
        if not isinstance(error, Unavailable):
            self._patience[address] = max(LIFE_SECONDS, 2 * (self._clock.monotonic() - began))
            self._silent.pop(address, None)
            self._replied(address)
        elif not isinstance(error, DeadlineExceeded):
            self._fall_silent(address, str(error))

    def _replied(self, address: str) -> None:
        """Note that a server has replied. The waiting time of its other requests starts again."""
        now = self._heard[address] = self._clock.monotonic()
        if waiting := self._waiting.get(address):
            waiting.update(dict.fromkeys(waiting, now))

    def _fall_silent(self, address: str, reason: str) -> None:
        waiting = self._waiting.get(address, {})
        before = min(waiting.values(), default=self._clock.monotonic())
        since, _ = self._silent.get(address, (before, ""))
        self._silent[address] = since, reason
        for complete in list(waiting):
            complete(self._error(address))

    def _error(self, address: str) -> SilentServer:
        since, reason = self._silent[address]
        return SilentServer(f"{reason}, for {self._clock.monotonic() - since:.0f} s now")


async def _sign_of_life(pool: Pool, address: str) -> None:
    """Send a server a probe. A refusal is a reply, too."""
    await (await pool.channel(address)).call(BrokerState(), timeout=LATE_SECONDS)
