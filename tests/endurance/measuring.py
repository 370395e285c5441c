"""What is measured over the time of a run: values of processes, latencies, and the picture and verdict of all series.

A series has a name such as "steady broker: memory" and a unit. Linux only.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.endurance.trend import trend_of

WARM_SHARE = 0.25  # first part of the time, which is drawn, and not judged: caches and pools fill
# How much a series may rise over its time: a share of its middle, or an amount of its unit, if that is more.
_ALLOWED_SHARE = 0.05
_ALLOWED = {"MB": 2.0, "descriptors": 3.0, "threads": 2.0, "files": 20.0, "ms": 5.0}


@dataclass
class Series:
    """One measured value over time. Points are (seconds since the begin, value)."""

    name: str
    unit: str
    judged: bool = True  # False: a value that rises and falls with the run's own work is drawn only
    points: list[tuple[float, float]] = field(default_factory=list)


class Measurements:
    """All series of a run, in order of their first point."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.series: dict[str, Series] = {}
        self._waits: dict[str, list[float]] = {}

    def add(self, name: str, unit: str, value: float, *, judged: bool = True) -> None:
        series = self.series.setdefault(name, Series(name, unit, judged))
        series.points.append((time.monotonic() - self.began, value))

    def add_process(self, name: str, pid: int, *, judged: bool = True) -> None:
        """Add memory of its own, descriptors and threads of a process. A process that has ended adds nothing."""
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, KeyError):
            folder = Path(f"/proc/{pid}")
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            values = (
                ("memory", "MB", int(status["RssAnon"].split()[0]) / 1024),
                ("descriptors", "descriptors", sum(1 for _ in (folder / "fd").iterdir())),
                ("threads", "threads", int(status["Threads"])),
            )
            for what, unit, value in values:
                self.add(f"{name}: {what}", unit, value, judged=judged)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Measure how long the block takes; a block that raises counts too."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.note_wait(name, time.monotonic() - began)

    def note_wait(self, name: str, seconds: float) -> None:
        self._waits.setdefault(name, []).append(seconds)

    def add_waits(self) -> None:
        """Add median and 99th percentile of all waits since the last call. Only the median is judged."""
        for name, waits in self._waits.items():
            if waits:
                self.add(f"{name}: p50", "ms", median(waits) * 1000)
                self.add(f"{name}: p99", "ms", sorted(waits)[int(len(waits) * 0.99)] * 1000, judged=False)
                waits.clear()

    def save(self, path: Path) -> None:
        """Write all series as JSON: the unit and the points of each, by name."""
        series = {each.name: {"unit": each.unit, "points": each.points} for each in self.series.values()}
        path.write_text(json.dumps(series))

    def verdicts(self) -> list[tuple[bool, str]]:
        """Return for each judged series whether it is flat, and a line that says so in numbers."""
        return [verdict for series in self.series.values() if series.judged for verdict in [_verdict(series)]]


def _verdict(series: Series) -> tuple[bool, str]:
    end = series.points[-1][0]
    trend = trend_of([point for point in series.points if point[0] >= WARM_SHARE * end])
    if trend is None:
        return True, f"{series.name}: {len(series.points)} points, too few for a trend"
    allowance = max(_ALLOWED[series.unit], _ALLOWED_SHARE * trend.middle)
    is_flat = trend.is_flat(allowance)
    text = (
        f"{series.name}: {trend.middle:.4g} {series.unit}, {'flat' if is_flat else 'RISES'} by {trend.rise:+.3g}"
        f" ({trend.low:+.3g} to {trend.high:+.3g}) in {(1 - WARM_SHARE) * end / 60:.0f} min, allowed {allowance:.3g}"
    )
    return is_flat, text


def draw(measurements: Measurements, kills: list[float], path: Path) -> None:
    """Draw all series as one picture, latencies on a logarithmic axis.

    Each unit has a panel for judged series, whose small rises the others' scale would hide, and one for the others.
    """
    from matplotlib import pyplot

    all_series = measurements.series.values()
    shown = sorted({(series.unit, not series.judged) for series in all_series})
    figure, panels = pyplot.subplots(len(shown), 1, figsize=(11, 2.6 * len(shown)), sharex=True, squeeze=False)
    for panel, (unit, is_drawn_only) in zip(panels[:, 0], shown, strict=True):
        for series in all_series:
            if (series.unit, not series.judged) == (unit, is_drawn_only):
                minutes = [time / 60 for time, _ in series.points]
                panel.plot(minutes, [value for _, value in series.points], linewidth=1, label=series.name)
        for at in kills:
            panel.axvline(at / 60, color="grey", linewidth=0.5, linestyle=":")
        panel.set_ylabel(f"{unit}, not judged" if is_drawn_only else unit)
        panel.set_yscale("log" if unit == "ms" else "linear")
        panel.grid(True, alpha=0.3)
        panel.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    panels[-1, 0].set_xlabel("minutes; a dotted line is a kill -9 of the killed broker")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)
