"""A listening port: accepts connections, closes idle ones, and ends with all of them."""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.net.connection import Connection
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.listening import all_accepted, stop_listening
from pyromq.net.port_owner import port_owner
from pyromq.net.tasks import Tasks, every
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.exchange import Exchange

logger = logging.getLogger(__name__)

IDLE_SECONDS = 120.0  # upstream closes a connection without traffic after this
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
        connections: ConnectionConfig = PLAIN,
    ) -> None:
        self.host = host
        self.port = port
        self.exchanges: set[Exchange] = set()
        self._dispatcher = dispatcher
        self._clock = clock
        self._config = connections
        self._listener: asyncio.Server | None = None
        self._connections: set[Connection] = set()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Listen. Raises `UsageError` naming the port, and its owner if known, when it cannot."""
        tls = self._config.tls.server_context() if self._config.tls is not None else None
        try:
            self._listener = await asyncio.get_running_loop().create_server(
                self._new_connection, self.host, self.port, backlog=BACKLOG, ssl=tls
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

    def _new_connection(self) -> Connection:
        return Connection(
            self._dispatcher, self._clock, self._config, initiator=False, opened=self._opened, lost=self._lost
        )

    def _opened(self, connection: Connection) -> None:
        self.exchanges.add(connection.exchange)
        self._connections.add(connection)

    def _lost(self, connection: Connection) -> None:
        self.exchanges.discard(connection.exchange)
        self._connections.discard(connection)

    def _close_idle(self) -> None:
        oldest = self._clock.monotonic() - IDLE_SECONDS
        for connection in list(self._connections):
            if connection.idle_since < oldest:
                logger.info("closing connection of %s: no traffic for %g s", connection.exchange.address, IDLE_SECONDS)
                connection.cut()

    def _expire_calls(self) -> None:
        for exchange in self.exchanges:
            if exchange.waiting:
                exchange.expire()


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
