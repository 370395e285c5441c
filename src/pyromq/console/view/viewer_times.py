"""Times as the viewer reads and writes them: all pages and fields use the zone that the viewer's browser names.

A cookie has the zone's IANA name. Without the cookie the zone is UTC. The zone is set for each request.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, time
from zoneinfo import ZoneInfo

from markupsafe import Markup, escape

from pyromq.clock import local_time
from pyromq.errors import UsageError

ZONE_COOKIE = "pyromq-zone"
MAX_ZONE_NAME = 64  # limit of characters of a zone's name: the longest IANA name has 32
UTC = ZoneInfo("UTC")
UNKNOWN = "–"
SPANS = {"15m": "last 15 min", "1h": "last 1 h", "1d": "last 1 d"}  # buttons of a time range: value and text
UNITS_MS = {"s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
RELATIVE = re.compile(r"([+-])\s*(\d{1,6})\s*(s|min|m|h|d)\Z")

_viewer: ContextVar[ZoneInfo] = ContextVar("viewer_zone", default=UTC)


def use_zone(name: str | None) -> None:
    """Set the zone of the running request. An unknown name means UTC."""
    _viewer.set(_zone(name) or UTC)


def zone_name() -> str:
    """Return the IANA name of the viewer's zone."""
    return _viewer.get().key


def in_zone(ms: float) -> datetime | None:
    """Return ms since 1970 as a datetime in the viewer's zone; None as in `local_time`."""
    return local_time(ms, _viewer.get())


def time_text(ms: float | None, *, exact: bool = False) -> str:
    """Return a time as string `2026-11-22 17:00:00`, with `exact` in ms; a dash without a time.

    A number that is not a time of the calendar is shown as the number.
    """
    if not ms or ms < 0:
        return UNKNOWN
    at = in_zone(ms)
    if at is None:
        return f"{ms} ms"
    return at.replace(tzinfo=None).isoformat(" ", "milliseconds" if exact else "seconds")


def moment(ms: int | None) -> Markup:
    """Return an HTML time element to the second. Its title has the time in ms, with the zone."""
    return _element(ms, exact=False)


def exact_moment(ms: int | None) -> Markup:
    """Return an HTML time element in ms, for the events of messages."""
    return _element(ms, exact=True)


def read_time(text: str, now_ms: int, *, zone: str | None = None) -> int | None:
    """Return ms since 1970 from a string; None for an empty string. Raises `UsageError`.

    The text is a time in the zone, by default the viewer's: `2026-11-22 17:00`, or `17:00` for today. Other forms are a
    time with an offset, a distance from now (`-15m`, `+1h`), and a number of ms since 1970.
    """
    text = text.strip()
    if not text:
        return None
    if text.isdecimal() and len(text) < 16:
        return int(text)
    if (distance := RELATIVE.match(text)) is not None:
        sign, count, unit = distance.groups()
        return now_ms + int(f"{sign}{count}") * UNITS_MS[unit]
    default = (_zone(zone) if zone else None) or _viewer.get()
    try:
        at = _parsed(text, now_ms, default)
        found = int((at if at.tzinfo else at.replace(tzinfo=default)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{text[:60]!r} is not a time: write 2026-11-22 17:00, 17:00 for today, or -15m for 15 minutes ago"
        ) from None
    if found < 0:
        raise UsageError(f"{text[:60]!r} is before 1970; write a later time")
    return found


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A range of times in ms since 1970, both ends included; None is an open end."""

    since_ms: int | None = None
    until_ms: int | None = None

    @classmethod
    def of(cls, fields: Mapping[str, str], now_ms: int) -> TimeRange:
        """Return the range that the fields `since`, `until` and `zone` describe, or `last` alone. Raises `UsageError`.

        The macro `time_range` of the templates has these fields.
        """
        if last := fields.get("last", ""):
            return cls(read_time(f"-{last}", now_ms))
        zone = fields.get("zone")
        found = cls(*(read_time(fields.get(name, ""), now_ms, zone=zone) for name in ("since", "until")))
        if found.since_ms is not None and found.until_ms is not None and found.since_ms > found.until_ms:
            raise UsageError(
                f"the range ends at {time_text(found.until_ms)}, before it begins at {time_text(found.since_ms)}; "
                "exchange the two times"
            )
        return found

    @property
    def fields(self) -> dict[str, str]:
        """The range as fields of an address, which mean the same in every zone and at any time."""
        return {"since": _digits(self.since_ms), "until": _digits(self.until_ms)}


def _digits(ms: int | None) -> str:
    return "" if ms is None else str(ms)


def field_text(ms: int | None) -> str:
    """Return a time as a field of a form shows it: with ms only if they are not 0; "" for None."""
    return "" if ms is None else time_text(ms, exact=bool(ms % 1000)) if ms else "0"


def _element(ms: int | None, *, exact: bool) -> Markup:
    shown = time_text(ms, exact=exact)
    at = in_zone(ms) if ms else None
    if at is None:
        return Markup("<span class=muted>{}</span>").format(shown) if shown == UNKNOWN else escape(shown)
    return Markup('<time datetime="{}" title="{} {}">{}</time>').format(
        at.isoformat(timespec="milliseconds"), time_text(ms, exact=True), zone_name(), shown
    )


def _parsed(text: str, now_ms: int, zone: ZoneInfo) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        today = local_time(now_ms, zone)
        if today is None:
            raise
        return datetime.combine(today.date(), time.fromisoformat(text))


def _zone(name: str | None) -> ZoneInfo | None:
    if not name or len(name) > MAX_ZONE_NAME:
        return None
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # `OSError`: the name of a folder of zones, for example "America"
        return None
