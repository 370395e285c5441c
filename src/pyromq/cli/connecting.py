"""How commands reach a cluster: its name servers, TLS, an account. The options that go with it.

TLS and account are options of `pyromq` itself and of every command that connects; each stands for a variable of the
environment, and outranks it. What neither says, the context in use does (`pyromq context`); one that is named with
`--context` outranks the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

if TYPE_CHECKING:
    from pyromq.net.connection_config import ConnectionConfig

F = TypeVar("F", bound=Callable[..., Any])

DEFAULT_NAMESRV = "127.0.0.1:9876"
NAMESRV = "NAMESRV_ADDR"

_GIVEN = "pyromq.connections"  # in the meta of click's contexts: the variables that options, or a context in use, set
_NAMESRV = "pyromq.namesrv"  # there, too: the name servers of this run


def namesrv_option(command: F) -> F:
    """Add `--namesrv HOST:PORT[;HOST:PORT]`, also read from NAMESRV_ADDR as Java clients do, and how to connect."""
    option = click.option(
        "-n",
        "--namesrv",
        envvar=NAMESRV,
        default=DEFAULT_NAMESRV,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT;...|URL",
        help="Name servers, or where to look them up.",
        callback=_note_namesrv,
    )
    return connection_options(hidden=True)(option(command))


def namespace_option(command: F) -> F:
    """Add `--namespace NAME`, for commands that send or consume: administrators write names as brokers do."""
    option = click.option(
        "--namespace",
        envvar="PYROMQ_NAMESPACE",
        show_envvar=True,
        metavar="NAME",
        help="Whose topics and groups are meant: NAME%TOPIC and NAME%GROUP for brokers.",
    )
    return option(command)


def connection_options(*only: str, hidden: bool) -> Callable[[F], F]:
    """Add TLS and account, or `only` some of these options; hidden where `pyromq --help` shows them."""

    def add(command: F) -> F:
        for name, variable, options in reversed(_OPTIONS):
            if only and name not in only:
                continue
            settings = {"expose_value": False, "hidden": hidden, "callback": _note(variable), **options}
            command = click.option(name, **settings)(command)
        return command

    return add


def connections() -> ConnectionConfig | None:
    """Return how this run's clients connect, as options say; None where none was given: as the environment says."""
    context = click.get_current_context(silent=True)
    given = context.meta.get(_GIVEN) if context is not None else None
    if not given:
        return None
    from pyromq.client.cluster.environment import connections_with  # half of the time that `pyromq --help` would take

    return connections_with(given)


def use(ctx: click.Context, variables: Mapping[str, str]) -> None:
    """Let these variables hold where no option says otherwise, in this run."""
    given = ctx.meta.setdefault(_GIVEN, {})
    for name, value in variables.items():
        if name == NAMESRV:
            ctx.meta[_NAMESRV] = value
        else:
            given.setdefault(name, value)


def namesrv_in_use(ctx: click.Context) -> str:
    """Return the name servers that a command was given, or that it would be."""
    return str(ctx.meta.get(_NAMESRV) or os.environ.get(NAMESRV, DEFAULT_NAMESRV))


def variable_options(command: F) -> F:
    """Add all of these options as they are written, each as an argument that has its variable's name."""
    for name, variable, options in reversed(_OPTIONS):
        command = click.option(name, variable, **options)(command)
    return command


def into_environment() -> None:
    """Let what this process starts connect as options say: Spark's workers."""
    os.environ.update(click.get_current_context().meta.get(_GIVEN, {}))


def _note_namesrv(ctx: click.Context, option: click.Parameter, value: str) -> str:
    """An option outranks what the context in use says; that has looked at the environment already."""
    if ctx.get_parameter_source(str(option.name)) is not ParameterSource.COMMANDLINE:
        value = ctx.meta.get(_NAMESRV, value)
    ctx.meta[_NAMESRV] = value
    return value


def _note(variable: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def note(ctx: click.Context, option: click.Parameter, value: Any) -> None:
        if value:
            given = ctx.meta.setdefault(_GIVEN, {})
            given[variable] = _text(option, value)
            if variable.startswith("PYROMQ_TLS"):
                given["PYROMQ_TLS"] = "true"  # whatever the environment says

    return note


def _text(option: click.Parameter, value: Any) -> str:
    if option.name == "tls_no_verify":
        return "false"
    text = "true" if value is True else str(value)
    return secret_in(text) if option.name == "secret_key" else text


def secret_in(text: str) -> str:
    """Return a secret as it is written, or what the file holds that `@FILE` names."""
    if not text.startswith("@"):
        return text
    try:
        return Path(text[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no text"
        raise click.BadParameter(f"the file {text[1:]} cannot be read: {reason}") from None


_FILE = {"type": click.Path(dir_okay=False), "metavar": "FILE"}
_OPTIONS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--tls", "PYROMQ_TLS", {"is_flag": True, "help": "Connect by TLS; trust whom the system trusts."}),
    ("--tls-ca", "PYROMQ_TLS_CA", {**_FILE, "help": "Connect by TLS; trust this authority (PEM)."}),
    ("--tls-cert", "PYROMQ_TLS_CERT", {**_FILE, "help": "A certificate of your own, for servers that ask for one."}),
    ("--tls-key", "PYROMQ_TLS_KEY", {**_FILE, "help": "Its key, where that is a file of its own."}),
    (
        "--tls-no-verify",
        "PYROMQ_TLS_VERIFY",
        {"is_flag": True, "help": "Connect by TLS to whoever answers: safe from nobody who is in between."},
    ),
    ("--access-key", "PYROMQ_ACCESS_KEY", {"metavar": "KEY", "help": "An account of brokers with permissions."}),
    (
        "--secret-key",
        "PYROMQ_SECRET_KEY",
        {"metavar": "@FILE", "help": "Its secret, from a file; written out it is in the list of processes."},
    ),
)
