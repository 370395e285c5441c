"""Counters and their course over time."""

import tracemalloc
from datetime import datetime

import pytest

from pyromq.broker import statistics as statistics_module
from pyromq.broker.statistics import SAMPLE_SECONDS, SLICE_SECONDS, Statistics
from pyromq.testing import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def statistics(clock):
    return Statistics("cluster", clock)


async def sample(statistics, clock, times=1):
    for _ in range(times):
        await clock.advance(10)
        statistics.sample()


def test_what_was_never_counted_has_no_course(statistics):
    assert statistics.course("TOPIC_PUT_NUMS", "orders") is None
    assert statistics.course("NO_SUCH_THING", "orders") is None


def traced_bytes(module):
    """The bytes that code of a module allocated and still holds; other threads of the tests do not count."""
    snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, module.__file__)])
    return sum(statistic.size for statistic in snapshot.statistics("filename"))


async def test_the_samples_of_a_counter_stay_small(clock):
    counted = statistics_module.Statistics("cluster", clock)
    for number in range(100):
        counted.count_put(f"topic-{number}", 1000, 100_000)
    tracemalloc.start()
    try:
        await sample(counted, clock, times=7)
        after_a_minute = traced_bytes(statistics_module)
        await sample(counted, clock, times=18)
        later = traced_bytes(statistics_module)
    finally:
        tracemalloc.stop()
    assert 0 < after_a_minute < 100 * 2_000
    assert later - after_a_minute < 5_000  # samples of a full minute replace older ones


async def test_a_minute_tells_sum_rate_and_average(statistics, clock):
    statistics.count_put("orders", 1, 100)
    await sample(statistics, clock)
    for _ in range(4):
        statistics.count_put("orders", 5, 1000)
    await sample(statistics, clock)
    assert statistics.course("TOPIC_PUT_NUMS", "orders").minute == (21, 1.05, 4.2)
    assert statistics.course("TOPIC_PUT_SIZE", "orders").minute == (4100, 205.0, 820.0)
    assert statistics.course("BROKER_PUT_NUMS", "cluster").minute.total == 21
    await sample(statistics, clock, 7)
    assert statistics.course("TOPIC_PUT_NUMS", "orders").minute == (0, 0.0, 0.0)


async def test_the_first_messages_count_in_the_hour_and_the_day_at_once(statistics, clock):
    statistics.count_put("orders", 7, 700)
    await sample(statistics, clock)
    course = statistics.course("TOPIC_PUT_NUMS", "orders")
    assert (course.minute.total, course.hour.total, course.day.total) == (7, 7, 7)


async def test_hour_and_day_count_up_to_the_newest_sample(statistics, clock):
    statistics.count_put("orders", 270, 270)
    await sample(statistics, clock)
    statistics.count_put("orders", 14_729, 14_729)
    await sample(statistics, clock)
    course = statistics.course("TOPIC_PUT_NUMS", "orders")
    assert [span.total for span in course] == [14_999, 14_999, 14_999]


async def test_a_day_forgets_what_is_older(statistics, clock):
    statistics.count_put("orders", 1000, 1000)
    await sample(statistics, clock)
    for _ in range(30 * 6):  # hours, ten minutes each
        statistics.count_put("orders", 60, 60)
        await sample(statistics, clock, 60)
    course = statistics.course("TOPIC_PUT_NUMS", "orders")
    assert (course.hour.total, course.hour.per_second) == (360, 0.1)
    assert 23.5 * 360 <= course.day.total <= 24.5 * 360


async def test_gets_are_counted_by_topic_and_group(statistics, clock):
    statistics.count_get("g", "orders", 1, 1)
    await sample(statistics, clock)
    statistics.count_get("g", "orders", 30, 300)
    await sample(statistics, clock)
    assert statistics.course("GROUP_GET_NUMS", "orders@g").minute.total == 31
    assert statistics.group_rate("orders", "g") == 1.55
    assert statistics.group_rate("orders", "nobody") == 0.0


async def test_rates_look_back_ten_sixty_and_six_hundred_seconds(statistics, clock):
    await sample(statistics, clock, 60)
    statistics.count_put("orders", 600, 600)
    await sample(statistics, clock)
    assert statistics.rates().put == (60.0, 10.0, 1.0)


async def test_rates_before_the_first_sample_look_back_to_the_start(statistics, clock):
    statistics.count_put("orders", 10, 10)
    statistics.count_get_miss()
    await clock.advance(2)
    assert statistics.rates().put == (5.0, 5.0, 5.0)
    assert statistics.rates().missed == (0.5, 0.5, 0.5)


async def test_midnight_notes_the_totals(statistics, clock):
    now = datetime.fromtimestamp(clock.now_ms() / 1000)
    midnight = 86_400 - (now.hour * 3600 + now.minute * 60 + now.second)
    statistics.count_put("orders", 7, 7)
    await clock.advance(midnight + 1)
    statistics.sample()
    assert statistics.puts_until == {"yesterday": 0, "today": 7}


async def test_a_deleted_topic_is_forgotten_and_totals_stay(statistics, clock):
    statistics.count_put("orders", 7, 7)
    statistics.count_get("g", "orders", 7, 7)
    statistics.count_send_back("orders", "g")
    await sample(statistics, clock)
    statistics.forget_topic("orders")
    assert statistics.course("TOPIC_PUT_NUMS", "orders") is None
    assert statistics.course("GROUP_GET_NUMS", "orders@g") is None
    assert statistics.send_backs_by_group() == []
    assert statistics.put_total.count == 7


async def test_a_deleted_group_is_forgotten(statistics, clock):
    statistics.count_get("g", "orders", 7, 7)
    statistics.count_send_back("orders", "g")
    await sample(statistics, clock)
    statistics.forget_group("g")
    assert statistics.course("GROUP_GET_NUMS", "orders@g") is None
    assert statistics.send_backs_by_group() == []


async def test_latency_is_that_of_all_gets_though_only_slow_ones_are_noted(statistics, clock):
    for _ in range(9):
        statistics.count_get("g", "orders", 1, 100)
    await sample(statistics, clock)
    statistics.count_get("g", "orders", 1, 100)
    statistics.note_latency("g", "orders", 0.4)
    statistics.note_latency("nobody", "orders", 0.4)
    for _ in range(3):
        statistics.count_get("g", "orders", 1, 100)
    await sample(statistics, clock)
    assert statistics.course("GROUP_GET_LATENCY", "orders@g").minute == (400, 40.0, 400 / 13)
    assert statistics.course("GROUP_GET_LATENCY", "orders@nobody") is None


async def test_latency_of_gets_that_never_waited_is_nothing(statistics, clock):
    statistics.count_get("g", "orders", 1, 100)
    await sample(statistics, clock)
    assert statistics.course("GROUP_GET_LATENCY", "orders@g").minute.total == 0


class Ticking(FakeClock):
    """A clock on which every look takes half a slice."""

    def monotonic(self):
        self._move_to(self._seconds + SLICE_SECONDS / 2)
        return super().monotonic()


def test_very_many_counters_are_sampled_in_slices():
    statistics = Statistics("cluster", Ticking())
    for number in range(10):
        statistics.count_put(f"topic-{number}", 1, 100)
    steps = 1
    while (wait := statistics.step()) == 0.0:
        steps += 1
    assert steps >= 4
    assert SAMPLE_SECONDS - 1 < wait < SAMPLE_SECONDS
    assert len(statistics._histories["puts", "topic-9"].minute) == 2  # and what was before: nothing


def test_groups_beyond_those_that_are_counted_for_themselves_count_in_all(statistics, monkeypatch):
    monkeypatch.setattr("pyromq.broker.statistics.MAX_GETS", 1)
    statistics.count_get("one", "orders", 1, 10)
    statistics.count_get("two", "orders", 2, 20)
    assert statistics.gets_of("orders", "two") is None
    assert (statistics.get_total.count, statistics.get_total.size) == (3, 30)
