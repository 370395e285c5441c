"""One connection per address, opened when first needed and again when it broke."""

from __future__ import annotations

import asyncio
import ssl

from pyromq.clock import Clock
from pyromq.net.channel import Channel, connect
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.frame import JSON


class Pool:
    """The connections of one client: `channel(address)` gives the open one or opens it."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        *,
        tls: ssl.SSLContext | None = None,
        serialization: int = JSON,
    ) -> None:
        self._dispatcher = dispatcher
        self._clock = clock
        self._tls = tls
        self._serialization = serialization
        self._channels: dict[str, Channel] = {}
        self._opening: dict[str, asyncio.Lock] = {}

    def open_channel(self, address: str) -> Channel | None:
        """Return the open connection to the address, if there is one."""
        channel = self._channels.get(address)
        return channel if channel is not None and not channel.closed else None

    async def channel(self, address: str) -> Channel:
        """Return the connection to `host:port`. Raises `Unavailable` when it cannot be opened."""
        if (channel := self.open_channel(address)) is not None:
            return channel
        async with self._opening.setdefault(address, asyncio.Lock()):
            if (channel := self.open_channel(address)) is None:
                channel = await connect(
                    address, self._dispatcher, self._clock, tls=self._tls, serialization=self._serialization
                )
                self._channels[address] = channel
        return channel

    def channels(self) -> dict[str, Channel]:
        """Return the open connections by address."""
        return {address: channel for address, channel in self._channels.items() if not channel.closed}

    async def drop(self, address: str) -> None:
        """Close the connection to the address, if any."""
        if (channel := self._channels.pop(address, None)) is not None:
            await channel.close()

    async def close(self) -> None:
        for address in list(self._channels):
            await self.drop(address)
