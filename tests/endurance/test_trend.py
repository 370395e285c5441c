"""Series that rise, and series that only look so."""

import random

import pytest

from .trend import LEAST_POINTS, MAX_POINTS, Trend, trend_of


def series(rise, noise, count=200):
    chance = random.Random(7)
    return [(at, 50 + rise * at / (count - 1) + chance.gauss(0, noise)) for at in range(count)]


def test_a_rise_is_found_in_noise():
    trend = trend_of(series(rise=10, noise=2))
    assert trend.low < 10 < trend.high
    assert trend.rise == pytest.approx(10, abs=1.5)
    assert not trend.is_flat(allowance=5)


@pytest.mark.parametrize("count", [LEAST_POINTS, 50, 3 * MAX_POINTS + 1])
def test_noise_alone_is_flat(count):
    assert trend_of(series(rise=0, noise=2, count=count)).is_flat(allowance=1)


def test_only_a_sure_rise_counts():
    assert Trend(middle=50, rise=3, low=1, high=5).is_flat(allowance=2)
    assert not Trend(middle=50, rise=3, low=2.5, high=5).is_flat(allowance=2)


def test_outliers_do_not_move_a_long_series():
    points = series(rise=0, noise=0.1, count=3 * MAX_POINTS)
    points[::3] = [(at, 0) for at, _ in points[::3]]
    assert trend_of(points).middle == pytest.approx(50, abs=1)


def test_a_fall_is_flat():
    assert trend_of(series(rise=-20, noise=1)).is_flat(allowance=0)


def test_outliers_move_nothing():
    points = series(rise=0, noise=0.1)
    points[-20:] = [(at, 1e9) for at, _ in points[-20:]]
    assert abs(trend_of(points).rise) < 0.2


def test_a_constant_is_flat():
    assert trend_of([(at, 7) for at in range(20)]).is_flat(allowance=0)


def test_a_few_points_have_no_trend():
    assert trend_of(series(rise=10, noise=0, count=LEAST_POINTS - 1)) is None
