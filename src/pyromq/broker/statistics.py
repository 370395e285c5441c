"""Counts stored and read messages, with the course of each count over a minute, an hour and a day.

Counting costs a few additions on the hot path. Everything else is computed when counters are sampled or requested.
Source: RocketMQ 4.9.8, BrokerStatsManager, StatsItem, StoreStatsService.
"""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from pyromq import speedups
from pyromq.clock import Clock

SAMPLE_SECONDS = 10.0  # time between two samples of a counter
MINUTE_SAMPLES = 7  # samples kept for the course of a minute, 10 s apart
HOUR_SAMPLES = 7  # samples kept for the course of an hour, 10 min apart
DAY_SAMPLES = 25  # samples kept for the course of a day, an hour apart
HOUR_MS, DAY_MS = 3_600_000, 86_400_000
SAMPLES_PER_HOUR_SAMPLE = 60  # every 60th sample is kept for the hour
SAMPLES_PER_DAY_SAMPLE = 360  # every 360th sample is kept for the day
SLICE_SECONDS = 0.001  # longest time of sampling before other connections are served
MAX_GETS = 100_000  # limit of (topic, group) pairs with a counter of reads: about 2 kB each after a day


if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.records import Counter
else:

    class Counter(msgspec.Struct, gc=False):
        """Counts since the broker's start: `times` operations, with `count` messages of `size` bytes in all."""

        times: int = 0
        count: int = 0
        size: int = 0

        def add(self, count: int, size: int, *, times: int = 1) -> None:
            self.times += times
            self.count += count
            self.size += size


def _per_get(milliseconds: Span, gets: Span) -> Span:
    times = gets.total / gets.per_event if gets.per_event else 0.0
    return milliseconds._replace(per_event=milliseconds.total / times if times else 0.0)


_COUNT, _SIZE = 2, 3  # positions of message count and bytes in a `Sample`
_TABLES = {
    "TOPIC_PUT_NUMS": ("puts", _COUNT),
    "TOPIC_PUT_SIZE": ("puts", _SIZE),
    "GROUP_GET_NUMS": ("gets", _COUNT),
    "GROUP_GET_SIZE": ("gets", _SIZE),
    "SNDBCK_PUT_NUMS": ("send_backs", _COUNT),
    "BROKER_PUT_NUMS": ("broker_puts", _COUNT),
    "BROKER_GET_NUMS": ("broker_gets", _COUNT),
}


class Statistics:
    """The counters of one broker: by topic, by topic and group, and totals.

    `step` samples the counters every 10 s. Rates of the broker compare the present with samples 10, 60 and 600 s old.
    """

    def __init__(self, cluster: str, clock: Clock) -> None:
        self._put_total = Counter()
        self._forgotten_puts = Counter()  # messages stored in topics that are deleted now
        self.get_total = Counter()
        self.get_misses = 0
        self.failed_puts = 0
        self.puts_until: dict[str, int] = {"yesterday": 0, "today": 0}  # messages stored until the last two midnights
        self.gets_until: dict[str, int] = {"yesterday": 0, "today": 0}
        self.started_ms = clock.now_ms()
        self._clock = clock
        self._puts: dict[str, Counter] = {}
        self._gets: dict[tuple[str, str], Counter] = {}
        self._tables: dict[str, dict[str, Counter]] = {
            "puts": self._puts,
            "gets": {},
            "latencies": {},
            "send_backs": {},
            "broker_puts": {cluster: self._put_total},
            "broker_gets": {cluster: self.get_total},
        }
        # (topic@group, ms) of slow pulls since the last sample.
        self._latencies: deque[tuple[str, int]] = deque(maxlen=100_000)
        self._histories: dict[tuple[str, str], History] = {}
        self._samples_taken = 0
        self._sampled: Iterator[None] | None = None  # the sampling in progress; None between two samplings
        self._next_sample = 0.0
        # One per sample: covers a little more than 600 s.
        self._totals: deque[_Totals] = deque([self._now()], maxlen=62)
        self._day = _day_of(self.started_ms)

    def count_put(self, topic: str, count: int, size: int) -> None:
        """Count the messages (`count`, with `size` bytes) that one append stored. Called for every append."""
        counter = self._puts.get(topic)
        if counter is None:
            counter = self._puts[topic] = Counter()
        counter.times += 1
        counter.count += count
        counter.size += size

    def puts_of(self, topic: str) -> Counter | None:
        """Return the counter of messages stored in a topic; None before the first message."""
        return self._puts.get(topic)

    def gets_of(self, topic: str, group: str) -> Counter | None:
        """Return the counter of messages that a group read from a topic; None before the first message."""
        return self._gets.get((topic, group))

    def puts_by_topic(self) -> list[tuple[str, Counter]]:
        return list(self._puts.items())

    def gets_by_group(self) -> list[tuple[tuple[str, str], Counter]]:
        """Return each pair of topic and group with its counter of read messages."""
        return list(self._gets.items())

    def send_backs_by_group(self) -> list[tuple[tuple[str, str], Counter]]:
        """Return each pair of topic and group with its counter of messages sent back."""
        split = ((key.rpartition("@"), counter) for key, counter in list(self._tables["send_backs"].items()))
        return [((topic, group), counter) for (topic, _, group), counter in split]

    @property
    def put_total(self) -> Counter:
        """The counter of messages stored in all topics.

        The sum is computed on each access, so that a send updates one counter only.
        """
        counters = [self._forgotten_puts, *self._puts.values()]
        total = self._put_total
        total.times = sum(counter.times for counter in counters)
        total.count = sum(counter.count for counter in counters)
        total.size = sum(counter.size for counter in counters)
        return total

    def count_get(self, group: str, topic: str, count: int, size: int) -> None:
        """Count the messages that one pull read. Called for every pull that finds messages."""
        counter = self._gets.get((topic, group))
        if counter is None:
            if len(self._gets) >= MAX_GETS:
                self.get_total.add(count, size)
                return
            counter = self._gets[topic, group] = self._tables["gets"][f"{topic}@{group}"] = Counter()
        counter.times += 1
        counter.count += count
        counter.size += size
        total = self.get_total
        total.times += 1
        total.count += count
        total.size += size

    def count_get_miss(self) -> None:
        """Count a pull that found no message."""
        self.get_misses += 1

    def count_put_failed(self, count: int = 1) -> None:
        """Count messages that the store refused."""
        self.failed_puts += count

    def note_latency(self, group: str, topic: str, seconds: float) -> None:
        """Note the latency of a pull that waited for the disk; other pulls count as 0 ms.

        May be called in any thread.
        """
        self._latencies.append((f"{topic}@{group}", int(seconds * 1000)))

    def count_send_back(self, topic: str, group: str) -> None:
        self._tables["send_backs"].setdefault(f"{topic}@{group}", Counter()).add(1, 0)

    def sample(self) -> None:
        """Sample all counters. At the first call after midnight, keep the totals of the day that has ended."""
        for _ in self._sampling():
            pass

    def step(self) -> float:
        """Sample some counters for at most `SLICE_SECONDS`; return the seconds until the next call."""
        if self._sampled is None:
            self._sampled, self._next_sample = self._sampling(), self._clock.monotonic() + SAMPLE_SECONDS
        end = self._clock.monotonic() + SLICE_SECONDS
        for _ in self._sampled:
            if self._clock.monotonic() >= end:
                return 0.0
        self._sampled = None
        return max(0.0, self._next_sample - self._clock.monotonic())

    def _sampling(self) -> Iterator[None]:
        now = self._clock.now_ms()
        while self._latencies:
            key, ms = self._latencies.popleft()
            if key not in self._tables["gets"]:
                continue  # topic or group was deleted meanwhile
            self._tables["latencies"].setdefault(key, Counter()).add(ms, 0)
        puts = self.put_total.count
        self._totals.append(self._now())
        for table, counters in self._tables.items():
            for key, counter in list(counters.items()):
                if counters.get(key) is not counter:
                    continue  # topic or group was deleted meanwhile
                history = self._histories.get((table, key))
                if history is None:
                    history = self._histories[table, key] = History()
                history.sample(counter, now, self._samples_taken)
                yield None
        self._samples_taken += 1
        if (day := _day_of(now)) != self._day:
            self._day = day
            self.puts_until = {"yesterday": self.puts_until["today"], "today": puts}
            self.gets_until = {"yesterday": self.gets_until["today"], "today": self.get_total.count}

    def course(self, name: str, key: str) -> Course | None:
        """Return a statistic by upstream's name and key (topic, or topic@group); None if nothing was counted for it."""
        if name == "GROUP_GET_LATENCY":
            return self._latency(key)
        table, field = _TABLES.get(name, ("", 0))
        if key not in self._tables.get(table, {}):
            return None
        return self._histories.get((table, key), History()).course(field)

    def _latency(self, key: str) -> Course | None:
        """Return the latency (ms) per pull, over all pulls that found messages; None before the first such pull."""
        if (gets := self.course("GROUP_GET_NUMS", key)) is None:
            return None
        slow = self._histories.get(("latencies", key), History()).course(_COUNT)
        return Course(*(_per_get(*spans) for spans in zip(slow, gets, strict=True)))

    def group_rate(self, topic: str, group: str) -> float:
        """Return how many messages per second the group read from the topic in the last minute."""
        history = self._histories.get(("gets", f"{topic}@{group}"))
        return history.course(_COUNT).minute.per_second if history is not None else 0.0

    def rates(self) -> Rates:
        """Return messages and pulls per second over the last 10, 60 and 600 s; over less after a later start.

        A span ends now and begins with a sample, so the span may be up to 10 s longer.
        """
        now = self._now()
        past = [self._sampled_before(now.at - seconds) for seconds in (10, 60, 600)]
        return Rates(*zip(*(_per_second(then, now) for then in past), strict=True))

    def _sampled_before(self, at: float) -> _Totals:
        return next((totals for totals in reversed(self._totals) if totals.at <= at), self._totals[0])

    def forget_topic(self, topic: str) -> None:
        """Remove the counters of a deleted topic. Totals of the broker keep their values."""
        if (puts := self._puts.pop(topic, None)) is not None:
            self._forgotten_puts.add(puts.count, puts.size, times=puts.times)
        gets = [key for key in self._gets if key[0] == topic]
        self._forget(gets, lambda key: key == topic or key.startswith(f"{topic}@"))

    def forget_group(self, group: str) -> None:
        """Remove the counters of a deleted group. Totals of the broker keep their values."""
        self._forget([key for key in self._gets if key[1] == group], lambda key: key.endswith(f"@{group}"))

    def _forget(self, gets: list[tuple[str, str]], is_gone: Callable[[str], bool]) -> None:
        """Remove the counters and histories whose key belongs to a deleted topic or group."""
        for topic, group in gets:
            del self._gets[topic, group]
            for table in ("gets", "latencies"):
                self._tables[table].pop(f"{topic}@{group}", None)
        send_backs = self._tables["send_backs"]
        for key in list(filter(is_gone, send_backs)):
            del send_backs[key]
        for table, key in [each for each in self._histories if is_gone(each[1])]:
            del self._histories[table, key]

    def _now(self) -> _Totals:
        return _Totals(
            self._clock.monotonic(), self.put_total.count, self.get_total.times, self.get_misses, self.get_total.count
        )


class _Totals(NamedTuple):
    """The counters of the whole broker at one moment, `at` (monotonic seconds)."""

    at: float
    puts: int
    pulls_found: int
    pulls_missed: int
    messages_read: int


class Rates(NamedTuple):
    """Rates per second, each over the last 10, 60 and 600 s.

    `put`: messages stored. `found`: pulls that found messages. `missed`: pulls that found none. `transferred`: messages
    read.
    """

    put: tuple[float, ...]
    found: tuple[float, ...]
    missed: tuple[float, ...]
    transferred: tuple[float, ...]


def _per_second(then: _Totals, now: _Totals) -> list[float]:
    seconds = now.at - then.at
    return [(new - old) / seconds if seconds > 0 else 0.0 for old, new in islice(zip(then, now, strict=True), 1, None)]


def _day_of(now_ms: int) -> tuple[int, int]:
    local = time.localtime(now_ms / 1000)
    return local.tm_year, local.tm_yday


class Sample(NamedTuple):
    """The values of one counter at one moment, `at_ms` (ms since 1970)."""

    at_ms: int
    times: int
    messages: int
    size: int


class Span(NamedTuple):
    """The increase of a count between two samples: in all, per second, and per operation."""

    total: int
    per_second: float
    per_event: float


class Course(NamedTuple):
    """One statistic over the last minute, the last hour and the last day."""

    minute: Span
    hour: Span
    day: Span


class _Samples:
    """The newest samples of one counter, oldest first.

    Samples are kept as 64-bit numbers, in a sixth of the memory of tuples: a counter takes 2 kB after a day.
    """

    __slots__ = ("_most", "_numbers")

    def __init__(self, most: int) -> None:
        self._most = most
        self._numbers = array("q")

    def append(self, sample: Sample) -> None:
        """Add a sample. If there are more than `most`, the oldest one is dropped."""
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
    """The samples of one counter. As upstream, each course begins with 0, one step before the counter's first sample.

    Unlike upstream, the courses of hour and day end with the newest sample, which is at most 10 s old; upstream's may
    be an hour old. The courses begin with the sample nearest to an hour or a day earlier.
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
