"""Counters and their course over time."""

from datetime import datetime

import pytest

from pyromq.broker.statistics import Statistics
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


async def test_a_minute_tells_sum_rate_and_average(statistics, clock):
    statistics.count_put("orders", 1, 100)
    await sample(statistics, clock)
    for _ in range(4):
        statistics.count_put("orders", 5, 1000)
    await sample(statistics, clock)
    assert statistics.course("TOPIC_PUT_NUMS", "orders").minute == (20, 2.0, 5.0)
    assert statistics.course("TOPIC_PUT_SIZE", "orders").minute == (4000, 400.0, 1000.0)
    assert statistics.course("BROKER_PUT_NUMS", "cluster").minute.total == 20


async def test_an_hour_is_seen_in_steps_of_ten_minutes(statistics, clock):
    statistics.count_put("orders", 1, 1)
    await sample(statistics, clock)
    statistics.count_put("orders", 60, 60)
    await sample(statistics, clock, 59)
    assert statistics.course("TOPIC_PUT_NUMS", "orders").hour.total == 0
    await sample(statistics, clock)
    assert statistics.course("TOPIC_PUT_NUMS", "orders").hour == (60, 0.1, 60.0)
    assert statistics.course("TOPIC_PUT_NUMS", "orders").day.total == 0


async def test_gets_are_counted_by_topic_and_group(statistics, clock):
    statistics.count_get("g", "orders", 1, 1)
    await sample(statistics, clock)
    statistics.count_get("g", "orders", 30, 300)
    await sample(statistics, clock)
    assert statistics.course("GROUP_GET_NUMS", "orders@g").minute.total == 30
    assert statistics.group_rate("orders", "g") == 3.0
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
    await sample(statistics, clock)
    statistics.forget_topic("orders")
    assert statistics.course("TOPIC_PUT_NUMS", "orders") is None
    assert statistics.course("GROUP_GET_NUMS", "orders@g") is None
    assert statistics.put_total.count == 7


async def test_a_deleted_group_is_forgotten(statistics, clock):
    statistics.count_get("g", "orders", 7, 7)
    await sample(statistics, clock)
    statistics.forget_group("g")
    assert statistics.course("GROUP_GET_NUMS", "orders@g") is None
