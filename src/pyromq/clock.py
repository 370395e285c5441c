"""Time as a dependency: code that expires, waits or retries takes a `Clock`, which tests advance by hand.

Also converts times in messages, replies and files (ms since 1970) to datetimes; a peer may have sent any number.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Protocol

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Clock(Protocol):
    """The source of time.

    `now_ms` is wall-clock time in ms since 1970, for stored and sent times; `monotonic` is seconds, for durations.
    """

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The clock of this machine."""

    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    async def sleep(self, seconds: float) -> None:
        import asyncio  # imported here: code that only reads the time never loads asyncio

        await asyncio.sleep(seconds)


def utc_time(ms: float) -> datetime | None:
    """Return ms since 1970 as a datetime in UTC; None for a time before the year 1 or after 9999."""
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except (OverflowError, ValueError):  # `ValueError`: `ms` is not a number (NaN)
        return None


def local_time(ms: float, zone: tzinfo | None = None) -> datetime | None:
    """Return ms since 1970 as a datetime in a zone, by default this machine's.

    Return None for 0 or less, and for a time before the year 1 or after 9999.
    """
    found = utc_time(ms) if ms > 0 else None
    try:
        return found.astimezone(zone) if found is not None else None
    except (OverflowError, ValueError, OSError):  # a time within a day of the year 10000
        return None


def iso_time(ms: float) -> str | None:
    """Return ms since 1970 as `2026-11-22T17:00:00.000+00:00`; None for a time before the year 1 or after 9999."""
    found = utc_time(ms)
    return found.isoformat(timespec="milliseconds") if found is not None else None


def whole_ms(text: str | None) -> int:
    """Return the whole number in a string; for any other string, and None, return 0, which means no time."""
    try:
        return int(text or "")
    except ValueError:
        return 0
