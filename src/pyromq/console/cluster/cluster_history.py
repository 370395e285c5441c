"""Rates and lag of the last hour, in memory: a row for each sample, a column for each topic and group.

The history has 360 samples of the existing topics and groups: 20 MB for 1,000 topics and 2,000 groups.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from pyromq.clock import Clock
from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.cluster.cluster_snapshot import ClusterSnapshot
from pyromq.errors import MQError
from pyromq.logs import logger_of

KEPT_SECONDS = 3600.0
NOTHING = -1.0

logger: logging.Logger = logger_of(__name__)


@dataclass(frozen=True, slots=True)
class Point:
    """A value at a time (ms); None if the value is unknown."""

    time_ms: int
    value: float | None


class ClusterHistory:
    """Samples of the topics and groups of one cluster, oldest first."""

    def __init__(self, *, sample_seconds: float) -> None:
        self.fault = "it was not asked yet"  # error of the last sample; "" if it succeeded
        self._rows = max(2, int(KEPT_SECONDS / sample_seconds))
        self._times: deque[tuple[int, frozenset[str]]] = deque(
            maxlen=self._rows
        )  # of each sample: time in ms, and brokers that did not respond
        self._columns: dict[tuple[str, str], array[float]] = {}
        self._count = 0  # number of samples; sample n is in row n % rows

    def add(self, snapshot: ClusterSnapshot) -> None:
        row = self._count % self._rows
        self._times.append((snapshot.at_ms, snapshot.silence))
        self._count += 1
        seen: set[tuple[str, str]] = set()
        for topic in snapshot.topics.values():
            self._note(("sent", topic.name), row, topic.sent, seen)
        for group in snapshot.groups.values():
            if group.topics:
                self._note(("consumed", group.name), row, group.consumed, seen)
                self._note(("lag", group.name), row, group.lag, seen)
                self._note(("delay", group.name), row, group.delay_ms / 1000, seen)
        self._note(
            ("sent", ""), row, sum(each.sent for each in snapshot.topics.values() if each.kind == "normal"), seen
        )
        self._note(("lag", ""), row, sum(each.lag for each in snapshot.groups.values()), seen)
        out = sum(each.consumed for each in snapshot.groups.values() if not each.is_system)
        self._note(("consumed", ""), row, out, seen)
        for key in self._columns.keys() - seen:
            self._columns[key][row] = NOTHING
        if row == 0 and self._count > 1:
            self._drop_empty()

    def values(self, what: str, name: str = "") -> list[Point]:
        """Return the values `lag` or `delay` (seconds) of a group, oldest first; group "" is the sum of all groups."""
        column = self._columns.get((what, name))
        if column is None:
            return []
        first = self._count - len(self._times)
        values = ((ms, column[(first + number) % self._rows]) for number, (ms, _) in enumerate(self._times))
        return [Point(ms, None if value == NOTHING else value) for ms, value in values]

    def rates(self, what: str, name: str = "") -> list[Point]:
        """Return the rates per second between samples: messages `sent` to a topic or `consumed` by a group.

        A rate is unknown where brokers stopped or started responding, because the two sums are of different queues.
        """
        points = self.values(what, name)
        silences = [silent for _, silent in self._times] if points else []
        found = []
        for (before, was), (after, now) in pairwise(zip(points, silences, strict=True)):
            value = None
            if before.value is not None and after.value is not None and was == now and after.time_ms > before.time_ms:
                grown = (after.value - before.value) * 1000 / (after.time_ms - before.time_ms)
                value = grown if grown >= 0 else None
            found.append(Point(after.time_ms, value))
        return found

    def rate(self, what: str, name: str = "") -> float | None:
        """Return the rate per second over about the last minute; None if the rate is not known yet."""
        recent = [point.value for point in self._last_minute(what, name)]
        known = [value for value in recent if value is not None]
        return sum(known) / len(known) if known else None

    def _last_minute(self, what: str, name: str) -> list[Point]:
        column = self._columns.get((what, name))
        if column is None or len(self._times) < 2:
            return []
        newest_ms = self._times[-1][0]
        found: list[Point] = []
        for back in range(1, len(self._times)):
            (after_ms, now), (before_ms, was) = self._times[-back], self._times[-back - 1]
            if newest_ms - before_ms > 61_000 and found:
                break
            after = column[(self._count - back) % self._rows]
            before = column[(self._count - back - 1) % self._rows]
            known = NOTHING not in (after, before) and was == now and after >= before and after_ms > before_ms
            found.append(Point(after_ms, (after - before) * 1000 / (after_ms - before_ms) if known else None))
        return found

    def _note(self, key: tuple[str, str], row: int, value: float, seen: set[tuple[str, str]]) -> None:
        column = self._columns.get(key)
        if column is None:
            column = self._columns[key] = array("d", [NOTHING]) * self._rows
        column[row] = value
        seen.add(key)

    def _drop_empty(self) -> None:
        """Drop the columns of topics and groups that have been absent for an hour."""
        gone = [key for key, column in self._columns.items() if all(value == NOTHING for value in column)]
        for key in gone:
            del self._columns[key]


async def keep_sampling(
    history: ClusterHistory, clients: ClusterClients, clock: Clock, *, sample_seconds: float
) -> None:
    """Add a snapshot to the history every `sample_seconds`, until cancelled. A sample is skipped if the cluster does
    not respond.
    """
    told = False
    while True:
        try:
            history.add(await clients.snapshot())
            history.fault = ""
            told = False
        except (MQError, OSError) as error:
            history.fault = str(error)
            if not told:
                logger.warning("the rates and lag of the cluster cannot be sampled: %s", error)
            told = True
        except asyncio.CancelledError:
            raise
        await clock.sleep(sample_seconds)
