"""`pyromq serve`: a name server and a broker in one process, or one of them alone: options and files to settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyromq.broker.config import BrokerConfig
from pyromq.cli import serving, tls_settings
from pyromq.cli.connecting import NAMESRV, connection_options, connections
from pyromq.cli.properties import (
    broker_settings,
    name_server_settings,
    read_properties,
    shared_name_server_settings,
)
from pyromq.client.cluster.environment import connections_of
from pyromq.errors import UsageError
from pyromq.nameserver.config import NameServerConfig
from pyromq.net.address_server import parse_addresses
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.server import ClientCertificates, ServerTlsConfig, TlsMode

if TYPE_CHECKING:
    from pyromq.metrics.config import MetricsConfig

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
_FILE = click.Path(exists=True, dir_okay=False)
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
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Where Prometheus finds /metrics, and others /healthz and /readyz. [default: nowhere; 0: any free]",
    ),
    click.option("--metrics-host", metavar="IP", help="Address of that port. [default: 127.0.0.1]"),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="warning",
        show_default=True,
        help="What is logged to standard error.",
    ),
    click.option(
        "--tls-mode",
        type=click.Choice([mode.value for mode in TlsMode]),
        help="Which connections are taken: plain ones, both, TLS only. [default: permissive with a --tls-cert]",
    ),
    click.option("--tls-cert", type=_FILE, metavar="FILE", help="Certificate that clients are shown (PEM)."),
    click.option("--tls-key", type=_FILE, metavar="FILE", help="Its key, where that is a file of its own."),
    click.option(
        "--tls-client-certs",
        type=click.Choice([each.value for each in ClientCertificates]),
        help="Whether clients show certificates, too. [default: none]",
    ),
    click.option("--tls-client-ca", type=_FILE, metavar="FILE", help="Who signs clients' certificates (PEM)."),
)
_TLS_NAMES = {
    "tls_mode": tls_settings.MODE,
    "tls_cert": tls_settings.CERTIFICATE,
    "tls_key": tls_settings.KEY,
    "tls_client_certs": tls_settings.CLIENT_CERTIFICATES,
    "tls_client_ca": tls_settings.AUTHORITY,
}
# Of a broker's connections to name servers.
_CONNECTING = connection_options("--tls-ca", "--tls-no-verify", "--access-key", "--secret-key", hidden=True)


def _with(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group(invoke_without_command=True)
@_with(_NAMESRV_PORT, *_BROKER_OPTIONS, *_COMMON_OPTIONS, _CONNECTING)
@click.option(
    "--console", is_flag=True, help="Run `pyromq console` beside them, a process of its own that ends with this."
)
@click.option("--console-port", type=click.IntRange(0, 65535), metavar="PORT", help="[default: 8876; 0: any free]")
@click.option(
    "--console-metrics-port",
    type=click.IntRange(0, 65535),
    metavar="PORT",
    help="Where Prometheus finds the console's own /metrics, at --metrics-host. [default: nowhere; 0: any free]",
)
@click.pass_context
def serve(
    ctx: click.Context,
    /,
    namesrv_port: int | None,
    log_level: str,
    console: bool,
    console_port: int | None,
    console_metrics_port: int | None,
    **options: Any,
) -> None:
    """Run a name server and a broker in this process, on loopback, until Ctrl-C.

    `serve namesrv` and `serve broker` run one role alone.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_lost_options(ctx)
        return
    properties = _read(options["config_file"])
    metrics = _metrics(properties, options)
    tls_properties = _tls_properties(properties, options)
    tls = tls_settings.server_tls(tls_properties)
    connecting = _connections(tls_properties, tls, itself=True)
    config = replace(_broker_config(properties, **options), tls=tls, connections=connecting)
    source = options["config_file"]
    settings = shared_name_server_settings(properties, source=source) if source else {}
    names = _name_server_config(settings, host=config.host, port=namesrv_port, data=config.data, tls=tls)
    if names.port == config.port != 0:
        raise click.UsageError(f"name server and broker cannot both listen on port {names.port}")
    if console_metrics_port is not None and not console:
        raise click.UsageError("--console-metrics-port is where the console tells its metrics: give --console, too")
    if metrics is not None and metrics.port == console_metrics_port != 0:
        raise click.UsageError(f"server and console cannot both tell metrics at port {metrics.port}")
    beside = _console_command(config.data, console_port, console_metrics_port, metrics) if console else None
    serving.run(serving.serve_both(names, config, metrics, console=beside), log_level)


@serve.command("namesrv")
@_with(_NAMESRV_PORT, *_COMMON_OPTIONS)
def serve_name_server(
    namesrv_port: int | None,
    host: str | None,
    data: Path | None,
    config_file: Path | None,
    log_level: str,
    **options: Any,
) -> None:
    """Run a name server alone."""
    properties = _read(config_file)
    metrics = _metrics(properties, options)
    settings = name_server_settings(properties, source=config_file) if config_file else {}
    tls = tls_settings.server_tls(_tls_properties(properties, options))
    config = _name_server_config(settings, host=host, port=namesrv_port, data=data or DEFAULT_DATA, tls=tls)
    serving.run(serving.serve_name_server(config, metrics), log_level)


@serve.command("broker")
@click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT;...|URL",
    help="Name servers to register with. [default: namesrvAddr of the --config file, else NAMESRV_ADDR]",
)
@_with(*_BROKER_OPTIONS, *_COMMON_OPTIONS, _CONNECTING)
def serve_broker(namesrv: str | None, log_level: str, **options: Any) -> None:
    """Run a broker alone."""
    properties = _read(options["config_file"])
    metrics = _metrics(properties, options)
    tls_properties = _tls_properties(properties, options)
    tls = tls_settings.server_tls(tls_properties)
    connecting = _connections(tls_properties, tls, itself=False)
    config = replace(_broker_config(properties, **options), tls=tls, connections=connecting)
    if namesrv is None and not config.namesrv:  # as upstream: whoever starts brokers may have it set for clients
        namesrv = os.environ.get(NAMESRV)
    if namesrv:
        config = replace(config, namesrv=tuple(parse_addresses(namesrv)))
    if not config.namesrv:
        raise click.UsageError(
            "clients find a broker through a name server: give one with --namesrv HOST:PORT, or as namesrvAddr in "
            "the --config file; or the URL of an address server, such as http://HOST:8080/rocketmq/nsaddr"
        )
    serving.run(serving.serve_broker(config, metrics), log_level)


def _console_command(
    data: Path, port: int | None, metrics_port: int | None, metrics: MetricsConfig | None
) -> list[str]:
    """Return how the console is started beside a broker: with its files in the broker's folder.

    `metrics` are the broker's: the console's port for them is opened where theirs is.
    """
    from pyromq.cli.commands.console import check_installed

    check_installed()
    command = [sys.executable, "-m", "pyromq", "console", "--data", str(data / "console"), "--ends-with-input"]
    if port is not None:
        command += ["--port", str(port)]
    if metrics_port is not None:
        command += ["--metrics-port", str(metrics_port)]
        command += ["--metrics-host", metrics.host] if metrics is not None else []
    return command


def _refuse_lost_options(ctx: click.Context) -> None:
    """Options between `serve` and the role would silently do nothing."""
    given = click.core.ParameterSource.COMMANDLINE
    lost = [option.opts[0] for option in ctx.command.params if ctx.get_parameter_source(option.name or "") is given]
    if lost:
        raise click.UsageError(f"write {', '.join(lost)} behind `serve {ctx.invoked_subcommand}`")


def _read(config_file: Path | None) -> dict[str, str]:
    return read_properties(config_file) if config_file is not None else {}


def _metrics(properties: Mapping[str, str], options: dict[str, Any]) -> MetricsConfig | None:
    """Return the settings of the port for metrics, None without one; its options are taken out of `options`."""
    port, host = options.pop("metrics_port"), options.pop("metrics_host")
    if port is None and "metricsPort" not in properties:
        if host is not None:
            raise click.UsageError("--metrics-host says where the port for metrics is: give --metrics-port, too")
        return None
    from pyromq.cli.metrics_settings import metrics_config  # a start without metrics does not pay for them

    return metrics_config(properties, port=port, host=host)


def _tls_properties(properties: Mapping[str, str], options: dict[str, Any]) -> dict[str, str]:
    """Return the settings with what options and environment say of TLS; these options are taken out of `options`."""
    password = os.environ.get("PYROMQ_TLS_KEY_PASSWORD")
    kept = {tls_settings.PASSWORD: password} if password else {}
    given = {name: options.pop(option) for option, name in _TLS_NAMES.items()}
    return {**kept, **properties, **{name: value for name, value in given.items() if value is not None}}


def _connections(tls_properties: Mapping[str, str], own: ServerTlsConfig | None, *, itself: bool) -> ConnectionConfig:
    """Return how a broker connects to name servers; `itself`: the first is in this process.

    Options and environment outrank the file.
    """
    given = connections_of(connections())
    tls = given.tls
    if tls is not None:
        tls = tls_settings.showing(tls, own)
    elif itself and own is not None and not tls_settings.CLIENT_NAMES & tls_properties.keys():
        tls = tls_settings.to_itself(own)
    else:
        tls = tls_settings.to_name_servers(tls_properties, own)
    return replace(given, tls=tls)


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
    settings: dict[str, Any] = {"data": data or DEFAULT_DATA}
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
    settings: Mapping[str, Any],
    *,
    host: str | None,
    port: int | None,
    data: Path,
    tls: ServerTlsConfig | None,
) -> NameServerConfig:
    given = {"host": host, "port": port, "tls": tls}
    kept: dict[str, Any] = {"kv_path": data / "namesrv" / "kvConfig.json"}
    kept |= settings
    kept |= {name: value for name, value in given.items() if value is not None}
    return NameServerConfig(**kept)
