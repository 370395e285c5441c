"""Settings as text, in the format of Java's properties: `key=value` lines, as requests 25, 26, 318, 319 and files hold.

Source: java.util.Properties.load and store. RocketMQ 4.9.8, MixAll.properties2String, writes without escaping, which
is no other text for what its settings hold; and as Java reads these bytes as Latin-1, what is not ASCII is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The key ends at the first `=`, `:` or blank that has no backslash before it.
_LINE = re.compile(r"((?:\\.|[^\\=:\s])*+)[ \t\f]*+[=:]?[ \t\f]*+(.*)", re.DOTALL)
_BLANKS = " \t\f"  # between a name and its value, and before a line
_NEEDS_ESCAPE = re.compile(r"[^ -~]|\\")
_NAME_NEEDS_ESCAPE = re.compile(r"[^ -~]|[\\ =:#!]")
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings of a text; the last of a name wins. Comments start with `#` or `!`."""
    properties = {}
    for line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        assert match is not None, "the pattern takes any text"
        properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def write_properties(properties: Mapping[str, str]) -> str:
    """Return `key=value` lines, each with its line end, that `parse_properties` and Java read as what is given."""
    return "".join(f"{_escaped(_NAME_NEEDS_ESCAPE, name)}={_value(value)}\n" for name, value in properties.items())


def _value(value: str) -> str:
    text = _escaped(_NEEDS_ESCAPE, value)
    return f"\\{text}" if text.startswith(" ") else text


def _escaped(needs_escape: re.Pattern[str], text: str) -> str:
    return needs_escape.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if " " <= character <= "~":
        return f"\\{character}"
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return _ESCAPES.get(character) or "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without leading blanks and comments; a line that ends with an odd number of backslashes goes on."""
    joined: list[str] = []
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(_BLANKS)
        if not joined and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            joined.append(line[:-1])
            continue
        yield "".join(joined) + line
        joined = []
    if joined:
        yield "".join(joined)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    # Java escapes a character beyond 16 bits as a pair of surrogates; half a pair is no character.
    return _ESCAPE.sub(_meaning, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _meaning(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)


def parse_number(text: str) -> int:
    """Read a whole number as Java does. Raises `ValueError` with what to write."""
    if not re.fullmatch(r"[+-]?[0-9]+", text):
        raise ValueError("write a whole number")
    return int(text)
