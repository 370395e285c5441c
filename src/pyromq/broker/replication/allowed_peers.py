"""Which machines get a broker's log: everybody who gets the log has all messages, and can confirm sends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from ipaddress import ip_address

LOOPBACK = "localhost"


class AllowedPeers:
    """The IP addresses from which slaves may connect.

    `listed` are the only ones if given. Otherwise a broker that listens at loopback allows all peers. Another broker
    allows the addresses that `registered` returns: those under the broker's name at its name servers.
    """

    def __init__(
        self, listed: tuple[str, ...], *, host: str, registered: Callable[[], Awaitable[frozenset[str]]]
    ) -> None:
        self._listed = frozenset(listed)
        self._is_private = host == LOOPBACK or ip_address(host).is_loopback
        self._registered = registered

    async def allows(self, host: str) -> bool:
        """Return whether slaves at an IP address get the log."""
        if self._listed:
            return host in self._listed
        return self._is_private or host in await self._registered()
