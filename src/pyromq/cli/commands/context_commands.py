"""`pyromq context`: the user's named clusters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import DEFAULT_NAMESRV, NAMESRV, variable_options
from pyromq.cli.context_file import SECRET, ContextFile, context_file_path
from pyromq.cli.render import output_option, show_record, show_rows

_FILES = ("PYROMQ_TLS_CA", "PYROMQ_TLS_CERT", "PYROMQ_TLS_KEY")


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(ContextFile.load().variables) if name.startswith(incomplete)]


@click.group(cls=Group)
def context() -> None:
    """Save named clusters and choose the current one.

    Options override a context. The environment (NAMESRV_ADDR, PYROMQ_TLS ...) overrides the current context, but not
    one named with `pyromq --context NAME` or PYROMQ_CONTEXT.
    """


@context.command("list")
@output_option
def list_contexts(output: str) -> None:
    """List contexts; the current one is marked."""
    contexts = ContextFile.load()
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
    show_rows(rows, output, empty="no contexts; `pyromq context set NAME --namesrv HOST:PORT` creates one")


@context.command()
@click.argument("name", required=False, shell_complete=_complete)
@output_option
def show(name: str | None, output: str) -> None:
    """Show the settings of context NAME, or of the current one."""
    contexts = ContextFile.load()
    name = name or contexts.current
    if name is None:
        raise click.UsageError(
            f"no context is current; {context_file_path()} has {len(contexts.variables)}: name one, "
            "or run `pyromq context use NAME`"
        )
    show_record({"context": name, **contexts.get(name)}, output)


@context.command("set")
@click.argument("name")
@click.option("-n", "--namesrv", metavar="HOST:PORT;...", help="Name servers.")
@variable_options
def set_context(name: str, namesrv: str | None, **variables: Any) -> None:
    """Create or replace context NAME. The first context becomes the current one.

    Files are saved as absolute paths, a secret as the path of its file.
    """
    if not name.isprintable():
        raise click.UsageError(f"name {name!r} of a context has characters that cannot be printed")
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
            raise click.UsageError("contexts hold no secrets: write the secret to a file, and give --secret-key @FILE")
        found[SECRET] = "@" + str(Path(found[SECRET][1:]).absolute())
    if namesrv:
        found[NAMESRV] = namesrv
    contexts = ContextFile.load()
    contexts.variables[name] = {
        variable: "true" if value is True else str(value) for variable, value in sorted(found.items())
    }
    contexts.current = contexts.current or name
    contexts.save()
    click.echo(f"context {name} is {'current' if contexts.current == name else 'saved'}")


@context.command()
@click.argument("name", shell_complete=_complete)
def use(name: str) -> None:
    """Make context NAME the current one."""
    contexts = ContextFile.load()
    contexts.get(name)
    contexts.current = name
    contexts.save()
    click.echo(f"context {name} is current")


@context.command()
@click.argument("name", shell_complete=_complete)
def delete(name: str) -> None:
    """Delete context NAME."""
    contexts = ContextFile.load()
    contexts.get(name)
    del contexts.variables[name]
    if contexts.current == name:
        contexts.current = None
    contexts.save()
    click.echo(f"context {name} is deleted" + ("" if contexts.current else "; none is current"))
