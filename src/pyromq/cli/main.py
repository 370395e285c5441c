"""The entry: the table of commands, loaded when called, and the one place where errors become exit codes.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from pyromq.extras import install_command

try:
    import click
except ImportError:  # installed without the extra
    sys.exit(f"pyromq: the command line needs more packages; to install them: {install_command('cli')}")

from pyromq.cli.cluster_names import proposals
from pyromq.cli.connecting import connection_options, use
from pyromq.cli.contexts import CONTEXT, variables_in_use
from pyromq.cli.render import one_line
from pyromq.errors import MQError

# name -> (module in commands/:attribute, one line of help); modules are imported only when their command runs.
COMMANDS = {
    "serve": ("serve:serve", "Run a name server and a broker, or one of them."),
    "send": ("messages.send:send", "Send messages: one, the lines of standard input, or a file."),
    "consume": ("messages.consume:consume", "Print a topic from the beginning, a time or an offset on."),
    "topic": ("topics:topic", "Create, alter, delete, list and inspect topics."),
    "group": ("groups:group", "Create, alter, delete, list and inspect consumer groups."),
    "member": ("members:member", "Ask the members of groups: state, offsets, consume a message."),
    "cluster": ("clusters:cluster", "Show brokers, their state and settings."),
    "offset": ("offsets:offset", "Show, set and reset offsets."),
    "message": ("messages.messages:message", "Find messages by id or key."),
    "dlq": ("messages.dlq:dlq", "List, show and send again messages that a group could not consume."),
    "delay": ("messages.delays:delay", "List, count and cancel messages that wait for their time."),
    "transaction": ("messages.transactions:transaction", "List, show and decide half messages nobody decided on."),
    "spark": ("spark:spark", "Run jobs on Spark: archive, replay, redrive, audit, metrics, mirror."),
    "acl": ("acl:acl", "List, set, delete and check accounts of brokers with permissions."),
    "store": ("store:store", "Check, dump and repair a stopped broker's folder; expire messages."),
    "export": ("exports:export", "Write settings, topics and groups, or figures as JSON."),
    "console": ("console:console", "Show the cluster in a browser: topics, messages, groups, dead letters."),
    "doctor": ("doctor:doctor", "Find out why sending or consuming does not work."),
    "bench": ("messages.bench:bench", "Measure sending and pulling."),
    "context": ("contexts:context", "Name clusters, and choose the one that commands go to."),
    "completion": ("completion:completion", "Print the completion script of a shell."),
}


class Commands(click.Group):
    """A group that knows its commands' names and help without importing them, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            if not ctx.resilient_parsing and (alike := get_close_matches(cmd_name, COMMANDS)):
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {' or '.join(map(repr, alike))}?")
            return None
        module, _, attribute = COMMANDS[cmd_name][0].partition(":")
        command = getattr(import_module(f"pyromq.cli.commands.{module}"), attribute)
        assert isinstance(command, click.Command)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        with proposals(ctx):
            return super().invoke(ctx)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        return [click.shell_completion.CompletionItem(name, help=COMMANDS[name][1]) for name in names] + options


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="pyromq", message="pyromq %(version)s (protocol of RocketMQ 4.9.8)")
@connection_options(hidden=False)
@click.option("--context", envvar=CONTEXT, metavar="NAME", help="The cluster to go to; see `pyromq context`.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error; may stand anywhere.")
@click.pass_context
def pyromq(ctx: click.Context, context: str | None, debug: bool) -> None:
    """RocketMQ in one pip install.

    Start with `pyromq serve`, then `pyromq send orders hello` and `pyromq consume orders --from beginning`.
    """
    use(ctx, variables_in_use(context))


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    _open_missing_streams()
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


def _open_missing_streams() -> None:
    """Lead what the caller closed (`>&-`) to nowhere: Python has None there, and a socket would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - as long as the process


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
