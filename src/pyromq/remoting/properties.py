"""Java's properties format, `key=value` lines, for settings in files and in requests 25, 26, 318 and 319.

Source: java.util.Properties.load and store. RocketMQ 4.9.8, MixAll.properties2String, does not escape; its settings
give the same text. Java reads the bytes as Latin-1, so characters other than ASCII are escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The key ends at the first `=`, `:` or blank without a backslash before it.
_LINE = re.compile(r"((?:\\.|[^\\=:\s])*+)[ \t\f]*+[=:]?[ \t\f]*+(.*)", re.DOTALL)
_BLANKS = " \t\f"  # characters that may separate a name from its value, or precede a line
_NEEDS_ESCAPE = re.compile(r"[^ -~]|\\")
_NAME_NEEDS_ESCAPE = re.compile(r"[^ -~]|[\\ =:#!]")
_ESCAPES = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties in a string; the last of equal names counts.

    Lines that start with `#` or `!` are comments.
    """
    properties = {}
    for line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        assert match is not None, "the pattern takes any string"
        properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def write_properties(properties: Mapping[str, str]) -> str:
    """Return `key=value` lines that `parse_properties` and Java read as these properties."""
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
    """Yield lines without leading blanks and comments.

    A line that ends with an odd number of backslashes continues on the next line.
    """
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
    # Java escapes a character beyond 16 bits as a pair of surrogates; half a pair is not a character.
    return _ESCAPE.sub(_meaning, text).encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _meaning(match: re.Match[str]) -> str:
    escape = match[1]
    return chr(int(escape[1:], 16)) if len(escape) == 5 else _ESCAPED.get(escape, escape)
