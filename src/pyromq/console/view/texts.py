"""Formats numbers, times and sizes as a string; templates use these functions as filters."""

from __future__ import annotations

from pyromq.console.view.error_texts import sentence
from pyromq.console.view.viewer_times import exact_moment, field_text, moment

_STEPS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
NOTHING = "–"


def number(value: float | None) -> str:
    """Return a number with separators, for example `12,345`; a dash for None."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a rate with its significant digits, for example `0.25`, `3.4`, `1,234`."""
    if value is None:
        return NOTHING
    if value == 0:
        return "0"
    if value < 0.01:
        return "<0.01"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"


def size(count: float | None) -> str:
    """Return a number of bytes as a string, for example `1.5 MiB`."""
    if count is None:
        return NOTHING
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.0f} {units[0]}" if units[0] == "B" else f"{value:.1f} {units[0]}"


def duration(seconds: float | None) -> str:
    """Return a duration as a string, for example `350 ms`, `12 s`, `3 min 20 s`, `2 d 4 h`."""
    if seconds is None:
        return NOTHING
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    left, parts = int(seconds), []
    for length, unit in _STEPS:
        if left >= length:
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2])


def permission(bits: int) -> str:
    """Return the permission of a topic in words."""
    words = [word for bit, word in ((4, "read"), (2, "write")) if bits & bit]
    return " and ".join(words) or "neither read nor write"


FILTERS = {
    "number": number,
    "rate": rate,
    "size": size,
    "duration": duration,
    "moment": moment,
    "exact_moment": exact_moment,
    "field_text": field_text,
    "permission": permission,
    "sentence": sentence,
}
