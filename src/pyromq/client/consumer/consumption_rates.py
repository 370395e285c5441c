"""A consumer's rates of pulling and consuming by topic, over the last minute; failures over the last hour.

Counting costs a few additions per pull and listener call; rates are computed on request.
Source: RocketMQ 4.9.8, ConsumerStatsManager.
"""

from __future__ import annotations

from collections import deque
from dataclasses import astuple, dataclass, field

from pyromq.clock import Clock
from pyromq.remoting.bodies import ConsumeRates

SAMPLE_SECONDS = 10.0
MINUTE_SAMPLES = 6  # 10 s apart
HOUR_SAMPLES = 6  # 10 min apart
SAMPLES_PER_HOUR_SAMPLE = 60


@dataclass(slots=True)
class Tally:
    """Counters of one topic since the start. A call's seconds end when the event loop handles its result."""

    pulls: int = 0  # that returned messages
    pull_seconds: float = 0.0
    pulled: int = 0  # messages
    calls: int = 0  # of listeners
    call_seconds: float = 0.0
    consumed: int = 0  # messages
    failed: int = 0  # messages

    def pull(self, count: int, seconds: float) -> None:
        """Count a pull that returned messages."""
        self.pulls += 1
        self.pull_seconds += seconds
        self.pulled += count

    def since(self, earlier: Tally) -> Tally:
        """Return the difference from an earlier copy."""
        return Tally(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))


@dataclass(slots=True)
class _Course:
    """A topic's tally, and copies of it with their time (monotonic seconds), oldest first."""

    tally: Tally
    minute: deque[tuple[float, Tally]] = field(default_factory=lambda: deque(maxlen=MINUTE_SAMPLES))
    hour: deque[tuple[float, Tally]] = field(default_factory=lambda: deque(maxlen=HOUR_SAMPLES))


class ConsumptionRates:
    """The tallies of one consumer. `sample` must be called every 10 s."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._courses: dict[str, _Course] = {}
        self._samples_taken = 0

    def tally(self, topic: str) -> Tally:
        """Return the counters of a topic, created on first use."""
        course = self._courses.get(topic)
        if course is None:
            begin = (self.clock.monotonic(), Tally())
            course = self._courses[topic] = _Course(Tally())
            course.minute.append(begin)
            course.hour.append(begin)
        return course.tally

    def sample(self) -> None:
        """Copy all tallies."""
        now = self.clock.monotonic()
        self._samples_taken += 1
        for course in self._courses.values():
            copy = Tally(*astuple(course.tally))
            course.minute.append((now, copy))
            if self._samples_taken % SAMPLES_PER_HOUR_SAMPLE == 0:
                course.hour.append((now, copy))

    def of(self, topic: str) -> ConsumeRates:
        """Return a topic's rates; times are ms per pull and per call of a listener."""
        tally = self.tally(topic)
        course = self._courses[topic]
        began, then = course.minute[0]
        minute, hour = tally.since(then), tally.since(course.hour[0][1])
        seconds = max(self.clock.monotonic() - began, SAMPLE_SECONDS)  # the first pull must not show as a burst
        calls = minute if minute.calls else hour
        return ConsumeRates(
            pull_rt=1000 * minute.pull_seconds / minute.pulls if minute.pulls else 0.0,
            pull_tps=minute.pulled / seconds,
            consume_rt=1000 * calls.call_seconds / calls.calls if calls.calls else 0.0,
            consume_ok_tps=minute.consumed / seconds,
            consume_failed_tps=minute.failed / seconds,
            consume_failed_count=hour.failed,
        )
