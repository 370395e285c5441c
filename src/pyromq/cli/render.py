"""Printing: rows as a table or as JSON, a record, progress on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def output_option(command: F) -> F:
    """Add `-o table|json`."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        help="How to print data.",
    )(command)


def namesrv_option(command: F) -> F:
    """Add `--namesrv HOST:PORT[;HOST:PORT]`, also read from NAMESRV_ADDR as Java clients do."""
    return click.option(
        "-n",
        "--namesrv",
        envvar="NAMESRV_ADDR",
        default="127.0.0.1:9876",
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT;...",
        help="Name servers.",
    )(command)


def show_rows(rows: Sequence[Mapping[str, Any]], output: str, *, empty: str = "nothing to show") -> None:
    """Print rows with equal keys: a table for people, a JSON array for programs."""
    if output == "json":
        click.echo(json.dumps([dict(row) for row in rows], indent=2, ensure_ascii=False))
    elif not rows:
        click.echo(empty, err=True)
    elif sys.stdout.isatty():
        _show_table(rows)
    else:
        _show_columns(rows)


def show_record(record: Mapping[str, Any], output: str) -> None:
    """Print one thing: `name  value` lines, or a JSON object."""
    if output == "json":
        click.echo(json.dumps(dict(record), indent=2, ensure_ascii=False))
        return
    width = max(map(len, record), default=0)
    for name, value in record.items():
        click.echo(f"{name:<{width}}  {_text(value)}")


def _show_table(rows: Sequence[Mapping[str, Any]]) -> None:
    from rich.console import Console  # slow to import; only people at a terminal pay for it
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in rows[0]:
        table.add_column(name, justify="right" if isinstance(rows[0][name], int | float) else "left")
    for row in rows:
        table.add_row(*map(_text, row.values()))
    Console().print(table)


def _show_columns(rows: Sequence[Mapping[str, Any]]) -> None:
    lines = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        click.echo("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip())


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return str(value)


def local_time(ms: int | None) -> str | None:
    """Return a time in ms since 1970 as local ISO text; None for an absent one."""
    if ms is None or ms < 0:
        return None
    return datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")
