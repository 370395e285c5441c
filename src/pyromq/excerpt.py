"""Prepares texts of peers, for example names and remarks, for logs, errors and terminals.

A line end would forge a line of a log, an escape sequence controls a terminal, and a million characters fill a disk.
Printable characters stay as they are.
"""

from __future__ import annotations

import re

MAX_SHOWN = 200  # default limit of characters: longer than any legal topic or client id, still readable on one line

_UNPRINTABLE = re.compile(r"[^ -~]")  # characters to check: most of those outside of ASCII are printable and stay


def excerpt(text: object, most: int = MAX_SHOWN) -> str:
    """Return a string on one line, printable and cut after `most` characters.

    The number of omitted characters follows a cut text.
    """
    return escaped(bounded(str(text), most))


def bounded(text: str, most: int) -> str:
    """Return the first `most` characters of a string and the number of omitted ones.

    A shorter text is returned unchanged.
    """
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"


def escaped(text: str) -> str:
    r"""Return a text with escapes such as `\n` and `\x1b` for unprintable characters."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else character.encode("unicode_escape").decode()
