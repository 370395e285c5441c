"""docs/glossary.md has every head of a column, in the console and on the command line, and every option."""

import ast
import re
from pathlib import Path

import click

import pyromq
from pyromq.cli.main import COMMANDS
from pyromq.cli.main import pyromq as command_line

GLOSSARY = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text()
PACKAGE = Path(pyromq.__file__).parent
ADVICE = "add them to a row of docs/glossary.md, in its column 'shown as'"


def shown():
    """Return the words of the glossary's second column."""
    rows = re.findall(r"^\| [^|]+ \| ((?:[^|\\]|\\.)+) \|", GLOSSARY, re.MULTILINE)
    return {word.strip().strip("`").replace("\\|", "|") for row in rows for word in row.split(",")}


def test_the_glossary_has_every_head_of_the_consoles_tables():
    pages = "\n".join(page.read_text() for page in (PACKAGE / "console" / "templates").glob("*.html"))
    heads = re.findall(r"<th\b[^>]*>([^<{]+)", pages) + re.findall(r'\bth\(\w+, "[^"]*", "([^"]+)"', pages)
    assert len(heads) > 100
    assert sorted({head.strip() for head in heads} - shown() - {""}) == [], ADVICE


def test_the_glossary_has_every_head_of_the_command_lines_tables():
    heads = set()
    for module in (PACKAGE / "cli" / "commands").rglob("*.py"):
        for table in ast.walk(ast.parse(module.read_text())):
            names = [key.value for key in getattr(table, "keys", []) if isinstance(key, ast.Constant)]
            if isinstance(table, ast.Dict) and len(names) > 1:
                heads |= {name for name in names if re.fullmatch("[a-z][a-z_0-9]{2,}", str(name))}
    heads -= {"help", "envvar", "default"}  # of options
    assert len(heads) > 100
    assert sorted(heads - shown()) == [], ADVICE


def test_the_glossary_has_every_option():
    options = set()
    context = click.Context(command_line, info_name="pyromq")
    commands = [command_line.get_command(context, name) for name in COMMANDS]
    while commands:
        command = commands.pop()
        if isinstance(command, click.Group):
            commands += [command.get_command(context, name) for name in command.list_commands(context)]
        for option in command.params:
            if isinstance(option, click.Option) and not option.hidden:
                options |= {name.replace("--no-", "--") for name in option.opts if name.startswith("--")}
    assert len(options) > 100
    assert sorted(options - shown()) == [], ADVICE
