"""`pyromq context`: the clusters that a person works with, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pyromq.cli.connecting import DEFAULT_NAMESRV, NAMESRV, variable_options
from pyromq.cli.contexts import SECRET, Contexts, contexts_file
from pyromq.cli.render import output_option, show_record, show_rows

_FILES = ("PYROMQ_TLS_CA", "PYROMQ_TLS_CERT", "PYROMQ_TLS_KEY")


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(Contexts.load().variables) if name.startswith(incomplete)]


@click.group()
def context() -> None:
    """Name clusters, and choose the one that commands go to.

    Options outrank a context, and so does the environment (NAMESRV_ADDR, PYROMQ_TLS ...), unless the context is named
    by `pyromq --context NAME` or PYROMQ_CONTEXT.
    """


@context.command("list")
@output_option
def list_contexts(output: str) -> None:
    """List contexts; the current one is marked."""
    contexts = Contexts.load()
    rows = [
        {
            "context": name,
            "current": name == contexts.current,
            "name_servers": variables.get(NAMESRV, DEFAULT_NAMESRV),
            "tls": "PYROMQ_TLS" in variables,
            "account": variables.get("PYROMQ_ACCESS_KEY"),
        }
        for name, variables in sorted(contexts.variables.items())
    ]
    show_rows(rows, output, empty="no contexts; `pyromq context set NAME --namesrv HOST:PORT` makes one")


@context.command()
@click.argument("name", required=False, shell_complete=_complete)
@output_option
def show(name: str | None, output: str) -> None:
    """Show what context NAME, or the current one, stands for."""
    contexts = Contexts.load()
    name = name or contexts.current
    if name is None:
        raise click.UsageError(f"no context is in use; {contexts_file()} has {len(contexts.variables)}")
    show_record({"context": name, **contexts.get(name)}, output)


@context.command("set")
@click.argument("name")
@click.option("-n", "--namesrv", metavar="HOST:PORT;...", help="Name servers.")
@variable_options
def set_context(name: str, namesrv: str | None, **variables: Any) -> None:
    """Make context NAME, or make it anew; the first one is used from now on.

    Files are kept by their whole path, an account's secret by the file it is in.
    """
    found = {variable: value for variable, value in variables.items() if value}
    if any(variable.startswith("PYROMQ_TLS") for variable in found):
        found["PYROMQ_TLS"] = True
    if found.pop("PYROMQ_TLS_VERIFY", False):
        found["PYROMQ_TLS_VERIFY"] = "false"
    for variable in _FILES:
        if variable in found:
            found[variable] = str(Path(found[variable]).absolute())
    if SECRET in found:
        if not found[SECRET].startswith("@"):
            raise click.UsageError("contexts hold no secrets: write it to a file, and give --secret-key @FILE")
        found[SECRET] = "@" + str(Path(found[SECRET][1:]).absolute())
    if namesrv:
        found[NAMESRV] = namesrv
    contexts = Contexts.load()
    contexts.variables[name] = {
        variable: "true" if value is True else str(value) for variable, value in sorted(found.items())
    }
    contexts.current = contexts.current or name
    contexts.save()
    click.echo(f"context {name} is {'in use' if contexts.current == name else 'there'}")


@context.command()
@click.argument("name", shell_complete=_complete)
def use(name: str) -> None:
    """Let commands go to context NAME from now on."""
    contexts = Contexts.load()
    contexts.get(name)
    contexts.current = name
    contexts.save()
    click.echo(f"context {name} is in use")


@context.command()
@click.argument("name", shell_complete=_complete)
def delete(name: str) -> None:
    """Forget context NAME."""
    contexts = Contexts.load()
    contexts.get(name)
    del contexts.variables[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    click.echo(f"context {name} is deleted" + ("" if contexts.current else "; none is in use"))
