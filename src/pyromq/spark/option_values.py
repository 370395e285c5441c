"""Parsers of option values. Each takes the option's name and text, and raises `UsageError` with the allowed form."""

from __future__ import annotations

import re
from collections.abc import Callable

from pyromq.errors import UsageError


def text(name: str, value: str) -> str:
    if not value.strip():
        raise UsageError(f"option {name} is empty")
    return value.strip()


def names(name: str, value: str) -> tuple[str, ...]:
    """Parse a list of names, separated by commas."""
    found = tuple(dict.fromkeys(each for part in value.split(",") if (each := part.strip())))
    if not found:
        raise UsageError(f"option {name} is {value!r}, which has no name; write names separated by commas")
    return found


def truth(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise UsageError(f"option {name} is {value!r}; write true or false")
    return value.lower() == "true"


def number(least: int, most: int | None = None) -> Callable[[str, str], int]:
    """Return a parser of whole numbers."""

    def read(name: str, value: str) -> int:
        if not value.isdecimal() or not _is_between(int(value), least, most):
            raise UsageError(f"option {name} is {value!r}; write a whole number {_range(least, most)}")
        return int(value)

    return read


def size(least: int, most: int | None = None) -> Callable[[str, str], int]:
    """Return a parser of sizes in bytes: `8388608`, `8m` or `512k`."""

    def read(name: str, value: str) -> int:
        unit = {"k": 1 << 10, "m": 1 << 20}.get(value[-1:].lower(), 1)
        digits = value if unit == 1 else value[:-1]
        if not digits.isdecimal() or not _is_between(int(digits) * unit, least, most):
            wanted = _range(least, most)
            raise UsageError(f"option {name} is {value!r}; write bytes {wanted}, for example 1048576, 512k or 1m")
        return int(digits) * unit

    return read


def _is_between(value: int, least: int, most: int | None) -> bool:
    return value >= least and (most is None or value <= most)


def _range(least: int, most: int | None) -> str:
    return f"from {least} on" if most is None else f"from {least} to {most}"


def milliseconds(least: int) -> Callable[[str, str], int]:
    """Return a parser of durations: `15m`, `5s`, `500ms`, or a number of ms."""

    def read(name: str, value: str) -> int:
        found = re.fullmatch(r"(\d+) ?(ms|s|m|h|)", value)
        time = int(found[1]) * {"": 1, "ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}[found[2]] if found else None
        if time is None or time < least:
            raise UsageError(f"option {name} is {value!r}; write 500ms, 5s or 15m")
        return time

    return read


def words(*allowed: str) -> Callable[[str, str], str]:
    """Return a parser of one of these words, in any case."""
    by_lower = {word.lower(): word for word in allowed}

    def read(name: str, value: str) -> str:
        if value.lower() not in by_lower:
            raise UsageError(f"option {name} is {value!r}; write {' or '.join(allowed)}")
        return by_lower[value.lower()]

    return read
