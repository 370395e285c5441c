"""Options that say how a command connects: name servers, TLS, account. Also the port at which a server is measured.

The TLS and account options belong to `pyromq` itself and to every command that connects. Each option overrides an
environment variable. The current context (`pyromq context`) fills in unset values; a context named with `--context`
overrides the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from pyromq.cli.ranges import ANY_TEXT, WholeNumber, count_advice

if TYPE_CHECKING:
    from pyromq.net.connection_config import ConnectionConfig

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

DEFAULT_NAMESRV = "127.0.0.1:9876"
NAMESRV = "NAMESRV_ADDR"

# Keys in click's `Context.meta`, which lasts for one command.
_GIVEN = "pyromq.connections"  # environment variables set by options or by the pyromq context
_NAMESRV = "pyromq.namesrv"  # name servers of this command
_SILENT = "pyromq.silent"  # servers that do not answer this command


def namesrv_option(command: F) -> F:
    """Add `--namesrv HOST:PORT[;HOST:PORT]`, also read from NAMESRV_ADDR as in Java, and the connection options."""
    option = click.option(
        "-n",
        "--namesrv",
        envvar=NAMESRV,
        default=DEFAULT_NAMESRV,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT;...|URL",
        help="Name servers, or the URL of an address server.",
        callback=_note_namesrv,
    )
    return connection_options(hidden=True)(option(command))


def with_admin(command: Callable[..., T]) -> Callable[..., T]:
    """Add `--namesrv` and the connection options; the command's first argument is a connected `Admin`."""

    @namesrv_option
    @wraps(command)
    def run(namesrv: str, *args: Any, **kwargs: Any) -> T:
        from pyromq import Admin  # imported late, as in `connections`

        with Admin(namesrv, connections=connections()) as admin:
            return command(admin, *args, **kwargs)

    return run


def metrics_options(command: F) -> F:
    """Add `--metrics-port` and `--metrics-host`, for commands that serve."""
    port = click.option(
        "--metrics-port",
        type=WholeNumber(0, 65535),
        metavar="PORT",
        help="Port for /metrics (Prometheus), /healthz and /readyz. [default: none; 0: any free]",
    )
    host = click.option("--metrics-host", metavar="IP", help="Address of the metrics port. [default: 127.0.0.1]")
    return port(host(command))


def namespace_option(command: F) -> F:
    """Add `--namespace NAME`, for commands that send or consume. Admin commands take the brokers' full names."""
    option = click.option(
        "--namespace",
        envvar="PYROMQ_NAMESPACE",
        show_envvar=True,
        type=ANY_TEXT,  # an empty string means no namespace, and overrides the environment
        metavar="NAME",
        help="Namespace of topics and groups: brokers see NAME%TOPIC and NAME%GROUP.",
    )
    return option(command)


def connection_options(*only: str, hidden: bool) -> Callable[[F], F]:
    """Add the TLS and account options, or `only` those named.

    Subcommands hide these options; `pyromq --help` shows them.
    """

    def add(command: F) -> F:
        for name, variable, options in reversed(_OPTIONS):
            if only and name not in only:
                continue
            settings = {"expose_value": False, "hidden": hidden, "callback": _note(variable), **options}
            command = click.option(name, **settings)(command)
        return command

    return add


def connections(*, waits: bool = False) -> ConnectionConfig:
    """Return the connection settings from this command's options and the environment.

    All clients of the command together wait only once for a broker that hangs. With `waits`, for commands that serve or
    wait for messages, each request waits until the broker is back.
    """
    # Imported late: imports above would double the time of `pyromq --help`.
    from pyromq.client.cluster.environment import connections_with
    from pyromq.clock import SystemClock
    from pyromq.net.silent_servers import SilentServers

    context = click.get_current_context(silent=True)
    meta = context.meta if context is not None else {}
    found = connections_with(meta.get(_GIVEN, {}))
    return found if waits else replace(found, silent=meta.setdefault(_SILENT, SilentServers(SystemClock())))


def use(ctx: click.Context, variables: Mapping[str, str]) -> None:
    """Set environment variables for this command; options override these variables."""
    given = ctx.meta.setdefault(_GIVEN, {})
    for name, value in variables.items():
        if name == NAMESRV:
            ctx.meta[_NAMESRV] = value
        else:
            given.setdefault(name, value)


def namesrv_in_use(ctx: click.Context) -> str:
    """Return the name servers of this command. Before `--namesrv` is parsed, return the default of that option."""
    return str(ctx.meta.get(_NAMESRV) or os.environ.get(NAMESRV, DEFAULT_NAMESRV))


def variable_options(command: F) -> F:
    """Add all connection options, unprocessed; each argument is named after its environment variable."""
    for name, variable, options in reversed(_OPTIONS):
        command = click.option(name, variable, **options)(command)
    return command


def export_to_environment() -> None:
    """Export the connection options to `os.environ`, for child processes such as Spark's workers."""
    os.environ.update(click.get_current_context().meta.get(_GIVEN, {}))


def _note_namesrv(ctx: click.Context, option: click.Parameter, value: str) -> str:
    """Store the name servers of this command: the option if typed, else those of the context, else `value`."""
    if ctx.get_parameter_source(str(option.name)) is not ParameterSource.COMMANDLINE:
        value = ctx.meta.get(_NAMESRV, value)
    elif value.isascii() and value.isdigit():  # in other programs -n is a count
        advice = count_advice(ctx.command, value)
        raise click.BadParameter(f"-n names the name servers, and {value} is not HOST:PORT{advice}")
    ctx.meta[_NAMESRV] = value
    return value


def _note(variable: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def note(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if isinstance(value, str) and not value.strip():  # a connection without TLS would be a surprise
            raise click.BadParameter("it is empty; give a value, or leave it out", ctx, option)
        if value:
            given = ctx.meta.setdefault(_GIVEN, {})
            given[variable] = _text(option, value)
            if variable.startswith("PYROMQ_TLS"):
                given["PYROMQ_TLS"] = "true"  # overrides PYROMQ_TLS=false of the environment

    return note


def _text(option: click.Parameter, value: Any) -> str:
    if option.name == "tls_no_verify":
        return "false"
    text = "true" if value is True else str(value)
    return secret_in(text) if option.name == "secret_key" else text


def secret_in(text: str) -> str:
    """Return the secret in an option: the text itself, or the content of the file that `@FILE` names."""
    if not text.startswith("@"):
        return text
    try:
        secret = Path(text[1:]).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise click.BadParameter(f"the file {text[1:]} cannot be read: {reason}") from None
    if not secret:  # it would mean no account, or an unchanged secret
        raise click.BadParameter(f"the file {text[1:]} is empty")
    return secret


_FILE = {"type": click.Path(dir_okay=False), "metavar": "FILE"}
_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--tls", "PYROMQ_TLS", {"is_flag": True, "help": "Connect with TLS; trust the system's authorities."}),
    ("--tls-ca", "PYROMQ_TLS_CA", {**_FILE, "help": "Connect with TLS; trust this authority (PEM)."}),
    ("--tls-cert", "PYROMQ_TLS_CERT", {**_FILE, "help": "Client certificate (PEM), for servers that require one."}),
    ("--tls-key", "PYROMQ_TLS_KEY", {**_FILE, "help": "Private key of --tls-cert, if in another file."}),
    (
        "--tls-no-verify",
        "PYROMQ_TLS_VERIFY",
        {"is_flag": True, "help": "Connect with TLS, accept any certificate: no protection from interception."},
    ),
    ("--access-key", "PYROMQ_ACCESS_KEY", {"metavar": "KEY", "help": "Account, for brokers with permissions."}),
    (
        "--secret-key",
        "PYROMQ_SECRET_KEY",
        {"metavar": "@FILE", "help": "Secret of the account, from a file: the process list shows arguments."},
    ),
)
