"""The name servers of one client: a client asks the same name server until that fails, and the next one after that.

A client without addresses uses those in the environment. Source: RocketMQ 4.9.8, NameServerAddressUtils.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

from pyromq.errors import (
    DeadlineExceeded,
    HostNotFound,
    NoNameServer,
    ResponseCode,
    TlsRefused,
    Unavailable,
    UsageError,
)
from pyromq.logs import logger_of
from pyromq.net.address_server import AddressServer, is_url, parse_addresses
from pyromq.net.channel import Channel, Pool
from pyromq.remoting.bodies import ClusterTable, TopicRoute, encode_body
from pyromq.remoting.command import Response
from pyromq.remoting.header import Header
from pyromq.remoting.headers import BrokerClusterInfo, RouteOfTopic

logger = logger_of(__name__)

VARIABLE = "NAMESRV_ADDR"  # environment variable with name servers' addresses, as for Java's clients
DEFAULT = "127.0.0.1:9876"

# Body of requests without a body; name servers ignore it. A server of a line protocol, for example HTTP, answers these
# line ends. The client's error then names the wrong port; without them the request would only time out.
END_OF_LINE = b"\r\n\r\n"


def default_namesrv() -> str:
    """Return the name servers' addresses for a client without `namesrv`: `NAMESRV_ADDR`, else `127.0.0.1:9876`."""
    return os.environ.get(VARIABLE, "").strip() or DEFAULT


def addresses_of(namesrv: str | None) -> list[str]:
    """Return the addresses in a client's `namesrv`, or the URL of an address server in it; for None the default ones.

    Raises `UsageError` for a string that is neither.
    """
    if namesrv is not None:
        return parse_addresses(namesrv)
    try:
        return parse_addresses(default_namesrv())
    except UsageError as error:
        raise UsageError(f"environment variable {VARIABLE}: {error}") from error


class NameServers:
    """Sends requests to the configured name servers, first to a random one, so that clients spread over all.

    `addresses` are `host:port`, or one URL of an address server. With a URL, no name server is known before `look_up`.
    `stand_in` is that of `ConnectionConfig`.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        pool: Pool,
        *,
        timeout: float,
        stand_in: Callable[[str | None], ClusterTable | TopicRoute | None] | None = None,
    ) -> None:
        self.address_server = AddressServer(addresses[0]) if is_url(addresses[0]) else None
        self.addresses = list(addresses) if self.address_server is None else []
        self._pool = pool
        self._timeout = timeout
        self._stand_in = stand_in
        self._current = random.randrange(len(addresses))
        self._silent = False

    async def look_up(self) -> None:
        """Fetch the name servers' addresses from the address server. Raises `NoNameServer` if none is known yet.

        If addresses are known, a failure is logged once and they stay. Source: MQClientAPIImpl.fetchNameServerAddr.
        """
        if self.address_server is None:
            return
        try:
            addresses = await self.address_server.look_up()
        except NoNameServer as error:
            if not self.addresses:
                raise
            if not self._silent:
                logger.warning("%s; still using %s", error, ";".join(self.addresses))
            self._silent = True
            return
        self._silent = False
        if addresses != self.addresses:
            await self._change_to(addresses)

    async def connect(self) -> Channel:
        """Return a connection to the first name server that can be reached. Raises `NoNameServer` if none can."""
        if not self.addresses:
            await self.look_up()
        failures: list[Unavailable] = []
        for _ in self.addresses:
            try:
                return await self._pool.channel(self._address)
            except Unavailable as error:
                failures.append(error)
                self._current += 1
        raise self._nobody(failures) from (failures[-1] if failures else None)

    async def ask(self, header: Header, body: bytes = b"") -> Response:
        """Return the response, with any code, of the first name server that answers. Raises `NoNameServer`.

        Raises `UsageError` if the server is not a name server, for example a broker.
        """
        failures: list[Unavailable] = []
        for _ in self.addresses:
            try:
                async with asyncio.timeout(self._timeout):
                    channel = await self._pool.channel(self._address)
                    response = await channel.call(header, body or END_OF_LINE, timeout=self._timeout)
                    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                        raise UsageError(
                            f"{self._address} is not a name server: it does not support a request of name servers; "
                            "use the name server's port (9876 by default), not that of a broker (10911 by default)"
                        )
                    return response
            except Unavailable as error:
                failures.append(error)
                self._current += 1
            except TimeoutError:
                failures.append(DeadlineExceeded(f"{self._address} does not answer within {self._timeout:g} s"))
                self._current += 1
        if (known := self._known(header)) is not None:
            return Response(ResponseCode.SUCCESS, 0, body=encode_body(known))
        raise self._nobody(failures) from (failures[-1] if failures else None)

    @property
    def is_replaced(self) -> bool:
        """Whether a client can do without name servers, because another source knows the brokers."""
        return self._known(BrokerClusterInfo()) is not None

    def _known(self, header: Header) -> ClusterTable | TopicRoute | None:
        """Return what stands in for the answer of a name server; None if nothing does."""
        if self._stand_in is None or not isinstance(header, BrokerClusterInfo | RouteOfTopic):
            return None
        return self._stand_in(header.topic if isinstance(header, RouteOfTopic) else None)

    async def ask_each(self, header: Header, body: bytes = b"") -> list[Response]:
        """Send a request to each name server in turn and return the responses. Raises the first `Unavailable`."""
        responses = []
        for address in self.addresses:
            channel = await self._pool.channel(address)
            responses.append(await channel.call(header, body, timeout=self._timeout))
        return responses

    async def ask_reachable(self, header: Header) -> list[Response]:
        """Send a request to all name servers in parallel and return the responses of those that answer."""
        asked = await asyncio.gather(*(self.response_of(address, header) for address in self.addresses))
        return [response for response in asked if response is not None]

    async def response_of(self, address: str, header: Header) -> Response | None:
        """Return the response of one name server; None if it does not answer."""
        with suppress(Unavailable, TimeoutError):
            async with asyncio.timeout(self._timeout):
                return await (await self._pool.channel(address)).call(header, timeout=self._timeout)
        return None

    async def _change_to(self, addresses: list[str]) -> None:
        before, self.addresses = self.addresses, addresses
        current = before[self._current % len(before)] if before else None
        self._current = addresses.index(current) if current in addresses else random.randrange(len(addresses))
        if before:
            logger.info("name servers are now %s; they were %s", ";".join(addresses), ";".join(before))
        for gone in set(before) - set(addresses):
            await self._pool.drop(gone)

    @property
    def _address(self) -> str:
        return self.addresses[self._current % len(self.addresses)]

    def _nobody(self, failures: list[Unavailable]) -> NoNameServer:
        where, why = " or ".join(self.addresses), "; ".join(map(str, failures))
        if failures and isinstance(failures[-1], TlsRefused):
            return NoNameServer(f"no name server can be used at {where}: {failures[-1]}")
        if failures and all(isinstance(failure, HostNotFound) for failure in failures):
            return NoNameServer(f"no name server is found: {why}; correct the name of the host")
        return NoNameServer(f"no name server answers at {where} ({why}); start one there, or correct the address")
