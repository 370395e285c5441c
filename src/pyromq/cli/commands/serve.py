"""`pyromq serve`: a name server and a broker in one process, or one of them alone: options and files to settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar

import click

from pyromq.broker.config import BrokerConfig
from pyromq.cli import serving
from pyromq.cli.properties import (
    broker_settings,
    name_server_settings,
    read_properties,
    shared_name_server_settings,
)
from pyromq.client.cluster.name_servers import parse_addresses
from pyromq.errors import UsageError
from pyromq.nameserver.config import NameServerConfig

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATA = Path("pyromq-data")


def _ip(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        unusable = ip_address(text).is_unspecified
    except ValueError:
        raise click.BadParameter(f"{text!r} is no IP address; clients and message ids need one") from None
    if unusable:
        raise click.BadParameter(
            f"clients cannot connect to {text}; give the address by which they reach this machine, and "
            f"--host {text} to listen on all of its addresses"
        )
    return text


_NAMESRV_PORT = click.option(
    "--namesrv-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help=f"[default: {serving.NAMESRV_PORT}; 0: any free]",
)
_BROKER_OPTIONS = (
    click.option("--broker-port", type=click.IntRange(0, 65535), metavar="PORT", help="[default: 10911; 0: any free]"),
    click.option("--broker-name", metavar="NAME", help="Name of the broker. [default: broker-a]"),
    click.option("--broker-ip", callback=_ip, metavar="IP", help="Address that clients are told. [default: 127.0.0.1]"),
)
_COMMON_OPTIONS = (
    click.option("--host", metavar="IP", help="Address to listen on. [default: --broker-ip, else 127.0.0.1]"),
    click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help=f"Folder of messages and settings, made when absent. [default: {DEFAULT_DATA}]",
    ),
    click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings in RocketMQ's properties format; options given here win.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="warning",
        show_default=True,
        help="What is logged to standard error.",
    ),
)


def _with(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group(invoke_without_command=True)
@_with(_NAMESRV_PORT, *_BROKER_OPTIONS, *_COMMON_OPTIONS)
@click.pass_context
def serve(ctx: click.Context, /, namesrv_port: int | None, log_level: str, **options: Any) -> None:
    """Run a name server and a broker in this process, on loopback, until Ctrl-C.

    `serve namesrv` and `serve broker` run one role alone.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_lost_options(ctx)
        return
    properties = _read(options["config_file"])
    config = _broker_config(properties, **options)
    source = options["config_file"]
    settings = shared_name_server_settings(properties, source=source) if source else {}
    names = _name_server_config(settings, host=config.host, port=namesrv_port, data=config.data)
    if names.port == config.port != 0:
        raise click.UsageError(f"name server and broker cannot both listen on port {names.port}")
    serving.run(serving.serve_both(names, config), log_level)


@serve.command("namesrv")
@_with(_NAMESRV_PORT, *_COMMON_OPTIONS)
def serve_name_server(
    namesrv_port: int | None, host: str | None, data: Path | None, config_file: Path | None, log_level: str
) -> None:
    """Run a name server alone."""
    settings = name_server_settings(_read(config_file), source=config_file) if config_file else {}
    config = _name_server_config(settings, host=host, port=namesrv_port, data=data or DEFAULT_DATA)
    serving.run(serving.serve_name_server(config), log_level)


@serve.command("broker")
@click.option("-n", "--namesrv", envvar="NAMESRV_ADDR", metavar="HOST:PORT;...", help="Name servers to register with.")
@_with(*_BROKER_OPTIONS, *_COMMON_OPTIONS)
def serve_broker(namesrv: str | None, log_level: str, **options: Any) -> None:
    """Run a broker alone."""
    config = _broker_config(_read(options["config_file"]), **options)
    if namesrv:
        config = replace(config, namesrv=tuple(parse_addresses(namesrv)))
    if not config.namesrv:
        raise click.UsageError(
            "clients find a broker through a name server: give one with --namesrv HOST:PORT, or as namesrvAddr in "
            "the --config file"
        )
    serving.run(serving.serve_broker(config), log_level)


def _refuse_lost_options(ctx: click.Context) -> None:
    """Options between `serve` and the role would silently do nothing."""
    given = click.core.ParameterSource.COMMANDLINE
    lost = [option.opts[0] for option in ctx.command.params if ctx.get_parameter_source(option.name or "") is given]
    if lost:
        raise click.UsageError(f"write {', '.join(lost)} behind `serve {ctx.invoked_subcommand}`")


def _read(config_file: Path | None) -> dict[str, str]:
    return read_properties(config_file) if config_file is not None else {}


def _broker_config(
    properties: Mapping[str, str],
    *,
    config_file: Path | None,
    data: Path | None,
    host: str | None,
    broker_ip: str | None,
    **options: Any,
) -> BrokerConfig:
    """Options outrank the file, the file outranks defaults."""
    if data is not None:
        properties = {name: value for name, value in properties.items() if name != "storePathRootDir"}
    settings: dict[str, Any] = {"data": data or DEFAULT_DATA, "config_file": config_file}
    if config_file is not None:
        settings |= broker_settings(properties, data=settings["data"], source=config_file)
    given = {
        "host": host,
        "advertised_host": broker_ip,
        "port": options["broker_port"],
        "name": options["broker_name"],
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    if settings.get("advertised_host"):
        settings.setdefault("host", settings["advertised_host"])
    elif settings.get("host") in serving.EVERYWHERE:
        raise UsageError(
            f"listening on {settings['host']} needs the address that clients are told: give it with --broker-ip "
            "(setting brokerIP1)"
        )
    return BrokerConfig(**settings)


def _name_server_config(
    settings: Mapping[str, Any], *, host: str | None, port: int | None, data: Path
) -> NameServerConfig:
    given = {"host": host, "port": port}
    kept: dict[str, Any] = {"kv_path": data / "namesrv" / "kvConfig.json"}
    kept |= settings
    kept |= {name: value for name, value in given.items() if value is not None}
    return NameServerConfig(**kept)
