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
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.errors import UsageError
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.nameserver import NameServer

NAMESRV_PORT = 9876  # where clients look by default
EVERYWHERE = ("0.0.0.0", "::")


def run(serving: Coroutine[Any, Any, None], log_level: str) -> None:
    """Serve until SIGINT or SIGTERM; returns when everything is flushed and closed."""
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    _raise_file_limit()
    asyncio.run(serving)


async def serve_both(names: NameServerConfig, config: BrokerConfig) -> None:
    """Run a name server, and a broker that registers with it."""
    async with AsyncExitStack() as stack:
        name_server = await _enter(stack, NameServer(names), option="--namesrv-port")
        local = "127.0.0.1" if names.host in EVERYWHERE else names.host
        config = replace(config, namesrv=(_join(local, name_server.port), *config.namesrv))
        broker = await _enter(stack, Broker(config), option="--broker-port")
        address = _join(config.advertised_ip, name_server.port)
        click.echo(f"name server  {address}")
        _show_broker(broker)
        option = "" if address == f"127.0.0.1:{NAMESRV_PORT}" else f" --namesrv {address}"
        click.echo(f"try          pyromq send greetings 'hello world'{option}")
        click.echo(f"             pyromq consume greetings --from beginning{option}")
        await _until_stopped()


async def serve_name_server(config: NameServerConfig) -> None:
    """Run a name server alone."""
    async with AsyncExitStack() as stack:
        name_server = await _enter(stack, NameServer(config), option="--namesrv-port")
        click.echo(f"name server  {name_server.address}")
        click.echo(f"try          pyromq serve broker --namesrv {name_server.address}")
        await _until_stopped()


async def serve_broker(config: BrokerConfig) -> None:
    """Run a broker alone."""
    async with AsyncExitStack() as stack:
        broker = await _enter(stack, Broker(config), option="--broker-port")
        _show_broker(broker)
        click.echo(f"name servers {'; '.join(config.namesrv)}")
        await _until_stopped()


async def _enter(stack: AsyncExitStack, server: Any, *, option: str) -> Any:
    """Start a server; when it cannot listen, the error also names the option that helps."""
    try:
        return await stack.enter_async_context(server)
    except UsageError as error:
        text = str(error)
        if " is in use" in text or " may not be opened" in text:
            raise UsageError(f"{text}; choose another with {option} (0: any free port)") from error
        if " is no address of this machine" in text:
            raise UsageError(f"{text}; choose where to listen with --host (0.0.0.0: everywhere)") from error
        raise


def _show_broker(broker: Broker) -> None:
    config = broker.config
    listening = "" if config.host == config.advertised_ip else f", listening on {_join(config.host, broker.port)}"
    click.echo(f"broker       {broker.address}  ({config.name}, cluster {config.cluster}{listening})")
    click.echo(f"data folder  {config.data.resolve()}")


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
    gc.set_threshold(50_000, 20, 20)
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
