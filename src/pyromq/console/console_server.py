"""Runs the console until SIGINT or SIGTERM: one process, one event loop, one port."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import uvicorn

from pyromq.console.app import make_app
from pyromq.console.browser_connections import BrowserConnections
from pyromq.console.console import Console
from pyromq.console.console_config import ConsoleConfig
from pyromq.errors import UsageError
from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.endpoint import MetricsEndpoint
from pyromq.net.listening import HandingListener
from pyromq.platforms import platform

GRACE_SECONDS = 2  # time for responses to end at the stop: a response that follows messages never ends by itself


async def serve(config: ConsoleConfig, opened: Callable[[str, str], None], *, ends_with_input: bool = False) -> None:
    """Serve until a signal arrives or standard input ends. `opened` gets title and address of each port.

    Raises `UsageError` for a port in use, or for an address that needs accounts and TLS.
    """
    console = Console(config)
    async with AsyncExitStack() as stack:
        stack.callback(console.audit.close)  # the audit log is closed also if the start fails
        listener = stack.enter_context(_listen(config, "--console-port" if ends_with_input else "--port"))
        if config.metrics is not None:
            opened("metrics", await _open_metrics(stack, console, config.metrics))
        server = ConsoleServer(console)
        stack.callback(platform.on_stop_signals(server.stop))
        if ends_with_input:
            # The parent process writes nothing to standard input: it becomes readable when the parent ends.
            asyncio.get_running_loop().add_reader(sys.stdin.fileno(), server.stop)
        port = listener.getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        opened("console", f"{'https' if config.tls_cert else 'http'}://{host}:{port}/")
        await server.serve(sockets=[listener])


async def _open_metrics(stack: AsyncExitStack, console: Console, config: MetricsConfig) -> str:
    """Open the port for metrics; return its address."""
    try:
        endpoint = await stack.enter_async_context(MetricsEndpoint([console.metrics], config))
    except UsageError as error:
        raise UsageError(f"{error}; choose another with --metrics-port (0: any free port)") from error
    return f"http://{endpoint.address}/metrics"


class ConsoleServer(uvicorn.Server):
    """Runs uvicorn on the given sockets.

    The caller handles signals, because uvicorn would raise them again when it ends.
    """

    def __init__(self, console: Console, *, max_connections: int | None = None) -> None:
        super().__init__(_settings(console))
        self._connections = BrowserConnections(self, console, most=max_connections)
        self._listener: HandingListener | None = None

    def stop(self) -> None:
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])  # `BrowserConnections` accepts, because asyncio has no limit of connections
        self._connections.start()
        for each in sockets or ():
            each.setblocking(False)
        self._listener = HandingListener(sockets or (), self._connections.take, reactor=None)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._listener is not None:
            self._listener.close()
        await super().shutdown()
        await self._connections.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _settings(console: Console) -> uvicorn.Config:
    config = console.config
    return uvicorn.Config(
        make_app(console),
        log_level="error",  # `BrowserConnections` logs warnings with a rate limit, so that no client can fill the disk
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        h11_max_incomplete_event_size=64 << 10,
    )


def _listen(config: ConsoleConfig, option: str) -> socket.socket:
    """Return a listening socket. Raises `UsageError`, which names the option of the port."""
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(128)  # browsers may connect from here on; they wait until the application is ready
    except (OSError, UnicodeError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "it is not a valid host name"
        raise UsageError(
            f"the console cannot listen on {config.host} port {config.port}: {reason}; choose another with "
            f"{option} (0: any free port)"
        ) from error
    return listener
