"""Prints rows as a table or JSON, and a single record as lines or JSON.

Values are strings, numbers, booleans, datetimes, lists, dicts, or None if absent.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from shutil import get_terminal_size
from typing import Any, TypeVar
from unicodedata import combining, east_asian_width

import click

from pyromq.errors import (
    AccessDenied,
    AlreadyExists,
    GroupNotFound,
    HostNotFound,
    NoNameServer,
    TlsRefused,
    TopicNotFound,
)
from pyromq.excerpt import escaped

# Control characters that are not ASCII, marks that change the direction of text, and lone surrogates.
_RAW_CONTROL = re.compile(r"[\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
# Advice for users of the shell. Error texts also serve programs, so they name no commands.
_ADVICE = (
    (TopicNotFound, "`pyromq topic list` lists existing topics"),
    (GroupNotFound, "`pyromq group list` lists existing groups"),
    (NoNameServer, "`pyromq serve` starts one, --namesrv names another"),
    (TlsRefused, "see --tls-ca, --tls-cert and --tls-no-verify"),
)

F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Add option `-o table|json` to a command."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="Output format.",
    )(command)


def show_rows(rows: Sequence[Mapping[str, Any]], output: str, *, empty: str = "nothing to show") -> None:
    """Print rows with equal keys, as a table or a JSON array. Without rows, `empty` goes to standard error."""
    if output == "json":
        click.echo(as_json(rows, indent=2))
    elif not rows:
        click.echo(escaped(empty), err=True)
    else:
        _show_table(rows)


def show_record(record: Mapping[str, Any], output: str) -> None:
    """Print one record as `name  value` lines, or as a JSON object."""
    if output == "json":
        click.echo(as_json(record, indent=2))
        return
    width = max(map(len, record), default=0)
    for name, value in record.items():
        click.echo(f"{escaped(name):<{width}}  {_text(value)}")


def show_outcome(outcome: Mapping[str, Any], output: str, *, done: str, refused: str) -> None:
    """Print the outcome of one of several messages, as the line `done` or as a JSON object on one line.

    The error of an outcome goes to standard error, after `refused`; then only JSON has a line. An interrupt hides no
    outcome, as each line is flushed.
    """
    if outcome["error"] is not None:
        click.echo(f"error: {escaped(refused)}: {outcome['error']}", err=True)
    if output == "json":
        click.echo(as_json(outcome))
    elif outcome["error"] is None:
        click.echo(escaped(done))


def as_json(value: object, indent: int | None = None) -> str:
    """Return a value as JSON text. Times are ISO 8601 with their UTC offset."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=_iso)
    # Module json escapes characters below U+0020.
    return _RAW_CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def _show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(rows[0])
    columns = [[name, *(_text(row[name]) for row in rows)] for name in names]
    widths = [max(map(_width, column)) for column in columns]
    if sys.stdout.isatty() and sum(widths) + 2 * (len(widths) - 1) > get_terminal_size().columns:
        _show_one_by_one(rows)  # wrapped lines of a wide table would be unreadable
        return
    numeric = [isinstance(rows[0][name], int | float) and not isinstance(rows[0][name], bool) for name in names]
    for number, line in enumerate(zip(*columns, strict=True)):
        cells = zip(line, widths, numeric, strict=True)
        text = "  ".join(_padded(cell, width, right) for cell, width, right in cells).rstrip()
        click.echo(click.style(text, bold=True) if number == 0 and sys.stdout.isatty() else text)


def _show_one_by_one(rows: Sequence[Mapping[str, Any]]) -> None:
    for number, row in enumerate(rows):
        if number:
            click.echo()
        show_record(row, "table")


def _padded(cell: str, width: int, right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if right else cell + room


def _width(text: str) -> int:
    """Return the number of terminal columns that a string takes."""
    if text.isascii():
        return len(text)
    return sum(0 if combining(each) else 2 if east_asian_width(each) in "WF" else 1 for each in text)


def _text(value: object) -> str:
    if value is None or value in ([], {}, ""):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1000:03}"
    if isinstance(value, dict):
        return ", ".join(f"{_text(name)}={_text(each)}" for name, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return escaped(str(value))


def _iso(value: object) -> str:
    assert isinstance(value, datetime), "the only type in records that `json` cannot encode"
    return value.isoformat(timespec="milliseconds")


def one_line(error: Exception) -> str:
    """Return the text of an error on one line, with advice for the shell if there is any."""
    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
    text = escaped(" ".join(line.strip() for line in text.splitlines()))
    if isinstance(error, AlreadyExists):  # its text begins with topic or group
        return f"{text.removesuffix('; alter or replace it')}; `pyromq {text.partition(' ')[0]} alter` changes it"
    if isinstance(error, AccessDenied) and "names no account" in text:
        return f"{text}; give them by --access-key and --secret-key @FILE"
    reason = error.__cause__ if isinstance(error.__cause__, TlsRefused | HostNotFound) else error
    advice = next((advice for kind, advice in _ADVICE if isinstance(reason, kind)), None)
    return text if advice is None else f"{text}; {advice}"
