"""The base class of all admin clients, and the requests that they send to brokers and name servers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import msgspec

from pyromq.client.arguments import checked
from pyromq.client.cluster.cluster_client import AsyncLifespan, ClusterClient
from pyromq.client.cluster.known_masters import MASTER
from pyromq.clock import Clock, SystemClock
from pyromq.errors import AccessDenied, ConsumerNotOnline, Unavailable, UsageError
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import (
    BrokerAddresses,
    ClientConnection,
    ClusterTable,
    ConsumerConnection,
    decode_body,
)
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import BrokerClusterInfo, BrokerSettings, ConsumerConnections
from pyromq.remoting.properties import parse_properties


@checked
class AdminClient(AsyncLifespan):
    """A client of administrators, connected in an `async with` block. Its arguments are those of `AsyncAdmin`."""

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
        self._cluster = ClusterClient(
            namesrv, self._clock, instance=instance, connections=connections, forget_deleted=True
        )

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` immediately if no name server can be reached."""
        await self._cluster.start()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._cluster.running:
            await self._cluster.close()


B = TypeVar("B", bound=msgspec.Struct)


class ClusterBrokers:
    """Sends requests to brokers and name servers. A server's refusal is raised as a `BrokerError`.

    `timeout` is seconds per request to a broker.
    """

    def __init__(self, cluster: ClusterClient, *, timeout: float) -> None:
        self._cluster = cluster
        self._timeout = timeout

    async def table(self) -> ClusterTable:
        """Return the brokers by name and the broker names of each cluster, as one name server knows them."""
        return await self.name_server(BrokerClusterInfo(), ClusterTable)

    async def masters(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
        """Return the masters' addresses by broker name, of one `cluster` or `broker` or of all.

        Raises `UsageError` for an unknown cluster or broker, `Unavailable` if no master is registered.
        """
        table = await self.table()
        if cluster is not None and cluster not in table.clusters:
            raise UsageError(f"cluster {cluster!r} does not exist; there is {listed(table.clusters)}")
        if broker is not None and broker not in table.brokers:
            raise UsageError(f"broker {broker!r} is not registered; there is {listed(table.brokers)}")
        brokers = {
            name: each
            for name, each in table.brokers.items()
            if (cluster is None or name in table.clusters[cluster]) and (broker is None or name == broker)
        }
        if masters := masters_of(brokers.values()):
            return masters
        where = f"registered at name server {';'.join(self._cluster.name_servers.addresses)}"
        if brokers:
            advice = "start the master, or wait until the replica set has elected one"
            raise Unavailable(f"no master is {where}, only slaves of {listed(brokers)}; {advice}")
        raise Unavailable(f"no broker is {where}; start a broker with this name server")

    async def ask(self, address: str, header: Header, body: bytes = b"") -> Response:
        """Return the response of the broker at `host:port`. Raises its refusal, or `Unavailable`."""
        return (await self._cluster.ask(address, header, body, timeout=self._timeout)).check()

    async def read(self, address: str, header: Header, body: type[B]) -> B:
        """Return the decoded response body of the broker at `host:port`. Raises its refusal, or `Unavailable`."""
        return decode_body(body, (await self.ask(address, header)).body)

    async def settings(self, address: str) -> dict[str, str]:
        """Return a broker's settings, by their names in RocketMQ's configuration files."""
        return parse_properties((await self.ask(address, BrokerSettings())).body.decode(errors="replace"))

    async def members(self, address: str, group: str) -> list[ClientConnection]:
        """Return the group's members connected to a broker; none if this account has no right on the group."""
        try:
            return (await self.read(address, ConsumerConnections(consumer_group=group), ConsumerConnection)).connections
        except (ConsumerNotOnline, AccessDenied):
            return []

    async def ask_each(self, addresses: Iterable[str], header: Header, body: bytes = b"") -> None:
        """Send a request to brokers, one after the other. After the first failure, no further broker is asked."""
        for address in addresses:
            await self.ask(address, header, body)

    async def read_each(
        self, addresses: Iterable[str], header: Header, body: type[B], *, partial: bool
    ) -> dict[str, B]:
        """Return the decoded response bodies of brokers by address. The first failure is raised.

        With `partial`, a broker out of reach is left out and logged. Raises `Unavailable` if no broker can be reached.
        """
        if partial:
            return await self._cluster.ask_reachable(addresses, lambda address: self.read(address, header, body))
        return {address: await self.read(address, header, body) for address in addresses}

    async def ask_name_server(self, header: Header) -> Response:
        """Return the response of the first name server that answers. Raises its refusal."""
        self._cluster.check_running()
        return (await self._cluster.name_servers.ask(header)).check()

    async def name_server(self, header: Header, body: type[B]) -> B:
        """Return the decoded response body of the first name server that answers."""
        return decode_body(body, (await self.ask_name_server(header)).body)

    async def ask_name_servers(self, header: Header, body: bytes = b"") -> list[Response]:
        """Send a request to every name server and return the responses by order of address.

        Each must be asked, because name servers do not replicate changes.
        """
        self._cluster.check_running()
        return [response.check() for response in await self._cluster.name_servers.ask_each(header, body)]


def masters_of(brokers: Iterable[BrokerAddresses]) -> dict[str, str]:
    """Return the addresses of those brokers that are masters, by broker name."""
    return {broker.broker_name: broker.addresses[MASTER] for broker in brokers if MASTER in broker.addresses}


def listed(names: Iterable[str]) -> str:
    """Return names as a string for an error, sorted and joined by commas; "none" without names."""
    return ", ".join(sorted(names)) or "none"


T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32  # limit of parallel requests of `each_of`: more would only queue at the brokers


async def each_of(
    look: Callable[[T], Awaitable[R]], items: Sequence[T], shown: Callable[[int], None] | None = None
) -> list[R]:
    """Return the result of `look(item)` for each item, in order. The first error is raised and cancels the other calls.

    `shown` is called with the number of finished items.
    """
    room, done = asyncio.Semaphore(AT_ONCE), 0

    async def one(item: T) -> R:
        nonlocal done
        async with room:
            found = await look(item)
        done += 1
        if shown is not None:
            shown(done)
        return found

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # has an effect only after a failure
