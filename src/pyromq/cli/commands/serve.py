"""`pyromq serve`: turns options and files into settings, and runs a name server, a broker or both."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pyromq.broker.config import BrokerConfig, from_java
from pyromq.broker.replication.failover_config import NO_FAILOVER, parse_etcd
from pyromq.broker.replication.set_record import MAX_REPLICA_NUMBER
from pyromq.cli import run_servers, tls_settings
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import NAMESRV, connection_options, connections, metrics_options
from pyromq.cli.ranges import Folder, WholeNumber
from pyromq.cli.server_properties import (
    broker_settings,
    metrics_config,
    name_server_settings,
    read_properties,
    shared_name_server_settings,
)
from pyromq.errors import UsageError
from pyromq.nameserver.name_server_config import NameServerConfig
from pyromq.net.address_server import parse_addresses
from pyromq.net.connection_config import ConnectionConfig
from pyromq.net.tls.tls_server import ClientCertificates, ServerTlsConfig, TlsMode
from pyromq.server_settings import settings_of

if TYPE_CHECKING:
    from pyromq.metrics.config import MetricsConfig

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_DATA = Path("pyromq-data")
ETCD_USER, ETCD_PASSWORD = "PYROMQ_ETCD_USER", "PYROMQ_ETCD_PASSWORD"


def _ip(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    if text is None:
        return None
    try:
        unusable = ip_address(text).is_unspecified
    except ValueError:
        raise click.BadParameter(f"{text!r} is not an IP address; clients and message ids need one") from None
    if unusable:
        raise click.BadParameter(
            f"clients cannot connect to {text}; give the address at which they reach this machine, and "
            f"--host {text} to listen on all of its addresses"
        )
    return text


def _etcd(ctx: click.Context, option: click.Parameter, text: str | None) -> str | None:
    try:
        if text is not None and not parse_etcd(text):
            raise click.BadParameter("give the URL of at least one member of etcd")
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return text


def _declared(option: str, config: type, field: str, text: str = "", **more: Any) -> Callable[[F], F]:
    """Return an option with the range and the default of a setting."""
    setting = settings_of(config)[field]
    kind = WholeNumber(*setting.range) if setting.range else None
    free = "; 0: any free" if field == "port" else ""
    return click.option(option, type=kind, help=f"{text}[default: {setting.default}{free}]", **more)


_NAMESRV_PORT = _declared("--namesrv-port", NameServerConfig, "port", metavar="PORT")
_BROKER_OPTIONS = (
    _declared("--broker-port", BrokerConfig, "port", metavar="PORT"),
    _declared("--broker-name", BrokerConfig, "name", "Name of the broker. ", metavar="NAME"),
    _declared("--broker-ip", BrokerConfig, "host", "Address given to clients. ", metavar="IP", callback=_ip),
)
_FILE = click.Path(exists=True, dir_okay=False)
_COMMON_OPTIONS = (
    click.option("--host", metavar="IP", help="Address to listen on. [default: --broker-ip, else 127.0.0.1]"),
    click.option(
        "--data",
        type=Folder(),
        help=f"Data folder, created if missing. [default: {DEFAULT_DATA}]",
    ),
    click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="Settings file in RocketMQ's properties format; options override it.",
    ),
    metrics_options,
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"], case_sensitive=False),
        default="warning",
        show_default=True,
        help="Lowest level logged to standard error.",
    ),
    click.option(
        "--tls-mode",
        type=click.Choice([mode.value for mode in TlsMode]),
        help="Accept plain connections, both, or TLS only. [default: permissive with --tls-cert]",
    ),
    click.option("--tls-cert", type=_FILE, metavar="FILE", help="Server certificate (PEM)."),
    click.option("--tls-key", type=_FILE, metavar="FILE", help="Private key of --tls-cert, if in another file."),
    click.option(
        "--tls-client-certs",
        type=click.Choice([each.value for each in ClientCertificates]),
        help="Whether clients must show certificates. [default: none]",
    ),
    click.option("--tls-client-ca", type=_FILE, metavar="FILE", help="Authority of client certificates (PEM)."),
)
_TLS_NAMES = {
    "tls_mode": tls_settings.MODE,
    "tls_cert": tls_settings.CERTIFICATE,
    "tls_key": tls_settings.KEY,
    "tls_client_certs": tls_settings.CLIENT_CERTIFICATES,
    "tls_client_ca": tls_settings.AUTHORITY,
}
# Options of a broker's connections to name servers.
_NAMESRV_CONNECTION = connection_options("--tls-ca", "--tls-no-verify", "--access-key", "--secret-key", hidden=True)


def _with(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


@click.group(cls=Group, invoke_without_command=True)
@_with(_NAMESRV_PORT, *_BROKER_OPTIONS, *_COMMON_OPTIONS, _NAMESRV_CONNECTION)
@click.option("--console", is_flag=True, help="Also run `pyromq console`, in a process that ends with this one.")
@click.option("--console-port", type=WholeNumber(0, 65535), metavar="PORT", help="[default: 8876; 0: any free]")
@click.option(
    "--console-metrics-port",
    type=WholeNumber(0, 65535),
    metavar="PORT",
    help="Port for the console's /metrics, at --metrics-host. [default: none; 0: any free]",
)
@click.option(
    "--grpc-port",
    type=WholeNumber(0, 65535),
    envvar="PYROMQ_GRPC_PORT",
    show_envvar=True,
    metavar="PORT",
    help="Also run `pyromq proxy` for clients of RocketMQ 5, at this port. [default: 8081 if installed; 0: none]",
)
@click.option(
    "--grpc-metrics-port",
    type=WholeNumber(1, 65535),
    metavar="PORT",
    help="Port for the proxy's /metrics, at --metrics-host. [default: none]",
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
    grpc_port: int | None,
    grpc_metrics_port: int | None,
    **options: Any,
) -> None:
    """Run a name server and a broker in one process, on loopback, until Ctrl-C.

    `serve namesrv` and `serve broker` run only one of them.
    """
    if ctx.invoked_subcommand is not None:
        _refuse_misplaced_options(ctx)
        return
    properties = _read(options["config_file"])
    metrics = _metrics(properties, options)
    tls_properties = _tls_properties(properties, options)
    tls = tls_settings.server_tls(tls_properties)
    namesrv_connections = _connections(tls_properties, tls, same_process=True)
    config = replace(_broker_config(properties, **options), tls=tls, connections=namesrv_connections)
    source = options["config_file"]
    settings = shared_name_server_settings(properties, source=source) if source else {}
    names = _name_server_config(settings, host=config.host, port=namesrv_port, data=config.data, tls=tls)
    if names.port == config.port != 0:
        raise click.UsageError(f"name server and broker cannot both listen on port {names.port}")
    for option, given in (("--console-port", console_port), ("--console-metrics-port", console_metrics_port)):
        if given is not None and not console:
            raise click.UsageError(f"{option} is a port of the console: give --console too")
    if metrics is not None and metrics.port == console_metrics_port != 0:
        raise click.UsageError(f"server and console cannot both use metrics port {metrics.port}")
    proxy_metrics = None
    if grpc_metrics_port is not None:
        host = metrics.host if metrics is not None else None
        proxy_metrics = metrics_config({}, port=grpc_metrics_port, host=host)
    proxy = _proxy_beside(config, grpc_port, proxy_metrics, log_level)
    command = _console_command(config.data, console_port, console_metrics_port, metrics) if console else None
    run_servers.run(run_servers.serve_both(names, config, metrics, console=command, proxy=proxy), log_level)


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
    """Run a name server only."""
    properties = _read(config_file)
    metrics = _metrics(properties, options)
    settings = name_server_settings(properties, source=config_file) if config_file else {}
    tls = tls_settings.server_tls(_tls_properties(properties, options))
    config = _name_server_config(settings, host=host, port=namesrv_port, data=data or DEFAULT_DATA, tls=tls)
    run_servers.run(run_servers.serve_name_server(config, metrics), log_level)


@serve.command("broker")
@click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT;...|URL",
    help="Name servers to register with. [default: namesrvAddr in --config, else NAMESRV_ADDR]",
)
@click.option(
    "--etcd",
    metavar="URL,...",
    callback=_etcd,
    help="Members of etcd: makes the broker one of a set of replicas, all with the same --broker-name.",
)
@click.option(
    "--replica",
    type=WholeNumber(1, MAX_REPLICA_NUMBER),
    metavar="N",
    help="Number of this replica in its set. [default: etcd gives one]",
)
@_with(*_BROKER_OPTIONS, *_COMMON_OPTIONS, _NAMESRV_CONNECTION)
def serve_broker(namesrv: str | None, log_level: str, **options: Any) -> None:
    """Run a broker only."""
    properties = _read(options["config_file"])
    metrics = _metrics(properties, options)
    tls_properties = _tls_properties(properties, options)
    tls = tls_settings.server_tls(tls_properties)
    namesrv_connections = _connections(tls_properties, tls, same_process=False)
    if namesrv is None and not properties.get("namesrvAddr"):  # as in RocketMQ: the variable of clients comes last
        namesrv = os.environ.get(NAMESRV)
    config = replace(_broker_config(properties, namesrv=namesrv, **options), tls=tls, connections=namesrv_connections)
    if not config.namesrv:
        raise click.UsageError(
            "a broker needs a name server: give one with --namesrv HOST:PORT, or as namesrvAddr in the --config file; "
            "or the URL of an address server, for example http://HOST:8080/rocketmq/nsaddr"
        )
    run_servers.run(run_servers.serve_broker(config, metrics), log_level)


def _proxy_beside(
    config: BrokerConfig, port: int | None, metrics: MetricsConfig | None, log_level: str
) -> run_servers.ProxyBeside | None:
    """Return how the proxy is started; None without one. The proxy uses the broker's accounts and certificate."""
    if metrics is not None and port == 0:
        raise click.UsageError("--grpc-metrics-port is a port of the proxy, and --grpc-port 0 starts none")
    if port == 0:
        return None
    from pyromq.cli.commands import proxy_commands

    if port is None and not proxy_commands.is_proxy_installed():
        return None
    proxy_commands.check_installed()
    acl = config.permissions_folder if config.permissions else None
    command, variables = proxy_commands.command_beside_servers(
        config.data, config.tls, metrics, acl=acl, log_level=log_level
    )
    return run_servers.ProxyBeside(port or proxy_commands.GRPC_PORT, port is not None, command, variables)


def _console_command(
    data: Path, port: int | None, metrics_port: int | None, metrics: MetricsConfig | None
) -> list[str]:
    """Return the command line of the console process. Its files lie in the broker's folder.

    Its metrics port is opened at the address of the broker's `metrics`.
    """
    from pyromq.cli.commands.console_commands import check_installed

    check_installed()
    command = [sys.executable, "-m", "pyromq", "console", "--data", str(data / "console"), "--ends-with-input"]
    if port is not None:
        command += ["--port", str(port)]
    if metrics_port is not None:
        command += ["--metrics-port", str(metrics_port)]
        command += ["--metrics-host", metrics.host] if metrics is not None else []
    return command


def _refuse_misplaced_options(ctx: click.Context) -> None:
    """Raise `click.UsageError` for options between `serve` and the subcommand: they would have no effect."""
    typed = click.core.ParameterSource.COMMANDLINE
    found = [option.opts[0] for option in ctx.command.params if ctx.get_parameter_source(option.name or "") is typed]
    if found:
        raise click.UsageError(f"write {', '.join(found)} after `serve {ctx.invoked_subcommand}`")


def _read(config_file: Path | None) -> dict[str, str]:
    return read_properties(config_file) if config_file is not None else {}


def _metrics(properties: Mapping[str, str], options: dict[str, Any]) -> MetricsConfig | None:
    """Return the settings of the metrics port, None without one; removes its options from `options`."""
    return metrics_config(properties, port=options.pop("metrics_port"), host=options.pop("metrics_host"))


def _tls_properties(properties: Mapping[str, str], options: dict[str, Any]) -> dict[str, str]:
    """Return the properties, overridden by the TLS options; removes these from `options`."""
    password = os.environ.get(tls_settings.PASSWORD_VARIABLE)
    kept = {tls_settings.PASSWORD: password} if password else {}
    given = {name: options.pop(option) for option, name in _TLS_NAMES.items()}
    return {**kept, **properties, **{name: value for name, value in given.items() if value is not None}}


def _connections(
    tls_properties: Mapping[str, str], own: ServerTlsConfig | None, *, same_process: bool
) -> ConnectionConfig:
    """Return the settings of a broker's connections to name servers. Options and environment override the file.

    With `same_process` the first name server runs in this process.
    """
    given = connections(waits=True)
    tls = given.tls
    if tls is not None:
        tls = tls_settings.with_certificate_of(tls, own)
    elif same_process and own is not None and not tls_settings.CLIENT_NAMES & tls_properties.keys():
        tls = tls_settings.same_process_tls(own)
    else:
        tls = tls_settings.name_server_tls(tls_properties, own)
    return replace(given, tls=tls)


def _broker_config(
    properties: Mapping[str, str],
    *,
    config_file: Path | None,
    data: Path | None,
    host: str | None,
    broker_ip: str | None,
    namesrv: str | None = None,
    **options: Any,
) -> BrokerConfig:
    """Return the broker's settings: options override the file, the file overrides defaults."""
    if data is not None:
        properties = {name: value for name, value in properties.items() if name != "storePathRootDir"}
    settings: dict[str, Any] = {"data": data or DEFAULT_DATA}
    set_options = {"failoverEtcd": options.get("etcd"), "replicaId": options.get("replica")}
    of_set = {name: str(value) for name, value in set_options.items() if value is not None}
    if config_file is not None:
        settings |= broker_settings({**properties, **of_set}, data=settings["data"], source=config_file)
    elif of_set:
        settings |= from_java(of_set, data=settings["data"])
    if settings.get("failover", NO_FAILOVER).etcd:
        account = {"etcd_user": os.environ.get(ETCD_USER, ""), "etcd_password": os.environ.get(ETCD_PASSWORD, "")}
        settings["failover"] = replace(settings["failover"], **account)
    given = {
        "host": host,
        "advertised_host": broker_ip,
        "namesrv": tuple(parse_addresses(namesrv)) if namesrv else None,
        "port": options["broker_port"],
        "name": options["broker_name"],
    }
    settings |= {name: value for name, value in given.items() if value is not None}
    if settings.get("advertised_host"):
        settings.setdefault("host", settings["advertised_host"])
    elif settings.get("host") in run_servers.EVERYWHERE:
        raise UsageError(
            f"a broker listening on {settings['host']} needs the address given to clients: set it with --broker-ip "
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
