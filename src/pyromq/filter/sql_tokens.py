"""The words of an SQL92 expression, one after the other.

Source: RocketMQ 4.9.8, SelectorParser.jj: the longest match counts, what is behind a whole expression is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

KEYWORDS = frozenset(["NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS"])
END = "end"

_TOKEN = re.compile(
    r"""
      (?P<skipped> [ \t\n\r\f]+ | --[^\n\r]*[\n\r] | /\*.*?\*/ )
    | (?P<double>  [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole>   [1-9][0-9]*[lL]? | 0 )
    | (?P<text>    '(?:''|[^'])*' )
    | (?P<name>    [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<sign>    <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE | re.DOTALL,
)


class Token(NamedTuple):
    """`kind` is `double`, `whole`, `text`, `name`, `end`, or the keyword or sign itself; `at` counts from 1."""

    kind: str
    text: str
    at: int


def tokens(expression: str) -> Iterator[Token]:
    """Yield what the expression consists of, and `END` at its end. Raises `ValueError` where something is nothing."""
    position = 0
    while position < len(expression):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise ValueError(f"{_what(expression[position:])} at character {position + 1} has no meaning")
        kind, text, at = str(match.lastgroup), match[0], position + 1
        position = match.end()
        if kind == "sign":
            yield Token(text, text, at)
        elif kind == "name" and text.upper() in KEYWORDS:
            yield Token(text.upper(), text, at)
        elif kind != "skipped":
            yield Token(kind, text, at)
    while True:
        yield Token(END, "", len(expression) + 1)


def _what(rest: str) -> str:
    return "a text without closing quote" if rest[0] == "'" else repr(rest[0])
