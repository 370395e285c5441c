"""Counts the characters to type in the table of tasks of the page on the command line, and writes them into it."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/how-to/command-line.md"
_LINE = re.compile(r"`((?:pyromq|rpk|nats|kcat|echo) [^`]*)`(?: \d+)?(?= \|)")
_ROW = re.compile(r"^\|.*\brpk (?:topic|group).*\|$", re.MULTILINE)


def counted(text: str) -> str:
    """Return the page with the number of characters behind each line of the table."""
    return _ROW.sub(lambda row: _LINE.sub(lambda line: f"`{line[1]}` {length(line[1])}", row[0]), text)


def length(line: str) -> int:
    """Return the characters of a line in a table, in which `|` is escaped."""
    return len(line.replace("\\|", "|"))


def rows(text: str) -> list[list[int]]:
    """Return the numbers of each row of the table, those of pyromq first."""
    return [[int(number) for number in re.findall(r"` (\d+) \|", row)] for row in _ROW.findall(text)]


if __name__ == "__main__":
    PAGE.write_text(counted(PAGE.read_text()))
