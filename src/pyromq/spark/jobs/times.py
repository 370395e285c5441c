"""Checks durations and times in settings before Spark starts. Imports no pyspark."""

from __future__ import annotations

import re
from datetime import datetime

from pyromq.errors import UsageError

_MOMENT = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)?)?")

_UNITS = {
    name: unit
    for unit, names in {
        "milliseconds": "ms millisecond milliseconds",
        "seconds": "s sec second seconds",
        "minutes": "m min minute minutes",
        "hours": "h hour hours",
        "days": "d day days",
        "weeks": "w week weeks",
    }.items()
    for name in names.split()
}


def spark_interval(setting: str, text: str) -> str:
    """Return a duration in Spark's form: `10 seconds` for `10s`, `10 sec` and `10 seconds`. Raises `UsageError`."""
    parts = re.fullmatch(r"(?:\d+ ?[a-z]+ ?)+", text.strip())
    found = [(number, _UNITS.get(unit)) for number, unit in re.findall(r"(\d+) ?([a-z]+)", text)]
    if not parts or not all(unit for _, unit in found):
        raise UsageError(f"setting {setting} is {text!r}; write a length of time: 500ms, 10s, 5m, 1h, 2d or 10 seconds")
    return " ".join(f"{number} {unit}" for number, unit in found)


def check_moment(setting: str, text: str) -> None:
    """Raise `UsageError` for a text that Spark does not accept as a timestamp; an empty text is accepted."""
    if not text:
        return
    try:
        if _MOMENT.fullmatch(text):
            datetime.fromisoformat(text)
            return
    except ValueError:  # for example the 31st of February
        pass
    raise UsageError(f"setting {setting} is {text!r}; write a time: 2026-01-31, or '2026-01-31 12:00:00' (UTC)")
