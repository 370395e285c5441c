"""`pyromq serve`: a name server and a broker in this process, or one of them alone, until a signal comes."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import click

from pyromq.broker.broker import Broker
from pyromq.broker.config import BrokerConfig
from pyromq.cli.properties import broker_settings, namesrv_settings, read_properties
from pyromq.errors import UsageError
from pyromq.nameserver.config import NameServerConfig
from pyromq.nameserver.nameserver import NameServer

F = TypeVar("F", bound=Callable[..., Any])

NAMESRV_PORT = 9876
BROKER_PORT = 10911
DEFAULT_DATA = "pyromq-data"


def _data_option(command: F) -> F:
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        default=DEFAULT_DATA,
        show_default=True,
        help="Folder of messages and settings; made when absent.",
    )(command)


def _config_option(command: F) -> F:
    return click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings in RocketMQ's properties format; options given here win.",
    )(command)


def _broker_options(command: F) -> F:
    for option in (
        click.option("--broker-ip", help="Address told to clients; also listened on. [default: 127.0.0.1]"),
        click.option("--broker-name", help="Name of the broker. [default: broker-a]"),
        click.option("--broker-port", type=click.IntRange(0, 65535), help=f"[default: {BROKER_PORT}; 0: any free]"),
        click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="warning"),
        _config_option,
        _data_option,
    ):
        command = option(command)
    return command


def _namesrv_port_option(command: F) -> F:
    return click.option(
        "--namesrv-port", type=click.IntRange(0, 65535), help=f"[default: {NAMESRV_PORT}; 0: any free]"
    )(command)


@click.group(invoke_without_command=True)
@_broker_options
@_namesrv_port_option
@click.pass_context
def serve(ctx: click.Context, namesrv_port: int | None, **options: Any) -> None:
    """Run a name server and a broker in this process, on loopback, until Ctrl-C.

    `serve namesrv` and `serve broker` run one role alone.
    """
    if ctx.invoked_subcommand is not None:
        return
    config = _broker_config(**options)
    names = _namesrv_config(namesrv_port, options["config_file"], host=config.host, data=options["data"])
    _run(_serve_both(names, config), options["log_level"])


@serve.command("namesrv")
@_namesrv_port_option
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning"]), default="warning")
@_config_option
@_data_option
def serve_namesrv(namesrv_port: int | None, host: str, log_level: str, config_file: Path | None, data: Path) -> None:
    """Run a name server alone."""
    _run(_serve_names(_namesrv_config(namesrv_port, config_file, host=host, data=data)), log_level)


@serve.command("broker")
@_broker_options
@click.option("-n", "--namesrv", envvar="NAMESRV_ADDR", metavar="HOST:PORT;...", help="Name servers to register with.")
def serve_broker(namesrv: str | None, **options: Any) -> None:
    """Run a broker alone."""
    config = _broker_config(**options)
    if namesrv:
        config = replace(config, namesrv=tuple(address for part in namesrv.split(";") if (address := part.strip())))
    _run(_serve_broker(config), options["log_level"])


def _broker_config(
    *,
    data: Path,
    config_file: Path | None,
    broker_port: int | None,
    broker_name: str | None,
    broker_ip: str | None,
    log_level: str,
) -> BrokerConfig:
    settings: dict[str, Any] = {"data": data}
    if config_file is not None:
        settings |= broker_settings(read_properties(config_file), data=data, source=str(config_file))
        settings["config_file"] = config_file
    given = {"port": broker_port, "name": broker_name, "host": broker_ip, "advertised_host": broker_ip}
    settings |= {name: value for name, value in given.items() if value is not None}
    return BrokerConfig(**settings)


def _namesrv_config(port: int | None, config_file: Path | None, *, host: str, data: Path) -> NameServerConfig:
    settings: dict[str, Any] = {"host": host, "kv_path": data / "namesrv" / "kvConfig.json"}
    if config_file is not None:
        settings |= namesrv_settings(read_properties(config_file))
    if port is not None:
        settings["port"] = port
    return NameServerConfig(**settings)


async def _serve_both(names: NameServerConfig, config: BrokerConfig) -> None:
    started = _process_start()
    async with _named_option("--namesrv-port", NameServer(names)) as name_server:
        config = replace(config, namesrv=(name_server.address, *config.namesrv))
        async with _named_option("--broker-port", Broker(config)) as broker:
            click.echo(f"name server  {name_server.address}")
            click.echo(f"broker       {broker.address}  ({config.name}, cluster {config.cluster})")
            click.echo(f"data folder  {config.data.resolve()}")
            suffix = "" if name_server.port == NAMESRV_PORT else f" --namesrv {name_server.address}"
            click.echo("try          " + f"pyromq send hello-topic 'hello, queue'{suffix}")
            click.echo("             " + f"pyromq consume hello-topic --from beginning{suffix}")
            await _until_stopped(started)


async def _serve_names(config: NameServerConfig) -> None:
    started = _process_start()
    async with _named_option("--namesrv-port", NameServer(config)) as name_server:
        click.echo(f"name server  {name_server.address}")
        click.echo(f"try          pyromq serve broker --namesrv {name_server.address}")
        await _until_stopped(started)


async def _serve_broker(config: BrokerConfig) -> None:
    started = _process_start()
    async with _named_option("--broker-port", Broker(config)) as broker:
        click.echo(f"broker       {broker.address}  ({config.name}, cluster {config.cluster})")
        click.echo(f"data folder  {config.data.resolve()}")
        names = "; ".join(config.namesrv) or "none: clients will not find this broker (--namesrv HOST:PORT)"
        click.echo(f"name servers {names}")
        await _until_stopped(started)


class _named_option(contextlib.AbstractAsyncContextManager[Any]):
    """Enters a server; when its port is taken, the error also names the option that chooses another."""

    def __init__(self, option: str, server: Any) -> None:
        self._option = option
        self._server = server

    async def __aenter__(self) -> Any:
        try:
            return await self._server.__aenter__()
        except UsageError as error:
            if "port" in str(error):
                raise UsageError(f"{error}; choose another with {self._option} (0: any free port)") from error
            raise

    async def __aexit__(self, *failure: Any) -> None:
        await self._server.__aexit__(*failure)


async def _until_stopped(started: float) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    # What start-up made lives as long as the process: the collector need not look at it again and again.
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    click.echo(f"ready in {(time.time() - started) * 1000:.0f} ms")
    sys.stdout.flush()
    await stop.wait()
    if sys.stderr.isatty():
        click.echo("stopping", err=True)


def _process_start() -> float:
    """Return when this process began, in seconds since 1970, so that `ready in` counts the imports too."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text().split()[0])
        age = uptime - int(fields[19]) / 100  # starttime, in clock ticks after boot
        return time.time() - age
    except (OSError, ValueError, IndexError):
        return time.time()


def _run(service: Any, log_level: str) -> None:
    logging.basicConfig(
        level=log_level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr
    )
    asyncio.run(service)
