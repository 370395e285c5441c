"""The client's side of a connection: connects, sends requests, and answers the server's requests."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from errno import ECONNREFUSED
from functools import lru_cache
from socket import gaierror

from pyromq.clock import Clock
from pyromq.errors import DeadlineExceeded, HostNotFound, MQError, NotRunning, SilentServer, TlsRefused, Unavailable
from pyromq.logs import logger_of
from pyromq.net.connection import Connection
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.silent_servers import SilentServers
from pyromq.net.tasks import shared
from pyromq.net.tls.certificate_dates import SOON_DAYS, expiry, lifetime
from pyromq.net.tls.failures import refused_handshake
from pyromq.remoting.command import Response
from pyromq.remoting.dispatch import Completed, Dispatcher, Dispatching
from pyromq.remoting.header import Filled, Header

logger = logger_of(__name__)

CONNECT_SECONDS = 3.0
_ERRNO = re.compile(r"\[Errno (\d+)\]")
WRITE_SECONDS = 1.0  # longest time for writing the output at the end, to a peer that may not read


class Channel:
    """One open connection to a server, which all calls of a client share. Responses may arrive in any order."""

    def __init__(
        self, connection: Connection, ended: asyncio.Event, *, name: str = "", silent: SilentServers | None = None
    ) -> None:
        """`ended` is set when the connection has closed. `silent` has silent servers by `name`, the address."""
        self._name = name
        self._silent = silent
        self._connection = connection
        self.session = connection.session
        self.notify = connection.session.notify  # sends a one-way request
        self.flush = connection.flush  # writes the requests of this turn of the event loop immediately
        self.cut = connection.cut  # aborts the connection, as if this process had crashed or the network had failed
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        return self.session.address

    @property
    def local_address(self) -> tuple[str, int]:
        """The local host and port of the connection."""
        return self._connection.local_address

    @property
    def certificate_expiry(self) -> float | None:
        """When the server's certificate expires, seconds since 1970; None without TLS."""
        certificate = self._connection.peer_certificate
        return expiry(certificate) if certificate is not None else None

    @property
    def closed(self) -> bool:
        return self.session.closed

    def call_soon(self, header: Header | Filled, body: bytes = b"", *, timeout: float) -> asyncio.Future[Response]:
        """Send a request at the end of the event loop's turn; return a future of its response.

        The future gets the response whatever its code. The future fails with `DeadlineExceeded` or `ConnectionLost`.
        `timeout` is in seconds.
        """
        future: asyncio.Future[Response] = self._loop.create_future()

        def answered(result: Response | MQError) -> None:
            if future.done():
                return
            if isinstance(result, MQError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.ask(header, body, timeout=timeout, answered=answered)
        return future

    def ask(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Send a request as `call_soon` does; `answered` is called with the response or the error."""
        if self._silent is not None:
            try:
                self._silent.check(self._name)
            except SilentServer as error:
                answered(error)
                return
            answered = self._silent.around(self._name, answered)
        self.session.call(header, body, timeout=timeout, answered=answered)
        if self._expiry is None:
            self.watch()

    def watch(self) -> None:
        """Make calls fail at their deadlines. For callers that send through the session directly."""
        if self._expiry is None:
            self._expiry = self._loop.call_later(0.1, self._expire)

    def ask_at_once(self, header: Header | Filled, body: bytes = b"", *, timeout: float, answered: Completed) -> None:
        """Send a request as `ask` does, and write the bytes before returning.

        For callers that wait for this response only.
        """
        self._connection.hold()
        self.ask(header, body, timeout=timeout, answered=answered)
        self._connection.flush()

    async def call(self, header: Header | Filled, body: bytes = b"", *, timeout: float) -> Response:
        """Send a request and wait for the response.

        The timeout includes waiting until the peer reads earlier requests.
        """
        if not self._connection.writable.is_set():
            timeout = await self.writable(header.code, timeout)
        return await self.call_soon(header, body, timeout=timeout)

    async def writable(self, code: int, timeout: float) -> float:
        """Wait while the unsent bytes exceed `HIGH_WATER_BYTES`; return the remaining timeout in seconds.

        Raises `DeadlineExceeded` that names `code`, the code of the request.
        """
        deadline = self._loop.time() + timeout
        try:
            async with asyncio.timeout_at(deadline):
                await self._connection.writable.wait()
        except TimeoutError:
            text = f"{self.address} did not take request {code} within {timeout:g} s: it reads nothing"
            raise DeadlineExceeded(text) from None
        return deadline - self._loop.time()

    async def close(self) -> None:
        """Write the output, close the connection, and wait until it is closed.

        Bytes that the peer does not read within 1 s are lost.
        """
        if not self.session.closed:
            self._connection.finish()
            try:
                async with asyncio.timeout(WRITE_SECONDS):
                    await self._ended.wait()
            except TimeoutError:
                self._connection.cut()
        await self._ended.wait()
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None

    def _expire(self) -> None:
        self.session.expire()
        waiting = self.session.waiting and not self.session.closed
        self._expiry = self._loop.call_later(0.1, self._expire) if waiting else None


@asynccontextmanager
async def connected(address: str, clock: Clock, connections: ConnectionConfig) -> AsyncIterator[Channel]:
    """Connect as `connect` does, to send requests only. Leaving the context closes the connection."""
    channel = await connect(address, Dispatcher(), clock, connections=connections)
    try:
        yield channel
    finally:
        await channel.close()


async def connect(
    address: str,
    dispatcher: Dispatching,
    clock: Clock,
    *,
    connections: ConnectionConfig = PLAIN,
) -> Channel:
    """Open a connection to `host:port`.

    Raises `Unavailable` with address and reason, `TlsRefused` if the TLS handshake fails.
    """
    host, _, port = address.rpartition(":")
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    tls = connections.tls
    context = tls.context() if tls is not None else None
    name = tls.server_name if tls is not None else None

    def connection() -> Connection:
        return Connection(dispatcher, clock, connections, initiator=True, lost=lambda _: ended.set())

    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            transport, connected = await loop.create_connection(
                connection, host.strip("[]"), int(port), ssl=context, server_hostname=name
            )
    except ConnectionRefusedError as error:
        raise Unavailable(f"{address} refuses connections: nothing listens there") from error
    except TimeoutError as error:
        raise Unavailable(f"{address} cannot be reached within {CONNECT_SECONDS:g} s") from error
    except (gaierror, UnicodeError) as error:  # UnicodeError: an invalid host name
        reason = error.strerror if isinstance(error, gaierror) else "it is not a valid host name"
        raise HostNotFound(f"{address} cannot be reached: host {host!r} cannot be resolved ({reason})") from error
    except (OSError, ValueError, OverflowError) as error:  # OverflowError: a port beyond 65535
        # The connection was refused at every address of the host.
        if set(_ERRNO.findall(str(error))) == {str(ECONNREFUSED)}:
            raise Unavailable(f"{address} refuses connections: nothing listens there") from error
        if tls is not None and isinstance(error, ssl.SSLError | ConnectionResetError):
            raise TlsRefused(f"{address}: {refused_handshake(error, tls)}") from error
        raise Unavailable(f"{address} cannot be reached: {error}") from error
    if transport.get_extra_info("peername") is None:
        transport.abort()
        raise Unavailable(f"{address} closed the connection at once")
    channel = Channel(connected, ended, name=address, silent=connections.silent)
    if (end := channel.certificate_expiry) is not None and (left := end - clock.now_ms() / 1000) < SOON_DAYS * 86_400:
        _log_expiry(address, lifetime(left))
    return channel


@lru_cache(maxsize=1024)
def _log_expiry(address: str, life: str) -> None:
    """Log that the server's certificate expires soon: once per address and day.

    Connections reopen often, and `life` changes once a day.
    """
    logger.warning("the TLS certificate of %s %s", address, life)


class Pool:
    """The connections of one client, by address. `channel(address)` returns the open connection or opens one."""

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

        Raises `Unavailable` if the connection cannot be opened, `NotRunning` if the pool is closed meanwhile.
        """
        if (channel := self.open_channel(address)) is not None:
            return channel
        silent = self._connections.silent
        if silent is not None:
            silent.check(address)
        opening = self._opening.get(address)
        if opening is None:
            opening = self._opening[address] = asyncio.create_task(self._open(address), name=f"connect to {address}")
        try:
            return await shared(opening)
        except asyncio.CancelledError:
            if opening.cancelled():
                raise NotRunning(f"the client was closed while it connected to {address}") from None
            raise

    def channels(self) -> dict[str, Channel]:
        """Return the open connections by address."""
        return {address: channel for address, channel in self._channels.items() if not channel.closed}

    async def drop(self, address: str) -> None:
        """Close the connection to this address, if there is one."""
        if (channel := self._channels.pop(address, None)) is not None:
            await channel.close()

    async def close(self) -> None:
        """Close all connections, including connections that are being opened."""
        opening = list(self._opening.values())
        for task in opening:
            task.cancel()
        await asyncio.gather(*opening, return_exceptions=True)
        self._opening.clear()  # removes tasks that were cancelled before their first step
        for address in list(self._channels):
            await self.drop(address)

    async def _open(self, address: str) -> Channel:
        silent = self._connections.silent
        ended = silent.around(address, lambda _: None) if silent is not None else None
        try:
            channel = self._channels[address] = await connect(
                address, self._dispatcher, self._clock, connections=self._connections
            )
        except Unavailable as error:
            if silent is not None:
                silent.lost(address, error)
            raise
        finally:
            self._opening.pop(address, None)
            if ended is not None:
                ended(Unavailable(f"connecting to {address} has ended"))
        return channel
