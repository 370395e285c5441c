"""Decides which machines may copy a broker's log. Such a machine can read all messages, and can confirm sends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import ip_address
from math import inf

from pyromq.clock import Clock

LOOPBACK = "localhost"
REMEMBERED_SECONDS = 1.0  # time for which the addresses from name servers are kept, to limit requests


class AllowedPeers:
    """The IP addresses from which slaves may connect.

    If `listed` is not empty, only these addresses are allowed. Otherwise a broker that listens at loopback allows all
    peers. Another broker allows the addresses of `registered`: the brokers of its name at its name servers.
    """

    def __init__(
        self,
        listed: tuple[str, ...],
        clock: Clock,
        *,
        host: str,
        registered: Callable[[], Awaitable[frozenset[str]]],
    ) -> None:
        self._listed = frozenset(listed)
        self._clock = clock
        self._is_private = host == LOOPBACK or ip_address(host).is_loopback
        self._registered = registered
        self._hosts: frozenset[str] = frozenset()  # what `registered` returned last
        self._asked_at = -inf
        self._asking = asyncio.Lock()

    async def allows(self, host: str) -> bool:
        """Return whether slaves at an IP address get the log."""
        if self._listed:
            return host in self._listed
        if self._is_private:
            return True
        async with self._asking:
            if self._clock.monotonic() - self._asked_at >= REMEMBERED_SECONDS:
                self._hosts = await self._registered()
                self._asked_at = self._clock.monotonic()
        return host in self._hosts
