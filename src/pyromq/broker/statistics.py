"""How much was stored and read: counters, and their course over a minute, an hour and a day.

Counting costs a few additions on the hot path; everything else is worked out when sampled or asked.
Source: RocketMQ 4.9.8, BrokerStatsManager, StatsItem, StoreStatsService.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

import msgspec

from pyromq.clock import Clock

SAMPLE_SECONDS = 10.0
MINUTE_SAMPLES = 7  # 10 s apart
HOUR_SAMPLES = 7  # 10 min apart
DAY_SAMPLES = 25  # an hour apart
SAMPLES_PER_HOUR_SAMPLE = 60
SAMPLES_PER_DAY_SAMPLE = 360


class Counter(msgspec.Struct, gc=False):
    """What has been counted since the start: how often, how many messages, how many bytes."""

    times: int = 0
    count: int = 0
    size: int = 0

    def add(self, count: int, size: int, *, times: int = 1) -> None:
        self.times += times
        self.count += count
        self.size += size


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


class _History:
    """The samples of one counter."""

    def __init__(self) -> None:
        self.minute: deque[Sample] = deque(maxlen=MINUTE_SAMPLES)
        self.hour: deque[Sample] = deque(maxlen=HOUR_SAMPLES)
        self.day: deque[Sample] = deque(maxlen=DAY_SAMPLES)

    def sample(self, counter: Counter, at_ms: int, number: int) -> None:
        sample = Sample(at_ms, counter.times, counter.count, counter.size)
        self.minute.append(sample)
        if number % SAMPLES_PER_HOUR_SAMPLE == 0:
            self.hour.append(sample)
        if number % SAMPLES_PER_DAY_SAMPLE == 0:
            self.day.append(sample)

    def course(self, field: int) -> Course:
        return Course(_span(self.minute, field), _span(self.hour, field), _span(self.day, field))


def _span(samples: deque[Sample], field: int) -> Span:
    if len(samples) < 2:
        return Span(0, 0.0, 0.0)
    first, last = samples[0], samples[-1]
    total = last[field] - first[field]
    seconds = (last.at_ms - first.at_ms) / 1000
    times = last.times - first.times
    return Span(total, total / seconds if seconds else 0.0, total / times if times else 0.0)


_COUNT, _SIZE = 2, 3  # positions in Sample
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
    """The counters of one broker, by topic and by topic and group, and their totals.

    `sample` is called every 10 s. Rates of the whole broker look at samples 10, 60 and 600 s old.
    """

    def __init__(self, cluster: str, clock: Clock) -> None:
        self._put_total = Counter()
        self._forgotten_puts = Counter()  # of deleted topics
        self.get_total = Counter()
        self.get_misses = 0
        self.failed_puts = 0
        self.puts_until: dict[str, int] = {"yesterday": 0, "today": 0}  # at the last two midnights
        self.gets_until: dict[str, int] = {"yesterday": 0, "today": 0}
        self.started_ms = clock.now_ms()
        self._clock = clock
        self._puts: dict[str, Counter] = {}
        self._gets: dict[tuple[str, str], Counter] = {}
        self._tables: dict[str, dict[str, Counter]] = {
            "puts": self._puts,
            "gets": {},
            "send_backs": {},
            "broker_puts": {cluster: self._put_total},
            "broker_gets": {cluster: self.get_total},
        }
        self._histories: dict[tuple[str, str], _History] = {}
        self._samples_taken = 0
        self._totals: deque[_Totals] = deque([self._now()], maxlen=62)  # a little more than 600 s
        self._day = _day_of(self.started_ms)

    def count_put(self, topic: str, count: int, size: int) -> None:
        """Messages were stored by one append. Called for every append."""
        counter = self._puts.get(topic)
        if counter is None:
            counter = self._puts[topic] = Counter()
        counter.times += 1
        counter.count += count
        counter.size += size

    @property
    def put_total(self) -> Counter:
        """The puts of all topics since the start; added up when asked for, so that a send counts one thing only."""
        counters = [self._forgotten_puts, *self._puts.values()]
        total = self._put_total
        total.times = sum(counter.times for counter in counters)
        total.count = sum(counter.count for counter in counters)
        total.size = sum(counter.size for counter in counters)
        return total

    def count_get(self, group: str, topic: str, count: int, size: int) -> None:
        """Messages were read by one pull. Called for every pull that finds something."""
        counter = self._gets.get((topic, group))
        if counter is None:
            counter = self._gets[topic, group] = self._tables["gets"][f"{topic}@{group}"] = Counter()
        counter.times += 1
        counter.count += count
        counter.size += size
        total = self.get_total
        total.times += 1
        total.count += count
        total.size += size

    def count_get_miss(self) -> None:
        """A pull found nothing."""
        self.get_misses += 1

    def count_put_failed(self, count: int = 1) -> None:
        """Messages were not stored, since the store takes none."""
        self.failed_puts += count

    def count_send_back(self, topic: str, group: str) -> None:
        self._tables["send_backs"].setdefault(f"{topic}@{group}", Counter()).add(1, 0)

    def sample(self) -> None:
        """Note all counters; at midnight also the day's totals."""
        now = self._clock.now_ms()
        puts = self.put_total.count
        for table, counters in self._tables.items():
            for key, counter in counters.items():
                history = self._histories.get((table, key))
                if history is None:
                    history = self._histories[table, key] = _History()
                history.sample(counter, now, self._samples_taken)
        self._samples_taken += 1
        self._totals.append(self._now())
        if (day := _day_of(now)) != self._day:
            self._day = day
            self.puts_until = {"yesterday": self.puts_until["today"], "today": puts}
            self.gets_until = {"yesterday": self.gets_until["today"], "today": self.get_total.count}

    def course(self, name: str, key: str) -> Course | None:
        """Return a statistic by upstream's name and key; None if nothing was ever counted under it."""
        table, field = _TABLES.get(name, ("", 0))
        if key not in self._tables.get(table, {}):
            return None
        return self._histories.get((table, key), _History()).course(field)

    def group_rate(self, topic: str, group: str) -> float:
        """Messages a second that the group read from the topic during the last minute."""
        history = self._histories.get(("gets", f"{topic}@{group}"))
        return history.course(_COUNT).minute.per_second if history is not None else 0.0

    def rates(self) -> Rates:
        """Return messages and pulls a second over the last 10, 60 and 600 s, or since the start where that is less.

        A span ends now and begins with a sample, so it may be up to 10 s longer.
        """
        now = self._now()
        past = [self._sampled_before(now.at - seconds) for seconds in (10, 60, 600)]
        return Rates(*zip(*(_per_second(then, now) for then in past), strict=True))

    def _sampled_before(self, at: float) -> _Totals:
        return next((totals for totals in reversed(self._totals) if totals.at <= at), self._totals[0])

    def forget_topic(self, topic: str) -> None:
        """Drop what is known of a deleted topic; totals stay."""
        if (puts := self._puts.pop(topic, None)) is not None:
            self._forgotten_puts.add(puts.count, puts.size, times=puts.times)
        for counted_topic, group in [key for key in self._gets if key[0] == topic]:
            del self._gets[counted_topic, group]
            self._tables["gets"].pop(f"{topic}@{group}", None)
        self._drop_histories(key for key in self._histories if key[1] == topic or key[1].startswith(f"{topic}@"))

    def forget_group(self, group: str) -> None:
        """Drop what is known of a deleted group; totals stay."""
        for topic, counted_group in [key for key in self._gets if key[1] == group]:
            del self._gets[topic, counted_group]
            self._tables["gets"].pop(f"{topic}@{group}", None)
        self._drop_histories(key for key in self._histories if key[1].endswith(f"@{group}"))

    def _drop_histories(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            del self._histories[key]

    def _now(self) -> _Totals:
        return _Totals(
            self._clock.monotonic(), self.put_total.count, self.get_total.times, self.get_misses, self.get_total.count
        )


class _Totals(NamedTuple):
    """The whole broker's counters at one moment (monotonic seconds)."""

    at: float
    puts: int
    pulls_found: int
    pulls_missed: int
    messages_read: int


class Rates(NamedTuple):
    """Per second, each over 10, 60 and 600 s: messages stored; pulls that found, that did not; messages read."""

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
