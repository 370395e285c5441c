"""Rates and lag of the last hour and day, in memory: a row for each sample, a column for each topic, group and broker.

The history has 360 samples of the last hour and 288 of the last day: 40 MB for 1,000 topics and 2,000 groups.
"""

from __future__ import annotations

import logging
from array import array
from collections import deque
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import NamedTuple

from pyromq.clock import Clock
from pyromq.console.cluster.cluster_clients import ClusterClients
from pyromq.console.cluster.cluster_snapshot import ClusterSnapshot
from pyromq.errors import MQError
from pyromq.logs import logger_of

HOUR_SECONDS, DAY_SECONDS = 3600.0, 86_400.0
DAY_STEP_SECONDS = 300.0  # time between two samples of the last day
RATE_SECONDS = 60.0  # window of `rate`
NOTHING = -1.0

logger: logging.Logger = logger_of(__name__)

Key = tuple[str, str]  # what is counted, and the name of the topic, group or broker; "" is the whole cluster


class Point(NamedTuple):
    """A value at a time (ms); None if the value is unknown."""

    time_ms: int
    value: float | None


class ClusterHistory:
    """Samples of the topics, groups and brokers of one cluster.

    Counters are `sent` of topics, `consumed` of groups, and `broker in` and `broker out` of brokers; `lag` and `delay`
    (seconds) of groups are values. Messages in are those sent to users' topics, messages out those that users' groups
    consumed; the same counters, with name "", are those of the cluster.
    """

    def __init__(self, *, sample_seconds: float) -> None:
        self.fault = "no sample was taken yet"  # error of the last sample; "" if it succeeded
        self._hour = _Samples(max(2, int(HOUR_SECONDS / sample_seconds)))
        self._day = _Samples(int(DAY_SECONDS / DAY_STEP_SECONDS))

    def add(self, snapshot: ClusterSnapshot) -> None:
        values = dict(_values(snapshot))
        self._hour.add(snapshot.at_ms, snapshot.silence, values)
        if snapshot.at_ms - self._day.newest_ms >= DAY_STEP_SECONDS * 1000:
            self._day.add(snapshot.at_ms, snapshot.silence, values)

    def values(self, what: str, name: str = "", *, seconds: float = HOUR_SECONDS, most: int = 0) -> list[Point]:
        """Return the values of the last `seconds`, oldest first; with `most`, about so many, evenly distributed."""
        return [Point(at, value) for at, value, _ in self._samples((what, name), seconds, most)]

    def rates(self, what: str, name: str = "", *, seconds: float = HOUR_SECONDS, most: int = 0) -> list[Point]:
        """Return the rates per second of a counter between its samples. Arguments are those of `values`.

        A rate is unknown where brokers stopped or started responding, because the two sums are of different queues.
        """
        samples = [_counted(what, each) for each in self._samples((what, name), seconds, most)]
        return [Point(after[0], _rate(before, after)) for before, after in pairwise(samples)]

    def rate(self, what: str, name: str = "") -> float | None:
        """Return the rate per second over about the last minute; None if the rate, or the last sample, is not known."""
        known: list[float] = []
        after: Sample | None = None
        for sample in self._hour.newest_first((what, name)):
            if after is None and sample[1] is None:
                return None
            if after is not None:
                if known and self._hour.newest_ms - sample[0] > RATE_SECONDS * 1000 + 1000:
                    break
                if (value := _rate(_counted(what, sample), after)) is not None:
                    known.append(value)
            after = sample
        return sum(known) / len(known) if known else None

    @property
    def rate_window(self) -> int:
        """The seconds over which `rate` is taken: a minute, or less while the history is shorter."""
        return int(min(RATE_SECONDS, max(0, self._hour.newest_ms - self._hour.oldest_ms) / 1000))

    def _samples(self, key: Key, seconds: float, most: int) -> list[Sample]:
        found = self._hour.samples(key)
        if seconds > HOUR_SECONDS:
            begin = found[0][0] if found else 0
            found = [each for each in self._day.samples(key) if not begin or each[0] < begin] + found
        else:
            first_ms = self._hour.newest_ms - seconds * 1000
            found = [each for each in found if each[0] >= first_ms]
        step = len(found) // most if most else 1
        return found[(len(found) - 1) % step :: step] if step > 1 else found  # the newest one is kept


Sample = tuple[int, float | None, frozenset[str]]  # time in ms, value, brokers that did not respond


def _counted(what: str, sample: Sample) -> Sample:
    """Return a sample in which a topic that did not exist yet has sent 0 messages, as in the sums."""
    at_ms, value, silent = sample
    return (at_ms, 0.0, silent) if what == "sent" and value is None and not silent else sample


def _rate(before: Sample, after: Sample) -> float | None:
    (before_ms, low, was), (after_ms, high, now) = before, after
    if low is None or high is None or was != now or high < low or after_ms <= before_ms:
        return None
    return (high - low) * 1000 / (after_ms - before_ms)


def _values(snapshot: ClusterSnapshot) -> Iterator[tuple[Key, float]]:
    """Yield the values of a sample. Sums are left out if they lack a broker, so that charts have a gap there."""
    for broker in snapshot.brokers.values():
        if broker.error is None:
            yield ("broker in", broker.name), broker.sent
            yield ("broker out", broker.name), broker.consumed
    if snapshot.has_gaps:
        return
    for topic in snapshot.topics.values():
        yield ("sent", topic.name), topic.sent
    for group in snapshot.groups.values():
        if group.topics:
            yield ("consumed", group.name), group.consumed
            yield ("lag", group.name), group.lag
            yield ("delay", group.name), group.delay_ms / 1000
    yield ("sent", ""), sum(each.sent for each in snapshot.topics.values() if each.kind == "normal")
    users = [each for each in snapshot.groups.values() if not each.is_system]
    yield ("consumed", ""), sum(each.consumed for each in users)
    yield ("lag", ""), sum(each.lag for each in users)


class _Samples:
    """The latest `rows` samples: a ring of rows, with a column for each key."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._times: deque[tuple[int, frozenset[str]]] = deque(maxlen=rows)  # times in ms, and silent brokers
        self._columns: dict[Key, array[float]] = {}
        self._count = 0  # number of samples; sample n is in row n % rows

    @property
    def newest_ms(self) -> int:
        return self._times[-1][0] if self._times else 0

    @property
    def oldest_ms(self) -> int:
        return self._times[0][0] if self._times else 0

    def add(self, at_ms: int, silent: frozenset[str], values: Mapping[Key, float]) -> None:
        row = self._count % self._rows
        self._times.append((at_ms, silent))
        self._count += 1
        for key in self._columns.keys() - values.keys():
            self._columns[key][row] = NOTHING
        for key, value in values.items():
            column = self._columns.get(key)
            if column is None:
                column = self._columns[key] = array("d", [NOTHING]) * self._rows
            column[row] = value
        if row == 0 and self._count > 1:
            self._drop_empty()

    def samples(self, key: Key) -> list[Sample]:
        """Return the samples of a key, oldest first; [] for an unknown key."""
        return list(self.newest_first(key))[::-1]

    def newest_first(self, key: Key) -> Iterator[Sample]:
        column = self._columns.get(key)
        if column is not None:
            for back, (at_ms, silent) in enumerate(reversed(self._times), 1):
                value = column[(self._count - back) % self._rows]
                yield at_ms, None if value == NOTHING else value, silent

    def _drop_empty(self) -> None:
        """Drop the columns of topics and groups that are absent from all rows."""
        gone = [key for key, column in self._columns.items() if all(value == NOTHING for value in column)]
        for key in gone:
            del self._columns[key]


async def keep_sampling(
    history: ClusterHistory, clients: ClusterClients, clock: Clock, *, sample_seconds: float
) -> None:
    """Add a snapshot to the history every `sample_seconds`, until cancelled.

    A sample is skipped if the cluster does not respond.
    """
    told = False
    while True:
        try:
            snapshot = await clients.snapshot(fresh=True)
            history.add(snapshot)
            history.fault = snapshot.fault or ""
            told = False
        except (MQError, OSError) as error:
            history.fault = str(error)
            if not told:
                logger.warning("the rates and lag of the cluster cannot be sampled: %s", error)
            told = True
        await clock.sleep(sample_seconds)
