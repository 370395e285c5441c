"""The course of one counter over a minute, an hour and a day. Source: RocketMQ 4.9.8, StatsItem."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pyromq.speedups.records import Counter

SAMPLE_SECONDS = 10.0
MINUTE_SAMPLES = 7  # 10 s apart
HOUR_SAMPLES = 7  # 10 min apart
DAY_SAMPLES = 25  # an hour apart
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SAMPLES_PER_HOUR_SAMPLE = 60
SAMPLES_PER_DAY_SAMPLE = 360


class Sample(NamedTuple):
    """A counter's values at one moment (ms)."""

    at_ms: int
    times: int
    messages: int
    size: int


class Span(NamedTuple):
    """What happened between two samples: the sum, per second, and per event."""

    total: int
    per_second: float
    per_event: float


class Course(NamedTuple):
    """One statistic over the last minute, hour and day."""

    minute: Span
    hour: Span
    day: Span


class _Samples:
    """The newest samples of one counter, oldest first.

    They are kept as 64-bit numbers, which take a sixth of the memory of tuples: 2 kB a counter after a day.
    """

    __slots__ = ("_most", "_numbers")

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = array("q")

    def append(self, sample: Sample) -> None:
        """Add a sample; the oldest one is dropped when there are more than `most`."""
        if len(self) == self._most:
            del self._numbers[: len(sample)]
        self._numbers.extend(sample)

    def __len__(self) -> int:
        return len(self._numbers) // len(Sample._fields)

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample._make, zip(*[iter(self._numbers)] * len(Sample._fields), strict=True))

    @property
    def first(self) -> Sample:
        return Sample._make(self._numbers[: len(Sample._fields)])

    @property
    def last(self) -> Sample:
        return Sample._make(self._numbers[-len(Sample._fields) :])


class History:
    """The samples of one counter. Each course begins with nothing, one step before its first sample, as upstream.

    Unlike upstream, hour and day end with the newest sample of all, which is 10 s old at most: upstream's newest of a
    day is up to an hour old. They begin with the sample that is nearest to an hour or a day before that.
    """

    __slots__ = ("day", "hour", "minute")

    def __init__(self) -> None:
        self.minute = _Samples(MINUTE_SAMPLES)
        self.hour = _Samples(HOUR_SAMPLES)
        self.day = _Samples(DAY_SAMPLES)

    def sample(self, counter: Counter, at_ms: int, number: int) -> None:
        sample = Sample(at_ms, counter.times, counter.count, counter.size)
        for course, samples in (
            (self.minute, 1),
            (self.hour, SAMPLES_PER_HOUR_SAMPLE),
            (self.day, SAMPLES_PER_DAY_SAMPLE),
        ):
            if not course:
                course.append(Sample(at_ms - int(samples * SAMPLE_SECONDS * 1000), 0, 0, 0))
                course.append(sample)
            elif number % samples == 0:
                course.append(sample)

    def course(self, field: int) -> Course:
        if not self.minute:
            return Course(_NOTHING, _NOTHING, _NOTHING)
        newest = self.minute.last
        hour, day = _nearest(self.hour, newest.at_ms - HOUR_MS), _nearest(self.day, newest.at_ms - DAY_MS)
        return Course(*(_span(first, newest, field) for first in (self.minute.first, hour, day)))


_NOTHING = Span(0, 0.0, 0.0)


def _nearest(samples: Iterable[Sample], at_ms: int) -> Sample:
    return min(samples, key=lambda sample: abs(sample.at_ms - at_ms))


def _span(first: Sample, last: Sample, field: int) -> Span:
    total = last[field] - first[field]
    seconds = (last.at_ms - first.at_ms) / 1000
    times = last.times - first.times
    return Span(total, total / seconds if seconds else 0.0, total / times if times else 0.0)
