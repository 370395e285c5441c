"""The scales of charts: round steps of values and times, and their short labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10

from pyromq.console.view import texts
from pyromq.console.view.viewer_times import in_zone

MAX_TICKS = 4  # steps of values above 0
MAX_TIMES = 6
DAY_SECONDS = 86_400
TIME_STEPS = (5, 10, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, DAY_SECONDS)
# The largest tick from which a unit is used, the unit, and its letter.
SIZES = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
UNITS = ((DAY_SECONDS, "d"), (3600, "h"), (60, "min"), (1, "s"))


@dataclass(frozen=True, slots=True)
class Scale:
    """How a chart writes its values. `text` writes one value; the steps of durations are those of clocks."""

    text: Callable[[float | None], str]
    least_step: float = 1.0
    is_duration: bool = False

    def ticks(self, most: float) -> list[float]:
        """Return round values from 0 to `most` or above, at equal distances."""
        step = self._step(max(most / MAX_TICKS, self.least_step))
        return [number * step for number in range(max(1, ceil(most / step - 1e-9)) + 1)]

    def label(self, value: float, top: float) -> str:
        """Return the short label of a tick. `top` is the largest tick, which decides the unit of all labels."""
        if not value:
            return "0"
        if self.is_duration:
            size, unit = next(each for each in UNITS if top >= 2 * each[0] or each[0] == 1)
            return f"{value / size:g} {unit}"
        _, power, letter = next((each for each in SIZES if top >= each[0]), (0.0, 1.0, ""))
        return f"{value / power:,.6g}{letter}"

    def _step(self, least: float) -> float:
        if self.is_duration:
            long = float(ceil(least / DAY_SECONDS) * DAY_SECONDS)
            return next((float(each) for each in (1, 2, *TIME_STEPS) if each >= least), long)
        power = 10.0 ** floor(log10(least))
        return next(power * each for each in (1, 2, 5, 10) if power * each >= least * (1 - 1e-9))


SCALES = {
    "number": Scale(texts.number),
    "rate": Scale(texts.rate, least_step=0.01),
    "seconds": Scale(texts.duration, is_duration=True),
}


def time_ticks(begin_ms: int, end_ms: int) -> Sequence[tuple[float, str]]:
    """Return round times of the viewer's zone between two times: place (0 to 1) and label. Midnight is a date."""
    span = max(end_ms - begin_ms, 1)
    step = next((each for each in TIME_STEPS if span / 1000 / each <= MAX_TIMES), 0) * 1000
    if not step:
        step = ceil(span / 1000 / DAY_SECONDS / MAX_TIMES) * DAY_SECONDS * 1000
    at = in_zone(begin_ms)
    offset = at.utcoffset() if at is not None else None
    shift = int(offset.total_seconds() * 1000) if offset is not None else 0
    first = ceil((begin_ms + shift) / step) * step - shift
    return [((ms - begin_ms) / span, _time_label(ms, step)) for ms in range(first, end_ms + 1, step)]


def _time_label(ms: int, step_ms: int) -> str:
    at = in_zone(ms)
    if at is None:
        return str(ms)
    if at.hour == at.minute == at.second == 0:
        return at.strftime("%m-%d")
    return at.strftime("%H:%M" if step_ms >= 60_000 else "%H:%M:%S")
