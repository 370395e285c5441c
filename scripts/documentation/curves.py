"""Draws measured curves (`benchmarks/scale.tsv`) as panels of one picture, over what grows, both axes logarithmic."""

from __future__ import annotations

import math
from collections import defaultdict
from pathlib import Path

TABLE = Path(__file__).parents[2] / "benchmarks" / "scale.tsv"
_LEFT, _RIGHT, _HEIGHT, _GAP = 62, 404, 110, 64  # units of the picture: edges and height of a panel, space for labels
_KINDS = ("solid", "dashed")

Points = list[tuple[float, float]]


def curves(table: Path = TABLE) -> dict[str, dict[str, Points]]:
    """Return the points of each figure of each curve, in order of what grows."""
    found: dict[str, dict[str, Points]] = defaultdict(lambda: defaultdict(list))
    for line in table.read_text().splitlines():
        curve, figure, grown, value = line.split("\t")
        found[curve][figure].append((float(grown), float(value)))
    return found


class Panel:
    """One pair of axes at a height of the picture. `lines` has the points of up to two figures."""

    def __init__(self, top: int, title: str, unit: str, lines: dict[str, Points]) -> None:
        self._top = top
        self.title, self.unit, self.lines = title, unit, lines
        places = [point for points in lines.values() for point in points]
        self._x = _decades([x for x, _ in places])
        self._y = _decades([y for _, y in places])

    @property
    def bottom(self) -> int:
        return self._top + _HEIGHT

    def place(self, x: float, y: float) -> tuple[int, int]:
        """Return where a point lies in the picture."""
        across = (math.log10(x) - self._x[0]) / (self._x[1] - self._x[0])
        up = (math.log10(y) - self._y[0]) / (self._y[1] - self._y[0])
        return round(_LEFT + across * (_RIGHT - _LEFT)), round(self.bottom - up * _HEIGHT)

    def x_ticks(self) -> list[float]:
        return [10.0**power for power in range(self._x[0], self._x[1] + 1)]

    def y_ticks(self) -> list[float]:
        return [10.0**power for power in range(self._y[0], self._y[1] + 1)]


def panels(wanted: list[tuple[str, str, dict[str, str]]], top: int) -> list[Panel]:
    """Return a panel for each (title, unit, {"curve figure": label}), one below the other."""
    measured = curves()
    found = []
    for title, unit, figures in wanted:
        lines = {label: measured[name.split()[0]][name.split()[1]] for name, label in figures.items()}
        found.append(Panel(top, title, unit, lines))
        top = found[-1].bottom + _GAP
    return found


def _decades(values: list[float]) -> tuple[int, int]:
    """Return the powers of ten below and above all values, at least one apart."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)


def short(number: float) -> str:
    """Return a tick's text: 0.1, 10, 1k, 1M."""
    for limit, letter in ((1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:g}{letter}"
    return f"{number:g}"
