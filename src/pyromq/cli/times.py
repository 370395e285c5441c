"""Command-line option types for times and positions: `beginning`, `10m`, `2026-01-31 12:00`, `1500`.

The functions raise `click.BadParameter` for other text.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from datetime import time as clock_time

import click

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


@dataclass(frozen=True, slots=True)
class Start:
    """The place where reading starts: an offset, equal in every queue, or a time (ms since 1970).

    Without both, reading starts at the end.
    """

    offset: int | None = None
    time_ms: int | None = None


BEGINNING = Start(offset=0)
END = Start()
_PLACES = {"beginning": BEGINNING, "start": BEGINNING, "earliest": BEGINNING, "end": END, "latest": END}


def read_time(text: str) -> int:
    """Return ms since 1970 for `now`, `today`, `yesterday`, `10m` (ago), and what `read_moment` reads."""
    now_ms = time.time_ns() // 1_000_000
    if text == "now":
        return now_ms
    if text in ("today", "yesterday"):
        midnight = datetime.combine(date.today() - timedelta(days=text == "yesterday"), clock_time())
        return int(midnight.timestamp() * 1000)
    if match := re.fullmatch(r"-?(\d{1,9}(?:\.\d+)?)([smhdw])", text, re.ASCII):
        return now_ms - int(float(match[1]) * _SECONDS[match[2]] * 1000)
    try:
        return read_moment(text)
    except click.BadParameter:
        raise click.BadParameter(
            f"{text!r} is not a time; write now, 10m (ago; also s, h, d, w), 12:00, 2026-01-31 12:00, or ms since 1970"
        ) from None


def read_moment(text: str) -> int:
    """Return ms since 1970 for an ISO date and time (local time without a zone), `12:00` (of today), or ms."""
    if re.fullmatch(r"\d{12,14}", text):
        return int(text)
    of_today = re.fullmatch(r"\d\d:\d\d(:\d\d)?", text)
    try:
        return int(datetime.fromisoformat(f"{date.today()} {text}" if of_today else text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):  # OSError: Windows knows no local time before 1970
        raise click.BadParameter(f"{text!r} is not a time; write 12:00, 2026-01-31 12:00, or ms since 1970") from None


def read_duration(text: str) -> float:
    """Return the seconds in `90`, `90s`, `1.5h`, `10m` or `2d`."""
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhdw]?)", text, re.ASCII):
        return float(match[1]) * _SECONDS[match[2] or "s"]
    raise click.BadParameter(f"{text!r} is not a duration; write 90s, 10m, 1.5h, 2d or 1w")


def read_place(text: str) -> Start:
    """Parse where reading of a queue starts: `beginning`, `end`, or a time. Words of rpk and Kafka are accepted."""
    if place := _PLACES.get(text):
        return place
    if re.fullmatch(r"\d{1,11}", text):
        raise click.BadParameter(f"{text!r} is an offset; `pyromq offset set` sets the offset of one queue")
    try:
        return Start(time_ms=read_time(text))
    except click.BadParameter as error:
        raise click.BadParameter(error.message.replace("write", "write beginning, end,")) from None


def read_start(text: str) -> Start:
    """Parse where reading of a queue starts: `beginning`, `end`, an offset, or a time."""
    if re.fullmatch(r"-\d+", text):
        raise click.BadParameter(f"{text!r} is before the beginning; for the newest messages write --last {text[1:]}")
    return Start(offset=int(text)) if text.isdigit() and len(text) < 12 and text.isascii() else read_place(text)
