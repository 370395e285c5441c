"""Runs servers until a signal comes: in order up, one screen of what to know, in order down.

Knows processes, signals and ports; reads no options.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyromq import speedups
from pyromq.broker.broker import VIP_CHANNEL, Broker
from pyromq.broker.config import BrokerConfig
from pyromq.errors import UsageError
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.nameserver import NameServer
from pyromq.net.serving_loop import new_serving_loop
from pyromq.net.tls.server import ClientCertificates, ServerTlsConfig, TlsMode

if TYPE_CHECKING:
    from pyromq.metrics.config import MetricsConfig

NAMESRV_PORT = 9876  # where clients look by default
EVERYWHERE = ("0.0.0.0", "::")
CONSOLE_SECONDS = 5.0  # that a console beside has to end


def run(serving: Coroutine[Any, Any, None], log_level: str) -> None:
    """Serve until SIGINT or SIGTERM; returns when everything is flushed and closed."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    _raise_file_limit()
    speedups.keep_memory()
    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        runner.run(serving)


async def serve_both(
    names: NameServerConfig,
    config: BrokerConfig,
    metrics: MetricsConfig | None,
    *,
    console: list[str] | None = None,
) -> None:
    """Run a name server, and a broker that registers with it; `console` is the command of a console beside them."""
    async with AsyncExitStack() as stack:
        name_server = await _enter(stack, NameServer(names), option="--namesrv-port")
        local = "127.0.0.1" if names.host in EVERYWHERE else names.host
        config = replace(config, namesrv=(_join(local, name_server.port), *config.namesrv))
        broker = await _enter(stack, Broker(config), option="--broker-port")
        address = _join(config.advertised_ip, name_server.port)
        click.echo(f"name server  {address}")
        _show_broker(broker)
        await _tell_metrics(stack, metrics, name_server, broker)
        _show_openness(config.host, config.tls, permissions=config.permissions)
        option = "" if address == f"127.0.0.1:{NAMESRV_PORT}" else f" --namesrv {address}"
        if config.tls is not None and config.tls.mode is TlsMode.ENFORCING:
            option += " --tls-ca AUTHORITY.pem"
        click.echo(f"try          pyromq send greetings 'hello world'{option}")
        click.echo(f"             pyromq consume greetings --from beginning{option}")
        if console is not None:
            await stack.enter_async_context(_beside([*console, "--namesrv", f"{local}:{name_server.port}"]))
        await _until_stopped()


async def serve_name_server(config: NameServerConfig, metrics: MetricsConfig | None) -> None:
    """Run a name server alone."""
    async with AsyncExitStack() as stack:
        name_server = await _enter(stack, NameServer(config), option="--namesrv-port")
        click.echo(f"name server  {name_server.address}")
        await _tell_metrics(stack, metrics, name_server)
        _show_openness(config.host, config.tls, permissions=config.permissions_path is not None)
        click.echo(f"try          pyromq serve broker --namesrv {name_server.address}")
        await _until_stopped()


async def serve_broker(config: BrokerConfig, metrics: MetricsConfig | None) -> None:
    """Run a broker alone."""
    async with AsyncExitStack() as stack:
        broker = await _enter(stack, Broker(config), option="--broker-port")
        _show_broker(broker)
        await _tell_metrics(stack, metrics, broker)
        _show_openness(config.host, config.tls, permissions=config.permissions)
        click.echo(f"name servers {'; '.join(config.namesrv)}")
        await _until_stopped()


@asynccontextmanager
async def _beside(command: list[str]) -> AsyncIterator[None]:
    """Run a process until this is left; it ends by itself when this process is gone, for its input ends then."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, start_new_session=True)
    assert process.stdin is not None
    try:
        yield
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(CONSOLE_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _enter(stack: AsyncExitStack, server: Any, *, option: str) -> Any:
    """Start a server; when it cannot listen, the error also names the option that helps."""
    host = "--metrics-host" if option == "--metrics-port" else "--host"
    try:
        return await stack.enter_async_context(server)
    except UsageError as error:
        text = str(error)
        if " is in use" in text or " may not be opened" in text:
            raise UsageError(f"{text}; choose another with {option} (0: any free port)") from error
        if " is no address of this machine" in text:
            raise UsageError(f"{text}; choose where to listen with {host} (0.0.0.0: everywhere)") from error
        raise


async def _tell_metrics(stack: AsyncExitStack, config: MetricsConfig | None, *servers: NameServer | Broker) -> None:
    """Open the port for metrics, where one is wanted."""
    if config is not None:
        from pyromq.metrics.endpoint import MetricsEndpoint  # a start without metrics does not pay for them

        endpoint = MetricsEndpoint([server.metrics() for server in servers], config)
        await _enter(stack, endpoint, option="--metrics-port")
        click.echo(f"metrics      http://{endpoint.address}/metrics")


def _show_broker(broker: Broker) -> None:
    config = broker.config
    listening = "" if config.host == config.advertised_ip else f", listening on {_join(config.host, broker.port)}"
    click.echo(f"broker       {broker.address}  ({config.name}, cluster {config.cluster}{listening})")
    if config.vip_channel:
        click.echo(f"VIP channel  {_join(config.advertised_ip, broker.port + VIP_CHANNEL)}")
    click.echo(f"data folder  {config.data.resolve()}")
    click.echo(f"hot path     {speedups.hot_path}")


def _show_openness(host: str, tls: ServerTlsConfig | None, *, permissions: bool = False) -> None:
    """Say which connections are taken, and what is missing where others than this machine's users can connect."""
    mode = tls.mode if tls is not None else TlsMode.DISABLED
    wanted = tls.client_certificates if tls is not None else ClientCertificates.NONE
    if mode is not TlsMode.DISABLED:
        click.echo(f"TLS          {mode.value}; certificates of clients: {wanted.value}")
    missing = [] if mode is TlsMode.ENFORCING else ["without TLS"]
    knows_clients = mode is TlsMode.ENFORCING and wanted is ClientCertificates.REQUIRE
    if not permissions and not knows_clients:
        missing.append("without permissions: whoever reaches it may read, change and delete everything")
    if missing and not _is_loopback(host):
        click.echo(f"open         {host} takes connections {', '.join(missing)}; see docs/security.md")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def _until_stopped() -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # What start-up made lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 5, 20)  # a look at 10,000 young objects takes a millisecond, in which nobody is answered
    click.echo(f"ready in {_process_age() * 1000:.0f} ms")
    sys.stdout.flush()
    await stop.wait()
    for number in (signal.SIGINT, signal.SIGTERM):  # who asks twice is in a hurry
        loop.remove_signal_handler(number)
    if sys.stderr.isatty():
        click.echo("stopping", err=True)


def _process_age() -> float:
    """Seconds since this process began, so that `ready in` counts the interpreter and the imports too."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / 100  # starttime, in clock ticks after boot
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()


def _raise_file_limit() -> None:
    """Each connection and each mapped file of the store is a descriptor; the default limit is for desktop programs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
