"""Decodes the JSON dialect of Java's fastjson.

It has object keys that are numbers without quotes, object keys that are objects
(`{{"brokerName":"b","queueId":0,"topic":"t"}:7}`), and `{"$ref":"$.path"}` for an object that occurs again.

The input is untrusted: each character is read once, referenced objects are shared instead of copied, and depth, bytes
and values are limited.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import msgspec

from pyromq.errors import ProtocolError
from pyromq.message import MessageQueue

MAX_DEPTH = 100  # of nested arrays and objects; real bodies have about six

_MOST_DIGITS = 20  # of a whole number of 64 bits, with its sign
_MOST_NUMBER = 64  # characters of any other number; a double has at most 25
# Blanks, then the beginning of a value. Quantifiers are possessive: backtracking in a text of 16 MB would need 1 GB.
_VALUE = re.compile(
    r"""[ \t\r\n]*+(?:
    ("[^"\\]*+ (?:\\.[^"\\]*+)*+")
    | (-?[0-9]++ (?:\.[0-9]++)?+ (?:[eE][-+]?[0-9]++)?+)
    | ([{\[])
    | (true|false|null))""",
    re.DOTALL | re.VERBOSE,
)
_TEXT, _NUMBER, _OPENING = 1, 2, 3  # its groups; the last group is a word
_MARK = re.compile(r"[ \t\r\n]*+([^ \t\r\n]?)")
_WORDS = {"true": True, "false": False, "null": None}
_STEP = re.compile(r"\.([^.\[]++)|\[([0-9]{1,9})\]")


def parse(raw: bytes, *, most_bytes: int = sys.maxsize, most_values: int = sys.maxsize) -> Any:
    """Return the Python values of a text in fastjson's dialect. Queues as keys become `MessageQueue`; nulls vanish.

    A reference becomes the object itself, which may be cyclic. Raises `ProtocolError` with the position of a fault, or
    if bytes or values (including keys) exceed their limit.
    """
    if len(raw) > most_bytes:
        raise ProtocolError(f"JSON body of {len(raw)} bytes is no plain JSON; the limit for such is {most_bytes}")
    try:
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"JSON body is not UTF-8: {error}") from error
    reader = _Reader(text, most_values)
    value = reader.value(0)
    reader.end()
    reader.resolve(value)
    return value


def as_queue(key: Any) -> MessageQueue:
    """Convert an object to a queue. Raises `ProtocolError`."""
    try:
        return MessageQueue(str(key["topic"]), str(key["brokerName"]), int(key["queueId"]))
    except (KeyError, ValueError, TypeError) as error:
        raise ProtocolError(f"JSON body: the key {str(key)[:80]} is no queue") from error


class _Reader:
    """A recursive-descent parser of one text."""

    def __init__(self, text: str, most_values: int) -> None:
        self._text = text
        self._position = 0
        self._most = most_values
        self._values = 0
        self._open: list[Any] = []  # the enclosing objects and lists
        self._references: list[tuple[Any, Any, dict[Any, Any], Any]] = []  # holder, key, reference, its parent

    def value(self, depth: int) -> Any:
        """Parse a value with its members."""
        self._count()
        found = _VALUE.match(self._text, self._position)
        if found is None:
            return self._fail("a text without end" if self._mark() == '"' else "no value")
        kind = found.lastindex
        if kind == _OPENING:
            if depth == MAX_DEPTH:
                self._fail("nested too deeply")
            self._position = found.end()
            return self._object(depth + 1) if found[kind] == "{" else self._array(depth + 1)
        if kind == _TEXT:
            value: Any = self._decoded(found[kind])
        else:
            value = self._number(found[kind]) if kind == _NUMBER else _WORDS[found[0].lstrip()]
        self._position = found.end()
        return value

    def end(self) -> None:
        """Check that no text is left."""
        if self._mark():
            self._fail("more text after the value")

    def resolve(self, root: Any) -> None:
        """Replace references by their objects: `$.a.b[0]` from the root, `@` the holder, `..` its parent.

        Each step of a reference counts as a value.
        """
        for holder, key, reference, parent in self._references:
            if holder[key] is reference:  # otherwise a later member had the same name
                path = str(reference["$ref"])
                holder[key] = holder if path == "@" else parent if path == ".." else self._follow(path, root)

    def _follow(self, path: str, root: Any) -> Any:
        found = root
        try:
            if not path.startswith("$"):
                raise KeyError(path)
            for step in _STEP.finditer(path):
                self._count()
                found = found[step[1]] if step[1] else found[int(step[2])]
        except (KeyError, IndexError, TypeError) as error:
            raise ProtocolError(f"JSON body: reference {path[:80]!r} leads nowhere") from error
        return found

    def _count(self) -> None:
        self._values += 1
        if self._values > self._most:
            self._fail(f"more than {self._most} values in what is no plain JSON")

    def _mark(self) -> str:
        """Move to the next character that is no blank and return it; empty at the end."""
        found = _MARK.match(self._text, self._position)
        assert found is not None, "the pattern also matches nothing"
        self._position = found.start(1)
        return found[1]

    def _object(self, depth: int) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        self._open.append(members)
        while self._mark() != "}":
            key = self._member_key(self.value(depth))
            if self._mark() != ":":
                self._fail("no `:` after a key")
            self._position += 1
            value = self.value(depth)
            if value is not None:
                members[key] = value
                self._note(members, key, value)
            self._separator("}")
        self._position += 1
        self._open.pop()
        return members

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._open.append(items)
        while self._mark() != "]":
            value = self.value(depth)
            items.append(value)
            self._note(items, len(items) - 1, value)
            self._separator("]")
        self._position += 1
        self._open.pop()
        return items

    def _note(self, holder: Any, key: Any, value: Any) -> None:
        if isinstance(value, dict) and len(value) == 1 and "$ref" in value:
            parent = self._open[-2] if len(self._open) > 1 else holder
            self._references.append((holder, key, value, parent))

    def _separator(self, closing: str) -> None:
        mark = self._mark()
        if mark == ",":
            self._position += 1
        elif mark != closing:
            self._fail(f"neither `,` nor `{closing}`")

    def _member_key(self, key: Any) -> str | MessageQueue:
        if isinstance(key, dict):
            return as_queue(key)
        if isinstance(key, list) or key is None:
            self._fail("a key that is neither text, number nor queue")
        return key if isinstance(key, str) else str(key)

    def _decoded(self, text: str) -> str:
        try:
            return msgspec.json.decode(text, type=str)
        except msgspec.DecodeError as error:
            raise ProtocolError(f"JSON body, character {self._position}: {error}") from error

    def _number(self, digits: str) -> int | float:
        if digits.removeprefix("-").isdecimal():
            if len(digits) > _MOST_DIGITS:
                self._fail("a number of more than 64 bits")
            return int(digits)
        if len(digits) > _MOST_NUMBER:
            self._fail(f"a number of {len(digits)} characters")
        return float(digits)

    def _fail(self, what: str) -> Any:
        near = self._text[self._position : self._position + 20]
        raise ProtocolError(f"JSON body, character {self._position} ({near!r}): {what}")
