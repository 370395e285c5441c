"""Draws charts of values over time as SVG on the server: no script, no library, colours by style-sheet classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from pyromq.console.cluster.cluster_history import Point
from pyromq.console.view.texts import number
from pyromq.console.view.viewer_times import in_zone, time_text, zone_name

MOST_COLUMNS = 60
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
STEPS = ((MINUTE_MS, "minute"), (10 * MINUTE_MS, "ten minutes"), (HOUR_MS, "hour"), (6 * HOUR_MS, "six hours"))
LONG_STEPS = ((DAY_MS, "day"), (7 * DAY_MS, "week"), (30 * DAY_MS, "thirty days"), (365 * DAY_MS, "year"))

WIDTH, HEIGHT = 640, 150
LEFT, RIGHT, TOP, BOTTOM = 56, 8, 10, 26
SPARK_WIDTH, SPARK_HEIGHT = 96, 22


class ChartLine:
    """One line of a chart: name in the legend, style-sheet class (`one`, `two`), points."""

    def __init__(self, name: str, points: Sequence[Point], style: str = "one") -> None:
        self.name, self.points, self.style = name, points, style

    @property
    def known(self) -> list[float]:
        return [point.value for point in self.points if point.value is not None]


def chart(title: str, lines: Sequence[ChartLine], text: Callable[[float | None], str]) -> Markup:
    """Return a chart as an HTML figure with title, legend and axes.

    Last values are written out; the label has all values.
    """
    times = [point.time_ms for line in lines for point in line.points]
    known = [value for line in lines for value in line.known]
    legend = Markup("").join(_legend(line, text) for line in lines)
    head = Markup("<figcaption><span class=chart-title>{}</span>{}</figcaption>").format(title, legend)
    if len(known) < 2 or min(times) == max(times):
        empty = "The first samples are being taken; a line appears within half a minute."
        return Markup("<figure class=chart>{}<p class='muted chart-empty'>{}</p></figure>").format(head, empty)
    begin, end, top = min(times), max(times), _round_up(max(known))
    parts = [grid(top, text), _clock(begin, end)]
    parts += [_path(line, begin, end, top) for line in lines]
    label = f"{title}: " + "; ".join(
        f"{line.name} {text(min(line.known))} to {text(max(line.known))}, now {text(line.known[-1])}"
        for line in lines
        if line.known
    )
    return Markup('<figure class=chart>{}<svg viewBox="0 0 {} {}" role=img aria-label="{}">{}</svg></figure>').format(
        head, WIDTH, HEIGHT, label, Markup("").join(parts)
    )


def spark(points: Sequence[Point], label: str) -> Markup:
    """Return a small line chart for a table row; "" without values."""
    known = [point.value for point in points if point.value is not None]
    if len(known) < 2:
        return Markup("")
    top, begin, end = max(known) or 1.0, points[0].time_ms, points[-1].time_ms
    pieces = _pieces(points, begin, end, top, (0, SPARK_WIDTH), (2, SPARK_HEIGHT - 2))
    return Markup(
        '<svg class=spark viewBox="0 0 {} {}" role=img aria-label="{}"><path class="line one" d="{}"/></svg>'
    ).format(SPARK_WIDTH, SPARK_HEIGHT, label, pieces)


def bar(share: float, label: str) -> Markup:
    """Return a bar filled to a share (0 to 1) with the number beside the bar, for readers who see no colours."""
    share = min(max(share, 0.0), 1.0)
    level = "high" if share >= 0.9 else "warm" if share >= 0.75 else "calm"
    return Markup(
        '<svg class="bar {}" viewBox="0 0 100 6" preserveAspectRatio=none role=img aria-label="{}">'
        '<rect class=bar-all width=100 height=6 rx=3 /><rect class=bar-used width="{:.1f}" height=6 rx=3 /></svg>'
    ).format(level, label, share * 100)


def _legend(line: ChartLine, text: Callable[[float | None], str]) -> Markup:
    last = line.known[-1] if line.known else None
    return Markup("<span class='legend {}'>{} <b>{}</b></span>").format(line.style, line.name, text(last))


def grid(top: float, text: Callable[[float], str], *, shares: Sequence[float] = (0.0, 0.5, 1.0)) -> Markup:
    """Return the SVG lines across a chart at these shares of `top`, each with its value in front."""
    parts = []
    for share in shares:
        y = TOP + (1 - share) * (HEIGHT - TOP - BOTTOM)
        parts.append(
            Markup(
                '<line class=grid x1="{}" x2="{}" y1="{:.1f}" y2="{:.1f}"/>'
                '<text x="{}" y="{:.1f}" class=axis-y>{}</text>'
            ).format(LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, text(top * share))
        )
    return Markup("").join(parts)


def _clock(begin: int, end: int) -> Markup:
    parts = []
    for share, style in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        ms = begin + share * (end - begin)
        x = LEFT + share * (WIDTH - LEFT - RIGHT)
        parts.append(
            Markup('<text x="{:.1f}" y="{}" class="axis-x {}">{}</text>').format(
                x, HEIGHT - 6, style, time_text(ms)[11:]
            )
        )
    return Markup("").join(parts)


def _path(line: ChartLine, begin: int, end: int, top: float) -> Markup:
    pieces = _pieces(line.points, begin, end, top, (LEFT, WIDTH - RIGHT), (TOP, HEIGHT - BOTTOM))
    return Markup('<path class="line {}" d="{}"><title>{}</title></path>').format(line.style, pieces, line.name)


def _pieces(
    points: Sequence[Point], begin: int, end: int, top: float, across: tuple[float, float], down: tuple[float, float]
) -> str:
    """Return attribute `d` of an SVG path through the points, interrupted where values are unknown."""
    span, parts, move = max(end - begin, 1), [], True
    for point in points:
        if point.value is None:
            move = True
            continue
        x = across[0] + (point.time_ms - begin) / span * (across[1] - across[0])
        y = down[1] - (point.value / top if top else 0) * (down[1] - down[0])
        parts.append(f"{'M' if move else 'L'}{x:.1f} {y:.1f}")
        move = False
    return str(escape("".join(parts)))


def _round_up(value: float) -> float:
    """Return the next of 1, 2, 5, 10, 20, ... above a value, so that the axis has round numbers."""
    if value <= 0:
        return 1.0
    step = 10.0 ** (len(str(int(value))) - 1) if value >= 1 else 0.1
    while step > value:
        step /= 10
    return next(step * each for each in (1, 2, 5, 10) if step * each >= value)


def columns(noun: str, times: Sequence[int]) -> Markup:
    """Return a column chart with the number of times (ms since 1970) in each minute, hour or day; "" without times."""
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
                _day_text(at * step, step),
                number(count),
            )
        )
    right = LEFT + (end + 1 - begin) * wide
    parts.append(_label(LEFT, "start", _day_text(begin * step, step)))
    if right > 260:  # a label further left would overlap the first label
        parts.append(_label(right, "end", _day_text(end * step, step)))
    label = f"{title}: {number(top)} at most, from {_day_text(begin * step, step)} to {_day_text(end * step, step)}"
    return Markup(
        "<figure class=chart><figcaption><span class=chart-title>{}</span>"
        '<span class=muted>{}</span></figcaption><svg viewBox="0 0 {} {}" role=img aria-label="{}">{}</svg></figure>'
    ).format(title, zone_name(), WIDTH, HEIGHT, label, Markup("").join(parts))


def _label(x: float, style: str, text: str) -> Markup:
    return Markup('<text x="{:.1f}" y="{}" class="axis-x {}">{}</text>').format(x, HEIGHT - 6, style, text)


def _day_text(ms: int, step: int) -> str:
    at = in_zone(ms)
    return at.strftime("%Y-%m-%d" if step >= DAY_MS else "%Y-%m-%d %H:%M") if at is not None else f"{ms} ms"
