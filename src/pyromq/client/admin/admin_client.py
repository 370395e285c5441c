"""The base of all admin clients: connections to the cluster and the timeout of requests."""

from __future__ import annotations

from pyromq.client.arguments import checked
from pyromq.client.async_lifespan import AsyncLifespan
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.clock import Clock, SystemClock
from pyromq.net.connection_config import ConnectionConfig


@checked
class AdminClient(AsyncLifespan):
    """A client that is connected in an `async with` block; its arguments are those of `AsyncAdmin`."""

    def __init__(
        self,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        clock: Clock | None = None,
        instance: str | None = None,
        connections: ConnectionConfig | None = None,
    ) -> None:
        self._timeout = timeout
        self._clock = clock or SystemClock()
        self._cluster = ClusterClient(namesrv, self._clock, instance=instance, connections=connections)

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        await self._cluster.start()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._cluster.running:
            await self._cluster.close()
