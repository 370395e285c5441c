"""Says whether a series of measurements rises: the slope of Theil and Sen, which outliers do not move.

The slope is the median of the slopes between all pairs of points. Its interval of 95 % follows from Kendall's variance.
Source: P. K. Sen, Estimates of the regression coefficient based on Kendall's tau, 1968.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median

LEAST_POINTS = 8  # below, the interval of 95 % has nearly all pairs in it
MAX_POINTS = 400  # a longer series is reduced to medians of neighbours: pairs grow with the square
_95_PERCENT = 1.96  # quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class Trend:
    """How a series changes, in its unit over its whole time; `low` and `high` bound the rise with 95 % confidence."""

    middle: float
    rise: float
    low: float
    high: float

    def is_flat(self, allowance: float) -> bool:
        """Return False if the series surely rises by more than `allowance` over its time."""
        return self.low <= allowance


def trend_of(points: Sequence[tuple[float, float]]) -> Trend | None:
    """Return the trend of (time, value) points in order of time; None if they are too few for one."""
    points = _reduced(points)
    count = len(points)
    if count < LEAST_POINTS:
        return None
    slopes = sorted((later[1] - earlier[1]) / (later[0] - earlier[0]) for earlier, later in combinations(points, 2))
    spread = _95_PERCENT * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = slopes[max(0, math.floor((len(slopes) - spread) / 2))]
    high = slopes[min(len(slopes) - 1, math.ceil((len(slopes) + spread) / 2))]
    time = points[-1][0] - points[0][0]
    return Trend(median(value for _, value in points), median(slopes) * time, low * time, high * time)


def _reduced(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    step = math.ceil(len(points) / MAX_POINTS)
    if step < 2:
        return points
    groups = [points[first : first + step] for first in range(0, len(points), step)]
    return [(median(time for time, _ in group), median(value for _, value in group)) for group in groups]
