"""The entry: the table of commands, loaded when called, and the one place where errors become exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

try:
    import click
except ImportError:  # installed without the extra
    sys.exit("pyromq: the command line needs its extra: pip install 'pyromq[cli]'")

from pyromq.cli.render import one_line
from pyromq.errors import MQError

# name -> (module:attribute, one line of help); modules are imported only when their command runs.
COMMANDS = {
    "serve": ("pyromq.cli.commands.serve:serve", "Run a name server and a broker, or one of them."),
    "send": ("pyromq.cli.commands.send:send", "Send messages: one, the lines of standard input, or a file."),
    "consume": ("pyromq.cli.commands.consume:consume", "Print a topic from the beginning, a time or an offset on."),
    "topic": ("pyromq.cli.commands.topics:topic", "Create, alter, delete, list and inspect topics."),
    "group": ("pyromq.cli.commands.groups:group", "Create, alter, delete, list and inspect consumer groups."),
    "cluster": ("pyromq.cli.commands.clusters:cluster", "Show brokers, their state and settings."),
    "offset": ("pyromq.cli.commands.offsets:offset", "Show, set and reset offsets."),
    "message": ("pyromq.cli.commands.messages:message", "Find messages by id or key."),
    "dlq": ("pyromq.cli.commands.dlq:dlq", "List, show and send again messages that a group could not consume."),
    "delay": ("pyromq.cli.commands.delays:delay", "List, count and cancel messages that wait for their time."),
    "transaction": (
        "pyromq.cli.commands.transactions:transaction",
        "List, show and decide half messages nobody decided on.",
    ),
    "spark": (
        "pyromq.cli.commands.spark:spark",
        "Run jobs on Spark: archive, replay, redrive, audit, metrics, mirror.",
    ),
    "store": ("pyromq.cli.commands.store:store", "Check, dump and repair a stopped broker's folder; expire messages."),
    "doctor": ("pyromq.cli.commands.doctor:doctor", "Find out why sending or consuming does not work."),
    "bench": ("pyromq.cli.commands.bench:bench", "Measure sending and pulling."),
    "completion": ("pyromq.cli.commands.completion:completion", "Print the completion script of a shell."),
}


class Commands(click.Group):
    """A group that knows its commands' names and help without importing them, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        return [click.shell_completion.CompletionItem(name, help=COMMANDS[name][1]) for name in names] + options


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="pyromq", message="pyromq %(version)s (protocol of RocketMQ 4.9.8)")
@click.option("--debug", is_flag=True, help="Show the traceback of an error; may stand anywhere.")
def pyromq(debug: bool) -> None:
    """RocketMQ in one pip install.

    Start with `pyromq serve`, then `pyromq send orders hello` and `pyromq consume orders --from beginning`.
    """


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader of a pipe went away; say nothing, also not at interpreter exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; errors are one line on standard error."""
    arguments, debug = _without_debug(arguments)
    try:
        _check_text(arguments)
        result = pyromq.main(arguments, prog_name="pyromq", standalone_mode=False)
    except SystemExit as end:  # click's way out of a broken pipe
        return end.code if isinstance(end.code, int) else 1
    except click.ClickException as error:
        error.show(sys.stderr)
        return error.exit_code
    except (KeyboardInterrupt, click.Abort):
        return 130
    except (MQError, OSError) as error:
        if debug:
            raise
        click.echo(f"error: {one_line(error)}", err=True)
        return 1
    return result if isinstance(result, int) else 0


def _check_text(arguments: Sequence[str]) -> None:
    """Arguments are bytes: those that are no UTF-8 name nothing of RocketMQ's, but maybe a file."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument) and not Path(argument).exists():
            raise click.UsageError(f"{argument!r} is not UTF-8; `pyromq send` takes bytes from a --file or its input")


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """People add `--debug` at the end of the command that failed."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [each for number, each in enumerate(arguments) if each != "--debug" or number >= end]
    return kept, len(kept) < len(arguments)
