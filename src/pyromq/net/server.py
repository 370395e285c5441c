"""A server: opens its port, and limits and closes the connections of clients."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.logs import logger_of
from pyromq.net.connection import Connection, FairScheduler, Shared
from pyromq.net.connection_config import PLAIN, ConnectionConfig
from pyromq.net.listening import Listener, OpenPorts, all_accepted, listen, stop_listening
from pyromq.net.tasks import Tasks, every
from pyromq.net.tls.tls_server import ServerContext, ServerTlsConfig, TlsMode
from pyromq.platforms import platform
from pyromq.remoting.connection_limits import DEFAULT_CONNECTION_LIMITS, Budget, ConnectionLimits
from pyromq.remoting.dispatch import Dispatcher
from pyromq.remoting.rejection_log import IDLE
from pyromq.remoting.remoting_session import RemotingSession

if TYPE_CHECKING:
    from pyromq.speedups.fast_path import FastHandler

logger = logger_of(__name__)

IDLE_SECONDS = 120.0  # time after which a connection without traffic is closed, as in RocketMQ
KEPT_SHARE = 4  # the compiled reactor may keep 1/4 of `received_bytes`, besides the bytes that connections charge
RESET_SECONDS = 0.02  # between the last replies and a reset, which discards unsent bytes
_OTHER_DESCRIPTORS = 64  # least number of descriptors reserved for files of the store
WRITE_SECONDS = 1.0  # longest time for writing the output at the end, to peers that may not read


class Server:
    """Serves one dispatcher at one address. After `start`, `port` is the port in use, also if port 0 was given.

    `beside` is the distance of a second port; connections of both ports count together. `opened` are the sockets of an
    earlier server at these ports (`keep_ports`). `fast_path` answers frequent requests as the dispatcher would. The
    fast path is not used with hooks, or with a guard that is not compiled.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        clock: Clock,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        beside: int = 0,
        opened: OpenPorts = (),
        connections: ConnectionConfig = PLAIN,
        limits: ConnectionLimits = DEFAULT_CONNECTION_LIMITS,
        tls: ServerTlsConfig | None = None,
        fast_path: Sequence[FastHandler] = (),
        busy_poll_us: int = 0,
    ) -> None:
        self.host = host
        self.port = port
        self._beside = beside
        self._listening_sockets = opened
        self.sessions: set[RemotingSession] = set()
        self._dispatcher = dispatcher
        self._clock = clock
        self._config = connections
        self._limits = limits
        self._refusals = dispatcher.refusals
        self._shared: Shared | None = None
        self._max_connections = min(limits.connections, _max_descriptors())
        self._by_host: Counter[str] = Counter()
        self._on_opened, self._on_lost = self._opened, self._lost  # methods bound once, not for each connection
        self._tls = tls
        self._fast_path = fast_path
        self._busy_poll_us = busy_poll_us
        self._listener: Listener | None = None
        self._connections: set[Connection] = set()
        self._tasks = Tasks()

    async def start(self) -> None:
        """Open the port.

        Raises `UsageError` naming the port (and its owner, if known) or a TLS file that cannot be used.
        """
        self._shared = Shared(Budget(self._limits, self._refusals), FairScheduler(self._clock))
        context = None
        if self._tls is not None and self._tls.mode is not TlsMode.DISABLED:
            context = ServerContext(self._tls, self._clock)
        self._listener = await listen(
            self._new_connection,
            self.host,
            self.port,
            clock=self._clock,
            tls=context,
            refusals=self._refusals,
            beside=self._beside,
            opened=self._listening_sockets,
            fast_path=() if self._config.hooks or not self._dispatcher.allows_fast_path else self._fast_path,
            busy_poll_us=self._busy_poll_us,
            kept_bytes=self._limits.received_bytes // KEPT_SHARE,
        )
        self.port = self._listener.sockets[0].getsockname()[1]
        self._tasks.start(every(10.0, self._close_idle, self._clock), name="close idle connections")
        self._tasks.start(every(0.5, self._expire_calls, self._clock), name="expire calls")

    def keep_ports(self) -> OpenPorts:
        """Return sockets that keep the ports open when this server stops, so that clients wait for the next server."""
        return () if self._listener is None else [each.dup() for each in self._listener.sockets]

    def stop_accepting(self) -> None:
        """Stop accepting connections; open connections stay."""
        if self._listener is not None:
            stop_listening(self._listener)

    async def close(self, drain_seconds: float = 2.0, *, reset: bool = False) -> None:
        """Stop accepting, wait `drain_seconds` for requests in flight, then close every connection.

        With `reset`, peers detect immediately that requests without a reply are lost, and repeat these requests. Bytes
        that a peer does not read within 1 s are lost. Afterwards no request is answered or retried.
        """
        self.stop_accepting()
        await all_accepted()
        await _poll(lambda: not any(each.owes_replies for each in self._connections), drain_seconds)
        await self._tasks.stop()
        for connection in list(self._connections):
            connection.flush()
        if reset:
            await asyncio.sleep(RESET_SECONDS)
        for connection in list(self._connections):
            connection.reset() if reset else connection.finish()
        await _poll(lambda: not self._connections, WRITE_SECONDS)
        if self._connections:
            self.cut()
            await _poll(lambda: not self._connections, WRITE_SECONDS)
        if self._shared is not None:
            self._shared.budget.is_over = True
        if self._listener is not None:
            await self._listener.wait_closed()

    def cut(self) -> None:
        """Abort every connection, as a crash of the process would."""
        for connection in list(self._connections):
            connection.cut()

    def _new_connection(self) -> Connection:
        return Connection(
            self._dispatcher,
            self._clock,
            self._config,
            initiator=False,
            shared=self._shared,
            opened=self._on_opened,
            lost=self._on_lost,
        )

    def _opened(self, connection: Connection) -> None:
        address = connection.session.address
        host = address.rpartition(":")[0]
        if len(self._connections) >= self._max_connections:
            self._refuse(connection, "maxConnections", self._max_connections)
        elif self._by_host[host] >= self._limits.connections_per_address:
            self._refuse(connection, "maxConnectionsPerAddress", self._limits.connections_per_address)
        else:
            self.sessions.add(connection.session)
            self._connections.add(connection)
            self._by_host[host] += 1

    def _refuse(self, connection: Connection, setting: str, limit: int) -> None:
        address = connection.session.address
        self._refusals.note(setting, address, "no connection for %s: there are %d (%s)", address, limit, setting)
        connection.cut()

    def _lost(self, connection: Connection) -> None:
        if connection not in self._connections:  # the connection was refused when it was opened
            return
        self.sessions.discard(connection.session)
        self._connections.discard(connection)
        host = connection.session.address.rpartition(":")[0]
        self._by_host[host] -= 1
        if not self._by_host[host]:
            del self._by_host[host]

    def _close_idle(self) -> None:
        now = self._clock.monotonic()
        idle, stuck = now - IDLE_SECONDS, now - self._limits.frame_timeout_ms / 1000
        for connection in list(self._connections):
            since = connection.idle_since
            if since >= stuck:
                continue
            if since < idle:
                self._close(connection, IDLE, "no traffic for", IDLE_SECONDS, logging.INFO)
            elif connection.is_within_frame:
                self._close(connection, "frameTimeoutMillis", "no further byte of a request for", now - since)

    def _close(
        self, connection: Connection, reason: str, why: str, seconds: float, level: int = logging.WARNING
    ) -> None:
        address = connection.session.address
        self._refusals.note(reason, address, "closing connection of %s: %s %d s", address, why, seconds, level=level)
        connection.cut()

    def _expire_calls(self) -> None:
        for session in self.sessions:
            if session.waiting:
                session.expire()


def _max_descriptors() -> int:
    """Return the limit of connections that leaves enough file descriptors for files.

    Raises `UsageError` if there are too few for both.
    """
    limit = platform.descriptor_limit()
    if limit < 2 * _OTHER_DESCRIPTORS:
        raise UsageError(
            f"this process may open {limit} files; a server needs at least {2 * _OTHER_DESCRIPTORS}: raise the limit, "
            "for example by `ulimit -n 4096`"
        )
    return limit - max(_OTHER_DESCRIPTORS, limit // 8)


async def _poll(done: Callable[[], bool], seconds: float) -> None:
    """Wait until `done` returns true, at most `seconds`. Polling suits only the end of a server."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    turns = 0
    while not done() and loop.time() < deadline:
        turns += 1
        await asyncio.sleep(0 if turns < 10 else 0.005)  # closing a connection takes three turns of the event loop
