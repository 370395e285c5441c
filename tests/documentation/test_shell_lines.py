"""The pages' lines for a shell: typed one after the other, against servers of the test's own; all are parsed."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from tests.processes import Program, free_port
from tests.waiting import PATIENCE_SECONDS

from pyromq.cli.main import pyromq as command_line

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages that are typed as a reader does, their Python between; what follows a `text` block is what was printed last.
TYPED = (
    "README.md",
    "docs/first-steps.md",
    "docs/tutorial.md",
    "docs/delays.md",
    "docs/how-to/dead-letters.md",
    "docs/console.md",
    "docs/metrics.md",
)
# Pages whose lines are parsed only, and why.
PARSED = {
    "docs/administration.md": "one line goes on for ever, others need members and their ids",
    "docs/deploy.md": "changes the machine, by docker and systemd; tests/deploy runs what they run",
    "docs/hooks.md": "shows what was printed for one message of one day",
    "docs/operations.md": "speaks of machines and folders that are its reader's",
    "docs/security.md": "speaks of machines that are its reader's; tests/cli has TLS and accounts",
    "docs/spark-cluster.md": "needs a cluster of Spark; tests/spark/test_cluster.py has one",
    "docs/spark-jobs.md": "is a minute of Spark each; tests/spark/jobs has them all",
}
# What is not typed on the others, and why.
NOT_TYPED = {
    r"pip install": "asks a package registry",
    r"pytest": "is what test_order_service.py runs",
    r"make ": "a program of this repository's developers; it installs, shows and tests",
    r".*\b[A-Z]{4,}(_[A-Z]+)*\b(?!')": "has a placeholder, in capital letters, for what only the reader has",
    r"pyromq console account set": "asks a person for a password",
}
PYTHON_IS_RUN = {"docs/first-steps.md", "docs/how-to/dead-letters.md"}  # the lines ask for what it made
# Stay, once they have said this.
SERVERS = {"pyromq serve": "ready in", "pyromq console": "console", "python -m order_service": "charged 19.99 to visa"}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```|((?:^ {4}\S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_PROGRAMS = ("pyromq", "pip", "make", "cd", "docker", "curl", "python3", "export", "$")


def parts(page):
    """Yield the blocks of a page: `python`, `text`, or `shell` with a command in each line."""
    for language, fenced, indented in _BLOCK.findall(page.read_text()):
        text = (fenced or indented.replace("\n    ", "\n")).strip().replace("\\\n", " ")
        if language in ("python", "text"):
            yield language, text
        elif text.split()[0] in _PROGRAMS:
            yield (
                "shell",
                [
                    line.removeprefix("$ ")
                    for line in text.splitlines()
                    if not text.startswith("$") or line.startswith("$")
                ],
            )


def commands(page):
    """Return the arguments of each `pyromq` on a page, in blocks and in the text."""
    lines = [line for language, block in parts(page) if language == "shell" for line in block]
    lines += re.findall(
        r"`(pyromq [^`]*)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    )
    found = [shlex.split(line, comments=True) for line in lines]
    starts = [[n for n, word in enumerate(each) if re.search(r"(^|/bin/)pyromq$", word)] for each in found]
    words = [each[start[0] + 1 :] for each, start in zip(found, starts, strict=True) if start]
    ends = ("|", "&&", "&", ">", ";")
    cut = [each[: min([each.index(end) for end in ends if end in each], default=None)] for each in words]
    return [[word for word in each if word != "..."] for each in cut if each and re.match("[a-z-]", each[0])]


def parse(words):
    """Raise `click.UsageError` where the command line has no such command, option or choice."""
    command, context = command_line, click.Context(command_line, info_name="pyromq")
    while True:
        given, rest, _ = command.make_parser(context).parse_args(list(words))
        for parameter in command.params:
            if (
                isinstance(parameter.type, click.Choice)
                and (value := given.get(parameter.name))
                and not parameter.multiple
            ):
                parameter.type.convert(value, parameter, context)
        if not isinstance(command, click.Group):
            assert not rest, f"{rest} are too many"
            return
        if not rest:
            return
        name, *words = rest
        child = command.get_command(context, name)
        assert child is not None, f"{context.command_path} has no command {name}"
        command, context = child, click.Context(child, context, name)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_and_options_exist(page):
    for words in commands(page):
        try:
            parse(words)
        except click.BadOptionUsage:
            assert words[-1].startswith("--")  # a sentence names the option, and no value
        except (click.UsageError, AssertionError) as error:
            pytest.fail(f"pyromq {shlex.join(words)}: {error}", pytrace=False)


def test_every_page_with_lines_is_known():
    pages = {str(page.relative_to(ROOT)) for page in PAGES if any(kind == "shell" for kind, _ in parts(page))}
    assert pages == {*TYPED, *PARSED}


def test_what_does_not_exist_is_found():
    for wrong in (
        "sevre",
        "serve --namsrv-port 1",
        "serve broker --namesrv-port 1",
        "topic list -o xml",
        "topic list a",
    ):
        with pytest.raises((click.UsageError, AssertionError)):
            parse(wrong.split())


class Terminal:
    """A shell in a folder of its own, whose servers have ports that are free instead of the usual ones."""

    def __init__(self, folder):
        self._folder = folder
        self._ports = {port: str(free_port()) for port in ("9876", "10911", "8876", "9557")}
        self._servers = {}
        (folder / "bin").mkdir()
        for name, arguments in {"python": "-u", "pyromq": "-u -m pyromq"}.items():
            program = folder / "bin" / name
            program.write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
            program.chmod(0o755)
        path = f"{folder / 'bin'}:{os.environ['PATH']}"
        self._environment = {"PATH": path, "HOME": str(folder), "NAMESRV_ADDR": self.namesrv}
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("*.egg-info", "*.db*"))

    @property
    def namesrv(self):
        return f"127.0.0.1:{self._ports['9876']}"

    def own(self, text):
        return re.sub(r"\b\d{4,5}\b", lambda port: self._ports.get(port[0], port[0]), text)

    def type(self, line):
        """Run a line; return what it prints. A server is there when it is ready, in place of one begun before."""
        server = next((each for each in SERVERS if line.startswith(each) and "account" not in line), None)
        if line.startswith("cd "):
            self._folder /= line[3:]
            return ""
        if server is None:
            done = subprocess.run(
                ["bash", "-c", self.own(line)],
                cwd=self._folder,
                env=self._environment,
                capture_output=True,
                text=True,
                timeout=PATIENCE_SECONDS,
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
            return done.stdout
        if server in self._servers:
            self._servers.pop(server).stop()
        arguments = [word for word in shlex.split(self.own(line), comments=True) if word != "&"]
        if server == "pyromq serve":
            arguments += ["--namesrv-port", self._ports["9876"], "--broker-port", self._ports["10911"]]
        if "console" in arguments:
            arguments += ["--port", self._ports["8876"]]
        if "--console" in arguments:
            arguments += ["--console-port", self._ports["8876"]]
        self._servers[server] = Program(["env", "-C", self._folder, *arguments], SERVERS[server], self._environment)
        self._servers[server].wait_until_ready()
        return ""

    def close(self):
        for server in self._servers.values():
            server.stop()


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path)
    terminal.type("pyromq serve")  # what most pages take for granted
    yield terminal
    terminal.close()


def not_typed(line):
    return next((why for pattern, why in NOT_TYPED.items() if re.match(pattern, line.partition(" #")[0])), None)


@pytest.mark.slow  # each line is a process
@pytest.mark.parametrize("name", TYPED)
def test_a_pages_lines_do_what_it_says(name, terminal):
    names, printed = {"__name__": "example"}, ""
    for kind, block in parts(ROOT / name):
        if kind == "shell":
            printed = "".join(terminal.type(line) for line in block if not not_typed(line))
        elif kind == "text":
            pattern = re.escape(block).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), printed
        elif name in PYTHON_IS_RUN:
            exec(terminal.own(block), names)
