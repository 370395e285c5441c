"""Opens and closes listening ports, accepts connections at them, and makes the event loop of a server process."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakKeyDictionary

from pyromq import speedups
from pyromq.clock import Clock
from pyromq.errors import UsageError
from pyromq.excerpt import excerpt
from pyromq.logs import logger_of
from pyromq.net.tls.first_bytes import FirstBytes
from pyromq.net.tls.tls_server import ServerContext
from pyromq.platforms import platform
from pyromq.remoting.rejection_log import RejectionLog

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.fast_path import FastHandler
    from pyromq.speedups.reactor import Reactor, ServingSelector

logger = logger_of(__name__)

BACKLOG = 1024
_ACCEPTED_AT_ONCE = 64
_PAUSE_SECONDS = 1.0  # pause before accepting again if the process has no free descriptor
_TRIES = 20  # limit of tries to find two free ports at the wanted distance
OpenPorts = Sequence[socket.socket]  # sockets that listen
_ACCEPT_TURNS = 3  # turns of the event loop until the protocol of an accepted connection is called


class Listener(Protocol):
    """An object that accepts connections at open ports."""

    @property
    def sockets(self) -> Sequence[Any]: ...

    def get_loop(self) -> asyncio.AbstractEventLoop: ...

    def close(self) -> None: ...

    async def wait_closed(self) -> None: ...


class HandingListener:
    """Accepts connections as `asyncio.Server` does, and passes each socket, which does not block, to `serve`."""

    def __init__(
        self,
        sockets: Sequence[socket.socket],
        serve: Callable[[socket.socket], object],
        *,
        reactor: Reactor | None,
        first_bytes: FirstBytes | None = None,
    ) -> None:
        """Listen at `sockets`. `reactor` and `first_bytes` are closed with the listener."""
        self.sockets = sockets
        self._serve = serve
        self._reactor = reactor
        self._first_bytes = first_bytes
        self._loop = asyncio.get_running_loop()
        for each in sockets:
            self._loop.add_reader(each.fileno(), self._accept, each)

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return bool(self.sockets)

    def close(self) -> None:
        sockets, self.sockets = self.sockets, ()
        for each in sockets:
            self._loop.remove_reader(each.fileno())
            each.close()
        if self._first_bytes is not None:
            self._first_bytes.close()

    async def wait_closed(self) -> None:
        """Close reactor and waiting connections. Call this method when all connections have ended."""
        if self._first_bytes is not None:
            await self._first_bytes.wait_closed()
        if self._reactor is not None:
            self._reactor.close()

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                logger.warning("accepting connections pauses for %g s: %s", _PAUSE_SECONDS, error)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_PAUSE_SECONDS, self._resume, listening)
                return
            accepted.setblocking(False)
            accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._serve(accepted)

    def _resume(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)


async def listen(
    factory: Callable[[], asyncio.Protocol],
    host: str,
    port: int,
    *,
    clock: Clock,
    refusals: RejectionLog,
    beside: int = 0,
    opened: OpenPorts = (),
    tls: ServerContext | None = None,
    fast_path: Sequence[FastHandler] = (),
    busy_poll_us: int = 0,
    kept_bytes: int = 16 << 20,
) -> Listener:
    """Open a port and return its listener, with the compiled reactor if available, otherwise with asyncio's transports.

    `beside` is the distance of a second port for the same protocols; 0: none. `opened` are sockets that already listen
    at these ports. `fast_path` answers frequent requests in the reactor. `kept_bytes` limits the incomplete requests in
    the reactor. Raises `UsageError` that names a port that cannot be opened.
    """
    loop = asyncio.get_running_loop()
    sockets = opened
    if not opened:
        sockets = await _open_both(host, port, beside) if beside else await open_port(host, port)
    reactor = None
    if speedups.is_active:
        reactor = Reactor(
            loop,
            monotonic=clock.monotonic,
            fast_path=fast_path,
            busy_poll_us=busy_poll_us,
            kept_bytes=kept_bytes,
            selector=selector_of(loop),
        )

    def serve(accepted: socket.socket, protocol: asyncio.Protocol) -> None:
        if reactor is not None:
            reactor.add(accepted, protocol)
        else:
            serve_by_asyncio(accepted, protocol)

    if tls is None:
        return HandingListener(sockets, lambda accepted: serve(accepted, factory()), reactor=reactor)
    first_bytes = FirstBytes(tls, clock, refusals, factory=factory, serve=serve)
    return HandingListener(sockets, first_bytes.add, reactor=reactor, first_bytes=first_bytes)


async def open_port(host: str, port: int) -> list[socket.socket]:
    """Return listening sockets for all addresses of a host. Raises `UsageError` if the port cannot be opened."""
    try:
        opened = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port, start_serving=False)
    except (OSError, OverflowError, UnicodeError) as error:  # a port beyond 65535, a host that cannot be a name
        raise UsageError(listen_failure(host, port, error)) from error
    sockets = [socket.socket(fileno=os.dup(each.fileno())) for each in opened.sockets]
    opened.close()
    for each in sockets:
        each.setblocking(False)
        each.listen(BACKLOG)
    return sockets


async def _open_both(host: str, port: int, beside: int) -> list[socket.socket]:
    """Return the listening sockets of a port, then of the port at distance `beside`.

    For port 0 any free pair of ports is used.
    """
    for left in reversed(range(_TRIES)):
        opened = await open_port(host, port)
        try:
            return opened + await open_port(host, opened[0].getsockname()[1] + beside)
        except UsageError as error:
            for each in opened:
                each.close()
            if port or not left:
                raise UsageError(f"{error}; it is opened together with port {port}") from error
    raise AssertionError("the last try returns or raises")


def listen_failure(host: str, port: int, error: OSError | OverflowError | UnicodeError) -> str:
    """Return the error text for a port that cannot be opened."""
    if isinstance(error, OverflowError):
        return f"cannot listen on {host}:{port}: a port is 0 to 65535"
    if isinstance(error, UnicodeError):
        return f"cannot listen on {excerpt(host)}:{port}: it is not a valid host name"
    if error.errno == errno.EADDRINUSE:
        owner = platform.port_owner(port)
        return f"port {port} at {host} is in use" + (f" by {owner}" if owner else "")
    if error.errno == errno.EACCES:
        return f"port {port} at {host} may not be opened by this user; choose one above 1023"
    if error.errno == errno.EADDRNOTAVAIL or "could not bind on any address" in str(error):  # from Python 3.13 on
        return f"{host} is not an address of this machine"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"


def serve_by_asyncio(accepted: socket.socket, protocol: asyncio.Protocol) -> None:
    """Serve a connection with a transport of asyncio."""
    loop = asyncio.get_running_loop()
    connecting = loop.create_task(loop.connect_accepted_socket(lambda: protocol, accepted), name="take a connection")
    _connecting.add(connecting)  # the event loop keeps only weak references to tasks
    connecting.add_done_callback(_connecting.discard)


_connecting: set[asyncio.Task[tuple[asyncio.Transport, asyncio.Protocol]]] = set()


def stop_listening(listener: Listener) -> None:
    """Stop accepting connections; the port is free two turns of the event loop later. Idempotent.

    A connection accepted in this turn still gets its transport: asyncio would leave the socket open otherwise.
    """
    loop = listener.get_loop()
    for each in listener.sockets:
        loop.remove_reader(each.fileno())
    loop.call_soon(listener.close)


async def all_accepted() -> None:
    """Wait until the protocols of all connections accepted before `stop_listening` are called."""
    for _ in range(_ACCEPT_TURNS):
        await asyncio.sleep(0)


_selectors: WeakKeyDictionary[asyncio.AbstractEventLoop, ServingSelector] = WeakKeyDictionary()


def new_serving_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop for a server process, whose selector serves connections while the loop waits.

    Without compiled parts the loop is asyncio's own. The compiled reactor works in any other loop as well, but there
    every burst of requests costs a turn of the loop.
    """
    if not speedups.is_active:
        return asyncio.new_event_loop()
    selector = ServingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    _selectors[loop] = selector
    return loop


def selector_of(loop: asyncio.AbstractEventLoop) -> ServingSelector | None:
    """Return the selector of an event loop made by `new_serving_loop`; None for other loops."""
    return _selectors.get(loop)
