"""`pyromq help`: the help of a command, as its `--help` prints it."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from pyromq.cli.command_tree import Command, Group


def _complete(ctx: click.Context, argument: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Return the commands that may follow the words before."""
    root = ctx.find_root()
    command: click.Command | None = root.command
    for word in ctx.params.get("words") or ():
        command = command.get_command(root, word) if isinstance(command, Group) else None
    names = command.list_commands(root) if isinstance(command, Group) else []
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


@click.command("help", cls=Command)
@click.argument("words", metavar="[COMMAND...]", nargs=-1, shell_complete=_complete)
@click.pass_context
def help_command(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Show the help of pyromq, or of a command."""
    rest = [*words]
    context = ctx.find_root()
    while rest and not rest[0].startswith("-"):
        group = context.command
        if not isinstance(group, Group):
            raise click.UsageError(f"`{context.command_path}` has no commands, so {rest[0]!r} is none")
        name, command, rest = group.resolve_command(context, rest)
        assert command is not None, "an unknown word raises"
        context = command.context_class(command, context, name)
    click.echo(context.get_help())
