"""`pyromq completion`: the shell's completion script."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from pyromq.cli.command_tree import Command


@click.command(cls=Command)
@click.argument("shell", metavar="SHELL", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of SHELL.

    bash: add `eval "$(pyromq completion bash)"` to ~/.bashrc; zsh: `eval "$(pyromq completion zsh)"` to ~/.zshrc; fish:
    `pyromq completion fish | source`.
    """
    script = get_completion_class(shell)
    assert script is not None, "click supports the three shells of the choice above"
    click.echo(script(ctx.find_root().command, {}, "pyromq", "_PYROMQ_COMPLETE").source())
