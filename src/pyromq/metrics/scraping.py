"""One scrape after the other: sources tell their figures in slices, between which everybody else is served.

In slices of the loop and not in a thread: a thread that has the interpreter keeps it for up to 5 ms.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from pyromq.logs import logger_of
from pyromq.metrics.exposition import Exposition, Family, Kind, Source, Telling
from pyromq.metrics.process import ProcessMetrics

logger = logger_of(__name__)

SLICE_SECONDS = 0.001  # between two turns of the loop; one is as long where there is much to do

SERIES = Family("pyromq_metrics_series", Kind.GAUGE, "How many series are told, this and the next ones left out.")
LIMIT = Family("pyromq_metrics_series_limit", Kind.GAUGE, "How many may be told: the setting metricsSeriesLimit.")
LEFT_OUT = Family(
    "pyromq_metrics_series_left_out", Kind.GAUGE, "1 while there are more series than may be told, else 0."
)
SECONDS = Family(
    "pyromq_metrics_scrape_seconds", Kind.GAUGE, "How long it took to work these figures out.", unit="seconds"
)

FAMILIES = (SERIES, LIMIT, LEFT_OUT, SECONDS)


class Scraping:
    """Asks sources for their figures. Several that ask at once are answered one after the other."""

    def __init__(self, sources: Sequence[Source], series_limit: int) -> None:
        self._sources = (ProcessMetrics(), *sources)
        self._series_limit = series_limit
        self._one_at_a_time = asyncio.Lock()
        self._was_left_out = False

    def faults(self) -> dict[str, str]:
        """Return by condition of being ready why it is not fulfilled; "" where it is."""
        return {name: fault for source in self._sources for name, fault in source.faults().items()}

    async def text(self) -> list[bytes]:
        """Return all figures as text, in pieces."""
        async with self._one_at_a_time:
            begun = time.monotonic()
            exposition = Exposition(self._series_limit)
            for source in self._sources:
                await _in_slices(source.tell(exposition))
            chunks: list[bytes] = []
            await _in_slices(_into(chunks, exposition))
            self._tell_left_out(exposition)
            own = Exposition(len(FAMILIES))
            own.add(SERIES, "", len(exposition))
            own.add(LIMIT, "", self._series_limit)
            own.add(LEFT_OUT, "", int(exposition.left_out))
            own.add(SECONDS, "", round(time.monotonic() - begun, 6))
            await _in_slices(_into(chunks, own))
            return chunks

    def _tell_left_out(self, exposition: Exposition) -> None:
        if exposition.left_out and not self._was_left_out:
            logger.warning(
                "there are more series of metrics than metricsSeriesLimit=%d: those by queue are left out first, then "
                "the last; raise it, or delete topics and groups that nobody uses",
                self._series_limit,
            )
        self._was_left_out = exposition.left_out


def _into(chunks: list[bytes], exposition: Exposition) -> Telling:
    chunks += yield from exposition.text()


async def _in_slices(telling: Telling) -> None:
    end = time.monotonic() + SLICE_SECONDS
    for work in telling:
        if work is not None:
            await asyncio.get_running_loop().run_in_executor(None, work)
        elif time.monotonic() < end:
            continue
        else:
            await asyncio.sleep(0)
        end = time.monotonic() + SLICE_SECONDS
