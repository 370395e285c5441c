"""Counts over a time to come as columns, SVG drawn here: one column a minute, an hour or a day."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from pyromq.clock import utc_time
from pyromq.console.view.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, grid
from pyromq.console.view.texts import number

MOST_COLUMNS = 60
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
STEPS = ((MINUTE_MS, "minute"), (10 * MINUTE_MS, "ten minutes"), (HOUR_MS, "hour"), (6 * HOUR_MS, "six hours"))
LONG_STEPS = ((DAY_MS, "day"), (7 * DAY_MS, "week"), (30 * DAY_MS, "thirty days"), (365 * DAY_MS, "year"))


def columns(noun: str, times: Sequence[int]) -> Markup:
    """Return a figure of how many times (ms) are in each minute, hour or day; "" where there are none."""
    if not times:
        return Markup("")
    first, last = min(times), max(times)
    steps = (*STEPS, *LONG_STEPS)
    step, name = next((each for each in steps if (last - first) / each[0] < MOST_COLUMNS), steps[-1])
    counts = Counter(each // step for each in times)
    begin, end = min(counts), max(counts)
    top = max(counts.values())
    title = f"{noun} each {name}"
    wide = (WIDTH - LEFT - RIGHT) / max(end - begin + 1, 12)
    parts = [grid(top, number, shares=(0.0, 1.0))]
    for at, count in sorted(counts.items()):
        height = count / top * (HEIGHT - TOP - BOTTOM)
        parts.append(
            Markup(
                '<rect class=column x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"><title>{}: {}</title></rect>'
            ).format(
                LEFT + (at - begin) * wide + 0.5,
                HEIGHT - BOTTOM - height,
                max(wide - 1, 0.5),
                height,
                _utc(at * step, step),
                number(count),
            )
        )
    right = LEFT + (end + 1 - begin) * wide
    parts.append(_label(LEFT, "start", _utc(begin * step, step)))
    if right > 260:  # else it would lie over the first
        parts.append(_label(right, "end", _utc(end * step, step)))
    label = f"{title}: {number(top)} at most, from {_utc(begin * step, step)} to {_utc(end * step, step)}"
    return Markup(
        "<figure class=chart><figcaption><span class=chart-title>{}</span>"
        '<span class=muted>UTC</span></figcaption><svg viewBox="0 0 {} {}" role=img aria-label="{}">{}</svg></figure>'
    ).format(title, WIDTH, HEIGHT, label, Markup("").join(parts))


def _label(x: float, style: str, text: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{}" class="axis-x {}">{}</text>').format(x, HEIGHT - 6, style, text)


def _utc(ms: int, step: int) -> str:
    at = utc_time(ms)
    return at.strftime("%Y-%m-%d" if step >= DAY_MS else "%Y-%m-%d %H:%M") if at is not None else f"{ms} ms"
