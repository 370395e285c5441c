"""Starts servers in order, prints their addresses, and stops the servers in reverse order on SIGINT or SIGTERM.

Reads no options and no files.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click

from pyromq import speedups
from pyromq.broker.broker import VIP_CHANNEL, Broker
from pyromq.broker.config import BrokerConfig
from pyromq.errors import StoreError, UsageError
from pyromq.logs import logger_of
from pyromq.message import join_address
from pyromq.nameserver.name_server import NameServer
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.listening import new_serving_loop, open_port
from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode
from pyromq.platforms import platform
from pyromq.store.directory import check_platform

if TYPE_CHECKING:
    from pyromq.metrics.config import MetricsConfig
    from pyromq.proxy.proxy import Proxy
    from pyromq.proxy.proxy_config import ProxyConfig

logger = logger_of(__name__)

NAMESRV_PORT = 9876  # default port of a name server, which clients use
EVERYWHERE = ("0.0.0.0", "::")
CHILD_SECONDS = 5.0  # longest wait for the end of the console or the proxy, which is then killed


@dataclass(frozen=True, slots=True)
class ProxyBeside:
    """How `serve` starts a proxy: its port, whether the user chose the port, command line and environment."""

    port: int
    is_chosen: bool
    command: list[str]
    variables: dict[str, str]


def run(serving: Coroutine[Any, Any, None], log_level: str) -> None:
    """Run the servers until SIGINT or SIGTERM. Return when all data is flushed and all ports are closed."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    try:
        check_platform()
    except UsageError:
        serving.close()
        raise
    if log_level != "debug":
        logger_of("httpx").setLevel(logging.WARNING)  # httpx logs every request to etcd: four a second
    platform.raise_descriptor_limit()
    speedups.keep_memory()
    gc.disable()  # until the servers are ready: a start creates up to millions of objects, and all of them stay
    with asyncio.Runner(loop_factory=new_serving_loop) as runner:
        runner.run(serving)


async def serve_both(
    names: NameServerConfig,
    config: BrokerConfig,
    metrics: MetricsConfig | None,
    *,
    console: list[str] | None = None,
    proxy: ProxyBeside | None = None,
) -> None:
    """Run a name server and a broker that registers there.

    `console` is the command line of a console process, or None; `proxy` says how a proxy is started.
    """
    async with AsyncExitStack() as stack:
        name_server = await _start(stack, NameServer(names), option="--namesrv-port")
        local = "127.0.0.1" if names.host in EVERYWHERE else names.host
        namesrv = join_address(local, name_server.port)
        config = replace(config, namesrv=(namesrv, *config.namesrv))
        broker = await _start(stack, Broker(config), option="--broker-port")
        address = join_address(config.advertised_ip, name_server.port)
        click.echo(f"name server  {address}")
        _show_broker(broker)
        await _start_metrics(stack, metrics, name_server, broker)
        _show_security(config.host, config.tls, permissions=config.permissions)
        if proxy is not None:
            await _start_proxy(stack, proxy, host=config.host, namesrv=namesrv)
        option = "" if address == f"127.0.0.1:{NAMESRV_PORT}" else f" --namesrv {address}"
        if config.tls is not None and config.tls.mode is TlsMode.ENFORCING:
            option += " --tls-ca AUTHORITY.pem"
        if config.permissions:
            option += " --access-key KEY --secret-key @FILE"
        click.echo(f"try          pyromq send greetings 'hello world'{option}")
        click.echo(f"             pyromq consume greetings --from beginning{option}")
        if console is not None:
            await stack.enter_async_context(_child_process("console", [*console, "--namesrv", namesrv]))
        await _until_stopped()


async def _start_proxy(stack: AsyncExitStack, proxy: ProxyBeside, *, host: str, namesrv: str) -> None:
    """Open the port for clients of RocketMQ 5, and start the proxy that serves it. Connections wait for its start.

    If the default port is in use, for example by another `pyromq serve`, this is printed, and there is no proxy.
    """
    try:
        listening, *others = await open_port(host, proxy.port)
    except UsageError as error:
        text = f"{error}; choose another with --grpc-port (0: no proxy)"
        if proxy.is_chosen:
            raise UsageError(text) from error
        click.echo(f"gRPC         no proxy for RocketMQ 5's clients: {text}")
        return
    for each in others:  # a host with several addresses: clients find the first one
        each.close()
    with listening:
        number = listening.fileno()
        command = [*proxy.command, "--namesrv", namesrv, "--listening", str(number)]
        await stack.enter_async_context(
            _child_process("proxy", command, variables=proxy.variables, descriptors=(number,))
        )
        click.echo(f"gRPC         {join_address(*listening.getsockname()[:2])}")


async def serve_proxy(config: ProxyConfig, metrics: MetricsConfig | None, *, ends_with_input: bool) -> None:
    """Run a proxy for clients of RocketMQ 5 until SIGINT or SIGTERM, or until standard input ends."""
    from pyromq.proxy.proxy import Proxy  # imported late: needs the packages of the extra `grpc`

    async with AsyncExitStack() as stack:
        proxy = await _start(stack, Proxy(config), option="--port")
        await _start_metrics(stack, metrics, proxy, is_quiet=ends_with_input)
        if ends_with_input:
            loop, number = asyncio.get_running_loop(), sys.stdin.fileno()
            ended: asyncio.Future[None] = loop.create_future()
            # The parent process writes nothing: standard input becomes readable when the parent ends.
            loop.add_reader(number, ended.cancel)
            stack.callback(loop.remove_reader, number)
            await _until_stopped(ended, is_quiet=True)
            return
        click.echo(f"gRPC         {proxy.address}")
        click.echo(f"name servers {config.namesrv}")
        _show_security(config.host, config.tls, permissions=config.acl is not None)
        await _until_stopped()


async def serve_name_server(config: NameServerConfig, metrics: MetricsConfig | None) -> None:
    """Run a name server only."""
    async with AsyncExitStack() as stack:
        name_server = await _start(stack, NameServer(config), option="--namesrv-port")
        click.echo(f"name server  {name_server.address}")
        await _start_metrics(stack, metrics, name_server)
        _show_security(config.host, config.tls, permissions=config.permissions_path is not None)
        click.echo(f"try          pyromq serve broker --namesrv {name_server.address}")
        await _until_stopped()


async def serve_broker(config: BrokerConfig, metrics: MetricsConfig | None) -> None:
    """Run a broker only; with etcd, as a replica of a set."""
    async with AsyncExitStack() as stack:
        if config.failover.etcd:
            await _serve_replica(stack, config, metrics)
            return
        broker = await _start(stack, Broker(config), option="--broker-port")
        _show_broker(broker)
        await _start_metrics(stack, metrics, broker)
        _show_security(config.host, config.tls, permissions=config.permissions)
        click.echo(f"name servers {'; '.join(config.namesrv)}")
        await _until_stopped()


async def _serve_replica(stack: AsyncExitStack, config: BrokerConfig, metrics: MetricsConfig | None) -> None:
    from pyromq.broker.replication.etcd import EtcdRegistry  # imported late: only replicas need httpx
    from pyromq.broker.replication.replica_server import ReplicaServer

    failover = config.failover
    registry = EtcdRegistry(
        failover.etcd, user=failover.etcd_user, password=failover.etcd_password, tls=failover.etcd_tls
    )
    stack.push_async_callback(registry.close)
    server = await _start(stack, ReplicaServer(config, registry), option="--broker-port")
    _show_broker(server.broker)
    await _start_metrics(stack, metrics, server)
    _show_security(config.host, config.tls, permissions=config.permissions)
    click.echo(f"name servers {'; '.join(config.namesrv)}")
    click.echo(f"replica      {server.number} of the set {config.name}, replication at {server.ha_address}")
    await _until_stopped(server.failed)


@asynccontextmanager
async def _child_process(
    name: str, command: list[str], *, variables: Mapping[str, str] | None = None, descriptors: Sequence[int] = ()
) -> AsyncIterator[None]:
    """Run a child process until the context exits, and log an error if the child ends before.

    If this process dies, the end of the child's standard input ends the child.
    """
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *command, stdin=pipe, start_new_session=True, env={**os.environ, **(variables or {})}, pass_fds=descriptors
    )
    assert process.stdin is not None
    watching = asyncio.create_task(_report_end(process, name), name=f"end of the {name}")
    try:
        yield
    finally:
        watching.cancel()
        process.stdin.close()
        try:
            async with asyncio.timeout(CHILD_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _report_end(process: asyncio.subprocess.Process, name: str) -> None:
    code = await process.wait()
    logger.error("the %s ended with exit code %d; name server and broker run on, restart `pyromq serve`", name, code)


async def _start(stack: AsyncExitStack, server: Any, *, option: str) -> Any:
    """Start a server. If the server cannot listen or use its folder, the error also names the option to change."""
    host = "--metrics-host" if option.endswith("metrics-port") else "--host"
    try:
        return await stack.enter_async_context(server)
    except StoreError as error:
        if str(error).endswith(" another folder"):
            raise type(error)(f"{error} with --data (setting storePathRootDir)") from error
        raise
    except UsageError as error:
        text = str(error)
        if " may not be opened" in text:
            raise UsageError(f"{text}, with {option}") from error
        if " is in use" in text:
            raise UsageError(f"{text}; choose another with {option} (0: any free port)") from error
        if " is not an address of this machine" in text:
            raise UsageError(f"{text}; choose the address to listen on with {host} (0.0.0.0: all)") from error
        raise


async def _start_metrics(
    stack: AsyncExitStack, config: MetricsConfig | None, *servers: NameServer | Broker | Proxy, is_quiet: bool = False
) -> None:
    """Open the port for metrics, if one is configured."""
    if config is not None:
        from pyromq.metrics.endpoint import MetricsEndpoint  # imported late: servers without metrics do not load it

        endpoint = MetricsEndpoint([server.metrics() for server in servers], config)
        # Only a proxy that `serve` started is quiet: its user gave options of `serve`.
        await _start(stack, endpoint, option="--grpc-metrics-port" if is_quiet else "--metrics-port")
        if not is_quiet:
            click.echo(f"metrics      http://{endpoint.address}/metrics")


def _show_broker(broker: Broker) -> None:
    config = broker.config
    listening = (
        "" if config.host == config.advertised_ip else f", listening on {join_address(config.host, broker.port)}"
    )
    click.echo(f"broker       {broker.address}  ({config.name}, cluster {config.cluster}{listening})")
    if config.vip_channel:
        click.echo(f"VIP channel  {join_address(config.advertised_ip, broker.port + VIP_CHANNEL)}")
    click.echo(f"data folder  {config.data.resolve()}")
    click.echo(f"hot path     {speedups.hot_path}")


def _show_security(host: str, tls: ServerTlsConfig | None, *, permissions: bool = False) -> None:
    """Print the TLS mode, and a warning if other machines can connect without TLS or without permissions."""
    mode = tls.mode if tls is not None else TlsMode.DISABLED
    wanted = tls.client_certificates if tls is not None else ClientCertificates.NONE
    if mode is not TlsMode.DISABLED:
        click.echo(f"TLS          {mode.value}; client certificates: {wanted.value}")
    missing = [] if mode is TlsMode.ENFORCING else ["without TLS"]
    knows_clients = mode is TlsMode.ENFORCING and wanted is ClientCertificates.REQUIRE
    if not permissions and not knows_clients:
        missing.append("without permissions: every client may read, change and delete everything")
    if missing and not _is_loopback(host):
        click.echo(f"open         {host} accepts connections {', '.join(missing)}; see docs/security.md")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _until_stopped(failed: asyncio.Future[None] | None = None, *, is_quiet: bool = False) -> None:
    """Print that the servers are ready, and wait for SIGINT or SIGTERM. Raises the error of `failed`."""
    stop = asyncio.Event()
    end = platform.on_stop_signals(stop.set)
    # Objects of the start live as long as the process. Frozen objects are not traversed in each garbage collection.
    gc.collect()
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 5, 20)  # collecting 10,000 young objects blocks the event loop for a millisecond
    age = platform.process_age()  # includes the interpreter's start and the imports
    if not is_quiet:
        click.echo(f"ready in {(time.process_time() if age is None else age) * 1000:.0f} ms")
    sys.stdout.flush()
    if failed is not None:
        failed.add_done_callback(lambda _: stop.set())
    await stop.wait()
    if failed is not None and failed.done() and not failed.cancelled():
        failed.result()
    end()
    if sys.stderr.isatty():
        click.echo("stopping", err=True)
