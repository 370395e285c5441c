"""Settings as text, in the format of Java's properties: `key=value` lines, as requests 25, 26, 318, 319 and files hold.

Source: java.util.Properties.load and RocketMQ 4.9.8, MixAll.properties2String, which writes without escaping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
# The key ends at the first `=`, `:` or blank that has no backslash before it.
_LINE = re.compile(r"((?:\\.|[^\\=:\s])*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Return the settings of a text; the last of a name wins. Comments start with `#` or `!`."""
    properties = {}
    for line in _logical_lines(text):
        match = _LINE.fullmatch(line)
        assert match is not None, "the pattern takes any text"
        properties[_unescape(match[1])] = _unescape(match[2])
    return properties


def write_properties(properties: Mapping[str, str]) -> str:
    """Return `key=value` lines, each with its line end."""
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def _logical_lines(text: str) -> Iterator[str]:
    """Lines without leading blanks and comments; a line that ends with an odd number of backslashes goes on."""
    joined = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip(" \t\f")
        if not joined and (not line or line[0] in "#!"):
            continue
        joined += line
        if (len(joined) - len(joined.rstrip("\\"))) % 2:
            joined = joined[:-1]
            continue
        yield joined
        joined = ""
    if joined:
        yield joined


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
