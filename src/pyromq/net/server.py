"""A listening port: accepts connections, feeds their bytes to an `Exchange`, writes its output, one write per burst.

The one place where answers that complete later hop back to the event loop.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import ssl
from collections.abc import Callable

from pyromq.clock import Clock
from pyromq.errors import ProtocolError, UsageError
from pyromq.net.listening import all_accepted, stop_listening
from pyromq.net.port_owner import port_owner
from pyromq.net.tasks import Tasks, every
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.exchange import Exchange

logger = logging.getLogger(__name__)

IDLE_SECONDS = 120.0  # upstream closes a connection without traffic after this
HIGH_WATER_BYTES = 4 << 20  # output a slow reader may leave unread before we stop reading its requests
WRITE_SECONDS = 1.0  # for what is ready to be written at the end, to a peer that may not read
BACKLOG = 1024


class Server:
    """Serves one dispatcher on one address. `port` is known after `start`, also when 0 was asked for."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.host = host
        self.port = port
        self.exchanges: set[Exchange] = set()
        self._dispatcher = dispatcher
        self._clock = clock
        self._tls = tls
        self._listener: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Listen. Raises `UsageError` naming the port, and its owner if known, when it cannot."""
        loop = asyncio.get_running_loop()
        try:
            self._listener = await loop.create_server(
                lambda: _Connection(self, loop), self.host, self.port, backlog=BACKLOG, ssl=self._tls
            )
        except (OSError, OverflowError) as error:  # the latter: a port beyond 65535
            raise UsageError(_listen_failure(self.host, self.port, error)) from error
        self.port = self._listener.sockets[0].getsockname()[1]
        self._tasks.start(every(10.0, self._close_idle, self._clock), name="close idle connections")
        self._tasks.start(every(0.5, self._expire_calls, self._clock), name="expire calls")

    def stop_accepting(self) -> None:
        """Take no new connections; those there are go on."""
        if self._listener is not None:
            stop_listening(self._listener)

    async def close(self, drain_seconds: float = 2.0) -> None:
        """Stop accepting, give parked answers `drain_seconds` to come, close every connection.

        Who does not read loses what was written to it.
        """
        self.stop_accepting()
        await all_accepted()
        await _poll(lambda: not any(exchange.parked for exchange in self.exchanges), drain_seconds)
        await self._tasks.stop()
        for connection in list(self._connections):
            connection.finish()
        await _poll(lambda: not self._connections, WRITE_SECONDS)
        if self._connections:
            self.cut()
            await _poll(lambda: not self._connections, WRITE_SECONDS)
        if self._listener is not None:
            await self._listener.wait_closed()

    def cut(self) -> None:
        """Break every connection at once, whatever is unwritten: what clients see of a crash."""
        for connection in list(self._connections):
            connection.cut()

    def _close_idle(self) -> None:
        oldest = self._clock.monotonic() - IDLE_SECONDS
        for connection in list(self._connections):
            if connection.idle_since() < oldest:
                connection.drop(f"no traffic for {IDLE_SECONDS:g} s")

    def _expire_calls(self) -> None:
        for exchange in self.exchanges:
            if exchange.waiting:
                exchange.expire()


class _Connection(asyncio.Protocol):
    """One accepted connection: bytes to the exchange, the exchange's output to the transport."""

    def __init__(self, server: Server, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._transport: asyncio.Transport
        self._exchange: Exchange
        self._flush_asked = False
        self._is_refused = False
        self._last_written = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._exchange = Exchange(
            self._server._dispatcher,
            self._server._clock,
            address=transport.get_extra_info("peername") or ("0.0.0.0", 0),
            wake=self._ask_flush,
            run_soon=self._run_soon,
        )
        self._server.exchanges.add(self._exchange)
        self._server._connections.add(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._exchange.receive(data)
        except ProtocolError as error:
            logger.warning("closing connection of %s: %s", self._exchange.address, error)
            self._is_refused = True
            self._flush()
            self._transport.close()
            return
        self._flush()

    def connection_lost(self, error: Exception | None) -> None:
        if self._exchange.unfinished and not self._is_refused:
            logger.warning(
                "connection of %s ended within a frame, after %d bytes",
                self._exchange.address,
                self._exchange.unfinished,
            )
        self._server.exchanges.discard(self._exchange)
        self._server._connections.discard(self)
        self._exchange.close(str(error) if error else "closed by peer")

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def idle_since(self) -> float:
        return max(self._exchange.last_heard, self._last_written)

    def drop(self, reason: str) -> None:
        """Close at once: what is still unwritten, nobody reads."""
        logger.info("closing connection of %s: %s", self._exchange.address, reason)
        self._transport.abort()

    def finish(self) -> None:
        """Write what is ready, then close."""
        self._flush()
        self._transport.close()

    def cut(self) -> None:
        self._transport.abort()

    def _flush(self) -> None:
        self._flush_asked = False
        output = self._exchange.take_output()
        if output:
            self._transport.write(output[0] if len(output) == 1 else b"".join(output))

    def _ask_flush(self) -> None:
        """Output came up outside `data_received`: write it at the end of this turn, together with what follows."""
        if not self._flush_asked:
            self._flush_asked = True
            self._last_written = self._server._clock.monotonic()
            self._loop.call_soon(self._flush)

    def _run_soon(self, *call: object) -> None:
        try:
            self._loop.call_soon_threadsafe(*call)  # type: ignore[arg-type]  # function and its arguments
        except RuntimeError:  # an answer completed by another thread after the loop has ended has nobody to go to
            logger.debug("an answer for %s came after the end", self._exchange.address)


async def _poll(done: Callable[[], bool], seconds: float) -> None:
    """Wait until something holds, but not longer. Looks again and again: only for what comes once in a life."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    turns = 0
    while not done() and loop.time() < deadline:
        turns += 1
        await asyncio.sleep(0 if turns < 10 else 0.005)  # closing a connection takes three turns


def _listen_failure(host: str, port: int, error: OSError | OverflowError) -> str:
    if isinstance(error, OverflowError):
        return f"cannot listen on {host}:{port}: a port is 0 to 65535"
    if error.errno == errno.EADDRINUSE:
        owner = port_owner(port)
        return f"port {port} at {host} is in use" + (f" by {owner}" if owner else "")
    if error.errno == errno.EACCES:
        return f"port {port} at {host} may not be opened by this user; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL or "could not bind on any address" in str(error):  # Python 3.13 on
        return f"{host} is no address of this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
