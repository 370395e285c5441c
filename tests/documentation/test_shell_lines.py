"""The pages' lines for a shell: typed one after the other, against servers of the test's own; all are parsed."""

import re
import shlex
import shutil
from contextlib import redirect_stdout
from io import StringIO

import click
import pytest
from tests.documentation.terminal import ROOT, Terminal

from pyromq.cli.main import pyromq as command_line

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Pages that are typed as a reader does, their Python between; a `text` block is what was printed before it, but for
# its numbers, and `...` is anything.
TYPED = (
    "README.md",
    "docs/index.md",
    "docs/first-steps.md",
    "docs/tutorial.md",
    "docs/delays.md",
    "docs/how-to/dead-letters.md",
    "docs/console.md",
    "docs/console-accounts.md",
    "docs/metrics.md",
    "docs/administration.md",
    "docs/hooks.md",
    "docs/operations.md",
    "docs/address-server.md",
    "docs/tls.md",
    "docs/accounts.md",
)
# Pages whose lines are parsed only, and why.
PARSED = {
    "docs/how-to/command-line.md": "follows a topic until Ctrl-C; tests/cli/commands has this too",
    "docs/damage.md": "needs a damaged folder; tests/store/offline has many",
    "docs/deploy.md": "changes the machine, by docker and systemd; tests/deploy runs what they run",
    "docs/how-to/pop-or-push.md": "receives until Ctrl-C; tests/cli/commands has this too",
    "docs/how-to/my-consumer-gets-nothing.md": "shows faults; test_consumer_gets_nothing.py makes them",
    "docs/spark-cluster.md": "needs a cluster of Spark; tests/spark/test_cluster.py has one",
    "docs/spark-jobs.md": "is half a minute of Spark each; tests/spark/jobs has them all",
}
# What is not typed on the others, and why.
NOT_TYPED = {
    r"pip install": "asks a package registry",
    r"pytest": "is what test_order_service.py runs",
    r"make ": "a program of this repository's developers; it installs, shows and tests",
    r".* [A-Z]{4,}(_[A-Z]+)*\b(?!['=])": "has a placeholder, in capital letters, for what only the reader has",
    r"pyromq console account set": "asks a person for a password",
}
# The lines ask for what it made.
PYTHON_IS_RUN = {"docs/first-steps.md", "docs/how-to/dead-letters.md", "docs/hooks.md", "docs/tls.md"}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```|((?:^ {4}\S[^\n]*\n)+)", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"# (\S+\.(?:conf|ya?ml))\n(.*)", re.DOTALL)  # a block that begins with its name
_PROGRAMS = ("pyromq", "pip", "make", "cd", "docker", "curl", "python3", "openssl", "mkdir")


def parts(page):
    """Yield a page's blocks: `python`, `text`, `file` (name and content), or `shell` with a command in each line."""
    for language, fenced, indented in _BLOCK.findall(page.read_text()):
        text = (fenced or indented.replace("\n    ", "\n")).strip().replace("\\\n", " ")
        if language in ("python", "text"):
            yield language, text
        elif file := _FILE.match(text):
            yield "file", file.groups()
        elif text.split()[0] in _PROGRAMS:
            yield "shell", [line for line in text.splitlines() if line]


def commands(page):
    """Return the arguments of each `pyromq` on a page, in blocks and in the text."""
    lines = [line for language, block in parts(page) if language == "shell" for line in block]
    lines += re.findall(
        r"`(pyromq [^`]*)`", re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    )
    found = [shlex.split(line, comments=True) for line in lines]
    starts = [[n for n, word in enumerate(each) if re.search(r"(^|/bin/)pyromq$", word)] for each in found]
    words = [each[start[0] + 1 :] for each, start in zip(found, starts, strict=True) if start]
    ends = ("|", "&&", "&", ">", "<", ";")
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
        name, child, words = command.resolve_command(context, rest)
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


@pytest.fixture
def terminal(tmp_path):
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def not_typed(line):
    return next((why for pattern, why in NOT_TYPED.items() if re.match(pattern, line.partition(" #")[0])), None)


def missing_programs(page):
    """Return those of the page's lines that small images of Linux lack."""
    words = {line.split()[0] for kind, block in parts(page) if kind == "shell" for line in block}
    return [program for program in ("curl", "openssl") if program in words and shutil.which(program) is None]


def begins_with_a_server(name):
    lines = [line for kind, block in parts(ROOT / name) if kind == "shell" for line in block]
    return next((line.startswith("pyromq serve") for line in lines if line.startswith("pyromq")), False)


@pytest.mark.slow  # each server is a process
@pytest.mark.parametrize("name", TYPED)
def test_a_pages_lines_do_what_it_says(name, terminal, tmp_path, monkeypatch):
    for program in missing_programs(ROOT / name):
        pytest.skip(f"{program} is missing: apt-get install {program}")
    monkeypatch.chdir(tmp_path)  # as the page's Python is run beside the lines
    if not begins_with_a_server(name):
        terminal.type("pyromq serve")  # what other pages take for granted
    names, printed = {"__name__": "example"}, ""
    for kind, block in parts(ROOT / name):
        if kind == "shell":
            lines = (terminal.filled_in(line) for line in block)
            printed = "".join(terminal.type(line) for line in lines if not not_typed(line))
        elif kind == "file":
            terminal.save(*block)
        elif kind == "text":
            pattern = re.sub(r"\d+", r"\\d+", re.escape(terminal.own(block))).replace(re.escape("..."), ".*")
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), printed
        elif name in PYTHON_IS_RUN:
            with redirect_stdout(StringIO()) as out:
                exec(terminal.own(block), names)
            printed = out.getvalue()
            terminal.screen += printed
