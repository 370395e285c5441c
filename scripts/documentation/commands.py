"""Pages of the command line: each command with its arguments and options, as click knows them."""

from __future__ import annotations

import click

from pyromq.cli.main import COMMANDS, pyromq


def command_pages() -> dict[str, str]:
    """Return pages by name, `index` among them."""
    rows = [f"| [`pyromq {name}`]({name}.md) | {text} |" for name, (_, text) in COMMANDS.items()]
    head = (
        "# Commands\n\nEach also tells all this by `--help`. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 Ctrl-C."
    )
    pages = {"index": "\n".join([head, "", "| command | |", "|---|---|", *rows, ""]) + "\n"}
    context = click.Context(pyromq, info_name="pyromq")
    for name in COMMANDS:
        command = pyromq.get_command(context, name)
        assert command is not None
        pages[name] = _page(command, f"pyromq {name}", 1)
    return pages


def _page(command: click.Command, path: str, level: int) -> str:
    context = click.Context(command, info_name=path)
    parts = [
        f"{'#' * level} {path}\n",
        _help(command),
        f"```\n{command.get_usage(context).removeprefix('Usage: ')}\n```\n",
    ]
    records = [record for parameter in command.get_params(context) if (record := parameter.get_help_record(context))]
    if records := [record for record in records if not record[0].startswith("--help")]:
        lines = [f"| `{option}` | {_cell(text)} |" for option, text in records]
        parts.append("\n".join(["| option | |", "|---|---|", *lines, ""]))
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                parts.append(_page(child, f"{path} {name}", min(level + 1, 4)))
    return "\n".join(part for part in parts if part)


def _help(command: click.Command) -> str:
    """Return the help text; paragraphs that click leaves unwrapped are examples."""
    paragraphs = (command.help or command.short_help or "").split("\n\n")
    return (
        "\n\n".join(
            f"```\n{text.removeprefix(chr(8)).strip(chr(10))}\n```" if text.startswith("\b") else text
            for text in paragraphs
        )
        + "\n"
    )


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<")
