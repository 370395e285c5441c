"""Texts of strangers - names, remarks, what an error quotes - as logs, errors and terminals may show them.

A line end in one would begin a line that nobody wrote, an escape sequence steers a terminal, a million characters fill
a disk. What is printable stays as it is.
"""

from __future__ import annotations

import re

MOST_SHOWN = 200  # characters: longer than any legal topic or client id, and a line of them can be read

_UNPRINTABLE = re.compile(r"[^ -~]")  # most of these are printable, which is asked one by one


def excerpt(text: object, most: int = MOST_SHOWN) -> str:
    """Return a text on one line, printable, cut off after `most` characters of its own with the number left out."""
    return escaped(bounded(str(text), most))


def bounded(text: str, most: int) -> str:
    """Return the first `most` characters and how many were left out; what is not longer is returned as it is."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text) - most} more characters)"


def escaped(text: str) -> str:
    r"""Return a text with `\n`, `\x1b` and the like for what is not printable: controls, line ends, lone surrogates."""
    return text if text.isprintable() else _UNPRINTABLE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return character if character.isprintable() else character.encode("unicode_escape").decode()
