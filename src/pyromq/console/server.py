"""Runs the console until SIGINT or SIGTERM: one process, one event loop, one port."""

from __future__ import annotations

import asyncio
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, contextmanager

import uvicorn

from pyromq.console.app import make_app
from pyromq.console.config import ConsoleConfig
from pyromq.console.console import Console
from pyromq.errors import UsageError
from pyromq.metrics.config import MetricsConfig
from pyromq.metrics.endpoint import MetricsEndpoint

GRACE_SECONDS = 2  # for answers under way; those who follow messages never end by themselves


async def serve(config: ConsoleConfig, tell: Callable[[str, str], None], *, ends_with_input: bool = False) -> None:
    """Serve until a signal comes, or the end of standard input; `tell` gets what listens, and its address.

    Raises `UsageError` for a port that is taken, or an address that accounts and TLS must protect.
    """
    console = Console(config)
    async with AsyncExitStack() as stack:
        stack.callback(console.audit.close)  # also where it comes to nothing
        listener = stack.enter_context(_listen(config))
        if config.metrics is not None:
            tell("metrics", await _tell_metrics(stack, console, config.metrics))
        server = Server(_settings(config, console))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, server.stop)
        if ends_with_input:
            loop.add_reader(sys.stdin.fileno(), server.stop)  # nothing is ever written to it: it can only end
        port = listener.getsockname()[1]
        host = f"[{config.host}]" if ":" in config.host else config.host
        tell("console", f"{'https' if config.tls_cert else 'http'}://{host}:{port}/")
        await server.serve(sockets=[listener])


def _settings(config: ConsoleConfig, console: Console) -> uvicorn.Config:
    return uvicorn.Config(
        make_app(console),
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ssl_certfile=config.tls_cert,
        ssl_keyfile=config.tls_key,
        h11_max_incomplete_event_size=64 << 10,
    )


async def _tell_metrics(stack: AsyncExitStack, console: Console, config: MetricsConfig) -> str:
    """Open the port for metrics; return its address."""
    try:
        endpoint = await stack.enter_async_context(MetricsEndpoint([console.metrics], config))
    except UsageError as error:
        raise UsageError(f"{error}; choose another with --metrics-port (0: any free port)") from error
    return f"http://{endpoint.address}/metrics"


class Server(uvicorn.Server):
    """Leaves signals to its caller: uvicorn would raise them once more when it has ended."""

    def stop(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _listen(config: ConsoleConfig) -> socket.socket:
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((config.host, config.port))
        listener.listen(128)  # from here on browsers may come: they wait until the application is ready
    except OSError as error:
        listener.close()
        raise UsageError(
            f"the console cannot listen on {config.host} port {config.port}: {error.strerror}; choose another with "
            "--port (0: any free port)"
        ) from error
    return listener
