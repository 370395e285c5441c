"""Draws charts of values over time as SVG on the server: no library, colours by style-sheet classes.

Each chart has columns with the values at a time, which the browser shows as a tooltip and the page's script beside the
legend.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup, escape

from pyromq.console.cluster.cluster_history import Point
from pyromq.console.view.chart_axes import SCALES, Scale, time_ticks
from pyromq.console.view.texts import number
from pyromq.console.view.viewer_times import in_zone, time_text, zone_name

MAX_COLUMNS = 60
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
STEPS = ((MINUTE_MS, "minute"), (10 * MINUTE_MS, "ten minutes"), (HOUR_MS, "hour"), (6 * HOUR_MS, "six hours"))
LONG_STEPS = ((DAY_MS, "day"), (7 * DAY_MS, "week"), (30 * DAY_MS, "thirty days"), (365 * DAY_MS, "year"))

LAST_MIDDLE = 0.95  # times further right end at their place, so that they stay inside the chart
WIDTH, HEIGHT = 1000, 100  # units of lines, which are stretched to the chart; texts are not
SPARK_WIDTH, SPARK_HEIGHT = 96, 22
SPARK_POINTS = 48  # a small chart has no room for more


class ChartLine:
    """One line of a chart: name in the legend, points, style-sheet class (`one`, `two`).

    `now` is the value of the legend, by default that of the last point.
    """

    def __init__(self, name: str, points: Sequence[Point], style: str = "one", *, now: float | None = None) -> None:
        self.name, self.points, self.style = name, points, style
        last = next((each.value for each in reversed(points) if each.value is not None), None)
        self.now = last if now is None else now

    @property
    def known(self) -> list[float]:
        return [point.value for point in self.points if point.value is not None]


def chart(title: str, lines: Sequence[ChartLine], unit: str) -> Markup:
    """Return a chart as an HTML figure with title, legend and axes. `unit` is a key of `SCALES`."""
    scale = SCALES[unit]
    times = [point.time_ms for line in lines for point in line.points]
    known = [value for line in lines if len(line.known) > 1 for value in line.known]
    legend = Markup("").join(
        Markup("<span class='legend {}'>{} <b>{}</b></span>").format(line.style, line.name, scale.text(line.now))
        for line in lines
    )
    head = Markup("<figcaption><span class=chart-title>{}</span>{}</figcaption>").format(title, legend)
    if not known or min(times) == max(times):
        empty = "The first samples are being taken; a line appears within half a minute."
        return Markup("<figure class=chart>{}<p class='muted chart-empty'>{}</p></figure>").format(head, empty)
    begin, end = min(times), max(times)
    ticks = scale.ticks(max(known))
    label = f"{title}, {time_text(begin)} to {time_text(end)}: " + "; ".join(
        f"{line.name} {scale.text(min(line.known))} to {scale.text(max(line.known))}, now {scale.text(line.now)}"
        for line in lines
        if line.known
    )
    drawn = Markup("").join(_path(line, begin, end, ticks[-1]) for line in lines)
    parts = _axes(scale, ticks, time_ticks(begin, end)) + _stretched(drawn) + _readings(lines, scale, begin, end)
    return _figure(head, label, _range_text(begin, end), parts)


def spark(points: Sequence[Point], label: str) -> Markup:
    """Return a small line chart for a table row; "" without values."""
    known = [point.value for point in points if point.value is not None]
    if len(known) < 2:
        return Markup("")
    top, begin, end = max(known) or 1.0, points[0].time_ms, points[-1].time_ms
    pieces = _pieces(points, begin, end, top, (SPARK_WIDTH, SPARK_HEIGHT - 4))
    return Markup(
        '<svg class=spark viewBox="0 -2 {} {}" role=img aria-label="{}"><path class="line one" d="{}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, label, pieces)


def bar(share: float, label: str) -> Markup:
    """Return a bar filled to a share (0 to 1) with the number beside the bar, for readers who see no colours."""
    share = min(max(share, 0.0), 1.0)
    level = "high" if share >= 0.9 else "warm" if share >= 0.75 else "calm"
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 6" preserveAspectRatio=none role=img aria-label="{}">'
        '<rect class=bar-all width=100 height=6 rx=3 /><rect class=bar-used width="{:.1f}" height=6 rx=3 /></svg>'
    ).format(level, label, share * 100)


def columns(noun: str, times: Sequence[int]) -> Markup:
    """Return a column chart with the number of times (ms since 1970) in each minute, hour or day; "" without times."""
    if not times:
        return Markup("")
    first, last = min(times), max(times)
    steps = (*STEPS, *LONG_STEPS)
    step, name = next((each for each in steps if (last - first) / each[0] < MAX_COLUMNS), steps[-1])
    counts = Counter(each // step for each in times)
    begin, count = min(counts), max(max(counts) - min(counts) + 1, 12)
    scale = SCALES["number"]
    ticks = scale.ticks(max(counts.values()))
    title = f"{noun} each {name}"
    drawn = Markup("").join(
        Markup('<rect class=column x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}"/>').format(
            (at - begin + 0.05) * WIDTH / count,
            HEIGHT * (1 - found / ticks[-1]),
            0.9 * WIDTH / count,
            HEIGHT * found / ticks[-1],
        )
        for at, found in sorted(counts.items())
    )
    readings = Markup("").join(
        _reading((at - begin) / count, 1 / count, f"{_day_text(at * step, step)}: {number(found)}")
        for at, found in sorted(counts.items())
    )
    end_ms = (begin + count) * step
    parts = _axes(scale, ticks, time_ticks(begin * step, end_ms)) + _stretched(drawn) + readings
    span = f"{_day_text(begin * step, step)} to {_day_text(max(counts) * step, step)}"
    head = Markup("<figcaption><span class=chart-title>{}</span></figcaption>").format(title)
    return _figure(head, f"{title}: {number(max(counts.values()))} at most, from {span}", span, parts)


def _figure(head: Markup, label: str, reading: str, parts: Markup) -> Markup:
    return Markup(
        '<figure class=chart>{}<svg class=drawing role=img aria-label="{}">{}</svg>'
        '<p class="chart-reading muted" data-range="{range}" aria-hidden=true>{range}</p></figure>'
    ).format(head, label, parts, range=f"{reading}, {zone_name()}")


def _axes(scale: Scale, ticks: Sequence[float], times: Sequence[tuple[float, str]]) -> Markup:
    """Return lines across the chart with the values before them, and times below."""
    parts = []
    for value in ticks:
        y = f"{100 * (1 - value / ticks[-1]):.2f}%"
        parts.append(
            Markup(
                '<line class=grid x1=0 x2="100%" y1="{}" y2="{}"/><text x=-6 y="{}" dy=".32em" class=axis-y>{}</text>'
            ).format(y, y, y, scale.label(value, ticks[-1]))
        )
    for share, text in times:
        style = "axis-x" if share < LAST_MIDDLE else "axis-x end"
        parts.append(
            Markup('<text x="{:.2f}%" y="100%" dy="1.5em" class="{}">{}</text>').format(100 * share, style, text)
        )
    return Markup("").join(parts)


def _stretched(drawn: Markup) -> Markup:
    return Markup('<svg width="100%" height="100%" viewBox="0 0 {} {}" preserveAspectRatio=none>{}</svg>').format(
        WIDTH, HEIGHT, drawn
    )


def _readings(lines: Sequence[ChartLine], scale: Scale, begin: int, end: int) -> Markup:
    """Return invisible columns across the chart, each with the values in its middle as title."""
    shown = [(line.name, line.points, [each.time_ms for each in line.points]) for line in lines if line.points]
    count = min(MAX_COLUMNS, max(len(points) for _, points, _ in shown))
    parts = []
    for place in range(count):
        at = begin + (place + 0.5) * (end - begin) / count
        found = [(name, points[min(bisect_left(times, at), len(points) - 1)]) for name, points, times in shown]
        text = ", ".join(f"{name} {scale.text(point.value)}" for name, point in found)
        parts.append(_reading(place / count, 1 / count, f"{time_text(found[0][1].time_ms)}: {text}"))
    return Markup("").join(parts)


def _reading(place: float, width: float, text: str) -> Markup:
    return Markup('<rect class=reading x="{:.2f}%" width="{:.2f}%" height="100%"><title>{}</title></rect>').format(
        100 * place, 100 * width, text
    )


def _path(line: ChartLine, begin: int, end: int, top: float) -> Markup:
    pieces = _pieces(line.points, begin, end, top, (WIDTH, HEIGHT))
    return Markup('<path class="line {}" d="{}"/>').format(line.style, pieces)


def _pieces(points: Sequence[Point], begin: int, end: int, top: float, size: tuple[int, int]) -> str:
    """Return attribute `d` of an SVG path through the points, interrupted where values are unknown."""
    span, parts, move = max(end - begin, 1), [], True
    for at_ms, value in points:
        if value is None:
            move = True
            continue
        x, y = (at_ms - begin) / span * size[0], size[1] * (1 - (value / top if top else 0))
        parts.append(f"{'M' if move else 'L'}{x:.1f} {y:.1f}")
        move = False
    return str(escape("".join(parts)))


def _range_text(begin_ms: int, end_ms: int) -> str:
    digits = 16 if end_ms - begin_ms > 10 * MINUTE_MS else 19  # to the minute, or the second
    begin, end = time_text(begin_ms)[:digits], time_text(end_ms)[:digits]
    return f"{begin} to {end[11:] if begin[:10] == end[:10] else end}"


def _day_text(ms: int, step: int) -> str:
    at = in_zone(ms)
    return at.strftime("%Y-%m-%d" if step >= DAY_MS else "%Y-%m-%d %H:%M") if at is not None else f"{ms} ms"
