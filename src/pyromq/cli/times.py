"""Reading points in time and positions as people write them: `beginning`, `10m`, `2026-01-31 12:00`, `1500`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import click

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


@dataclass(frozen=True, slots=True)
class Start:
    """Where reading starts: `beginning`, `end`, an offset (the same in every queue) or a time in ms since 1970."""

    place: str | None = None
    offset: int | None = None
    time_ms: int | None = None


def read_time(text: str, now_ms: int) -> int:
    """Return ms since 1970 of `now`, `10m` (ago), ISO date and time, or ms. Raises `ValueError`."""
    if text == "now":
        return now_ms
    if match := re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text):
        return now_ms - int(float(match[1]) * _UNITS[match[2]] * 1000)
    if re.fullmatch(r"\d{12,14}", text):
        return int(text)
    return int(datetime.fromisoformat(text).timestamp() * 1000)


class TimeType(click.ParamType):
    """A time option: `now`, `10m` (ago), `2026-01-31 12:00`, or ms since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return read_time(value, int(datetime.now().timestamp() * 1000))
        except ValueError:
            self.fail(f"{value!r} is no time; write now, 10m (ago), 2026-01-31 12:00, or ms since 1970", param, ctx)


class StartType(click.ParamType):
    """A start option: `beginning`, `end`, an offset, or a time."""

    name = "start"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        if isinstance(value, Start):
            return value
        if value in ("beginning", "end"):
            return Start(place=value)
        if value.isdigit() and len(value) < 12:
            return Start(offset=int(value))
        return Start(time_ms=TimeType().convert(value, param, ctx))
