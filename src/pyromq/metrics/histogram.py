"""How often values were how large, as Prometheus counts them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from pyromq.metrics.exposition import Exposition, Family

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Histogram:
    """Counts values by ascending upper bounds, these included."""

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def tell(self, exposition: Exposition, family: Family, labels: str) -> None:
        """Add its samples: one a bound, how many there were, and their sum."""
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            exposition.add(family, f'{labels},le="{bound}"', total, part="_bucket")
        exposition.add(family, labels, round(self._sum, 6), part="_sum")
        exposition.add(family, labels, total, part="_count")
