"""One connection per address, opened when first needed and reopened after it broke."""

from __future__ import annotations

import asyncio

from pyromq.clock import Clock
from pyromq.errors import NotRunning
from pyromq.net.channel import Channel, connect
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.remoting.dispatch import Dispatching


class Pool:
    """The connections of one client. `channel(address)` returns the open connection or opens one."""

    def __init__(self, dispatcher: Dispatching, clock: Clock, connections: ConnectionConfig = PLAIN) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._connections = connections
        self._channels: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Task[Channel]] = {}

    def open_channel(self, address: str) -> Channel | None:
        """Return the open connection to the address; None if there is none."""
        channel = self._channels.get(address)
        return channel if channel is not None and not channel.closed else None

    async def channel(self, address: str) -> Channel:
        """Return the connection to `host:port`. Concurrent callers get the same connection or the same error.

        Raises `Unavailable` if it cannot be opened, `NotRunning` if the pool is closed meanwhile.
        """
        if (channel := self.open_channel(address)) is not None:
            return channel
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(self._open(address), name=f"connect to {address}")
            opening.add_done_callback(_take_error)
        try:
            return await asyncio.shield(opening)  # cancelling one caller does not cancel the others
        except asyncio.CancelledError:
            if opening.cancelled():
                raise NotRunning(f"the client was closed while it connected to {address}") from None
            raise

    def channels(self) -> dict[str, Channel]:
        """Return the open connections by address."""
        return {address: channel for address, channel in self._channels.items() if not channel.closed}

    async def drop(self, address: str) -> None:
        """Close the connection to the address, if any."""
        if (channel := self._channels.pop(address, None)) is not None:
            await channel.close()

    async def close(self) -> None:
        """Close all connections, also those being opened."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        self._opening.clear()  # tasks cancelled before their first step
        for address in list(self._channels):
            await self.drop(address)

    async def _open(self, address: str) -> Channel:
        try:
            channel = self._channels[address] = await connect(
                address, self._dispatcher, self._clock, connections=self._connections
            )
        finally:
            self._opening.pop(address, None)
        return channel


def _take_error(opening: asyncio.Task[Channel]) -> None:
    """Retrieve the error: the event loop logs errors of tasks whose callers were all cancelled."""
    if not opening.cancelled():
        opening.exception()
