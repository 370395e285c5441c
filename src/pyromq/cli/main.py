"""Entry point of the command line: imports the called command and turns errors into exit codes.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C.
"""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Self

from pyromq.extras import install_command

try:
    import click
except ImportError:  # the extra `cli` is not installed
    sys.exit(f"pyromq: the command line needs more packages; to install them: {install_command('cli')}")

from pyromq.cli.cluster_names import suggestions
from pyromq.cli.command_tree import Group
from pyromq.cli.connection_options import NAMESRV, connection_options, use
from pyromq.cli.context_file import CONTEXT, variables_in_use
from pyromq.cli.render import one_line
from pyromq.errors import IllegalName, MQError
from pyromq.logs import PARTIAL_RESULTS, logger_of

# By command: module in commands/ with attribute, and a line of help. A module is imported when its command runs.
COMMANDS = {
    "serve": ("serve:serve", "Run a name server and a broker, or one of them."),
    "send": ("messages.send:send", "Send one message, a file, or the lines of standard input."),
    "consume": ("messages.consume:consume", "Print messages from the beginning, a time or an offset."),
    "receive": ("messages.receive:receive", "Receive single messages of a group, and acknowledge them."),
    "topic": ("topic_commands:topic", "Create, alter, delete, list and inspect topics."),
    "group": ("group_commands:group", "Create, alter, delete, list and inspect consumer groups."),
    "member": ("member_commands:member", "Inspect group members; have one consume a message."),
    "cluster": ("cluster_commands:cluster", "Show brokers, their state and settings."),
    "offset": ("offset_commands:offset", "Show, set and reset offsets."),
    "message": ("messages.message_commands:message", "Find messages by id or key; show their deliveries."),
    "dlq": ("messages.dlq_commands:dlq", "List, show and resend a group's dead letters."),
    "delay": ("messages.delay_commands:delay", "List, count and cancel scheduled messages."),
    "transaction": ("messages.transaction_commands:transaction", "List, show and decide undecided half messages."),
    "spark": ("spark_commands:spark", "Run jobs on Spark: archive, replay, redrive, audit, metrics, mirror."),
    "acl": ("acl_commands:acl", "List, set, delete and check accounts and their rights."),
    "store": ("store_commands:store", "Check, dump and repair a stopped broker's data folder; expire messages."),
    "export": ("export_commands:export", "Export settings, topics and groups, or metrics as JSON."),
    "proxy": ("proxy_commands:proxy", "Run a proxy for clients of RocketMQ 5 (gRPC)."),
    "console": ("console_commands:console", "Show the cluster in a browser: topics, messages, groups, dead letters."),
    "doctor": ("doctor:doctor", "Find out why sending or consuming does not work."),
    "bench": ("messages.bench:bench", "Measure the throughput of sending and pulling."),
    "context": ("context_commands:context", "Save named clusters and choose the current one."),
    "completion": ("completion:completion", "Print the completion script of a shell."),
    "help": ("help_command:help_command", "Show the help of a command."),
}


class Commands(Group):
    """The group of all commands. It lists `COMMANDS` without importing them, so that `--help` is quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in COMMANDS and cmd_name not in self.commands:
            module, _, attribute = COMMANDS[cmd_name][0].partition(":")
            self.add_command(getattr(import_module(f"pyromq.cli.commands.{module}"), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def summary(self, ctx: click.Context, name: str) -> str:
        return COMMANDS[name][1]

    def invoke(self, ctx: click.Context) -> Any:
        with suggestions(ctx):
            return super().invoke(ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[click.shell_completion.CompletionItem]:
        options = click.Command.shell_complete(self, ctx, incomplete)
        names = [name for name in COMMANDS if name.startswith(incomplete)]
        return [click.shell_completion.CompletionItem(name, help=COMMANDS[name][1]) for name in names] + options


@click.group(cls=Commands, context_settings={"max_content_width": 100})
@click.version_option(package_name="pyromq", message="pyromq %(version)s (protocol of RocketMQ 4.9.8)")
@connection_options(hidden=False)
@click.option("--context", envvar=CONTEXT, metavar="NAME", help="Use this saved cluster; accepted at any position.")
@click.option("-n", "--namesrv", metavar="HOST:PORT;...|URL", help="Name servers; accepted after the command, too.")
@click.option("--debug", is_flag=True, help="Show the traceback of an error; accepted at any position.")
@click.pass_context
def pyromq(ctx: click.Context, context: str | None, namesrv: str | None, debug: bool) -> None:
    """RocketMQ in one pip install.

    Words of rpk, nats and kcat are understood too: ls, cat, tail, produce, pub, sub, describe, rm.
    """
    use(ctx, variables_in_use(context))
    if namesrv is not None:
        use(ctx, {NAMESRV: namesrv})


def main() -> NoReturn:
    """Run the command line of this process and exit."""
    _open_missing_streams()
    _write_whole()
    code = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    # The reader of the output has closed the pipe: print no error, and none at interpreter exit.
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = code or 1
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. An error is printed as one line on standard error."""
    arguments, debug = _without_debug(arguments)
    arguments = _context_first(arguments)
    try:
        _check_text(arguments)
        with _LeftOut() as left_out:
            result = pyromq.main(arguments, prog_name="pyromq", standalone_mode=False)
    except SystemExit as end:  # raised by click if the pipe of the output is broken
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
        return 2 if isinstance(error, IllegalName) else 1
    code = result if isinstance(result, int) else 0
    return code or int(left_out.counted)  # exit code 1 for a partial result, which is no success


class _LeftOut(logging.Handler):
    """Context manager that prints the brokers that a result lacks. `counted` says whether there was one."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.counted = False

    def emit(self, record: logging.LogRecord) -> None:
        self.counted = True
        click.echo(record.getMessage(), err=True)

    def __enter__(self) -> Self:
        logger_of(PARTIAL_RESULTS).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logger_of(PARTIAL_RESULTS).removeHandler(self)


def _open_missing_streams() -> None:
    """Open /dev/null for each closed standard stream (`>&-`).

    Python has None for such a stream, and a socket would get its descriptor.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 - open until the process ends


def _write_whole() -> None:
    """Buffer standard output also with PYTHONUNBUFFERED, where a write to a full pipe may end early without an error.

    Commands flush what they print.
    """
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), encoding=sys.stdout.encoding, errors=sys.stdout.errors, line_buffering=True
        )


def _check_text(arguments: Sequence[str]) -> None:
    """Raise `click.UsageError` for an argument that is not UTF-8, unless it names an existing file."""
    for argument in arguments:
        if any("\ud800" <= character <= "\udfff" for character in argument) and not Path(argument).exists():
            raise click.UsageError(f"{argument!r} is not UTF-8; `pyromq send` reads bytes from --file or its input")


def _without_debug(arguments: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments without `--debug` before `--`: users append this option to a failed command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    kept = [each for number, each in enumerate(arguments) if each != "--debug" or number >= end]
    return kept, len(kept) < len(arguments)


def _context_first(arguments: list[str]) -> list[str]:
    """Return the arguments with `--context NAME` first: users append this option of `pyromq` to a command."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    for number, each in enumerate(arguments):
        width = 1 if each.startswith("--context=") else 2 if each == "--context" else 0
        if width and number + width <= end:
            return [*arguments[number : number + width], *arguments[:number], *arguments[number + width :]]
    return arguments
