"""Axes of charts: round steps, short labels that say what they are, times of the viewer's zone."""

import pytest

pytest.importorskip("markupsafe")

from pyromq.console.cluster.cluster_history import Point
from pyromq.console.view.chart import ChartLine, chart, columns
from pyromq.console.view.chart_axes import SCALES, time_ticks
from pyromq.console.view.viewer_times import use_zone

NOON = 1_795_521_600_000  # 2026-11-24 12:00 UTC


def labels(unit, most):
    ticks = SCALES[unit].ticks(most)
    return [SCALES[unit].label(each, ticks[-1]) for each in ticks]


@pytest.mark.parametrize(
    ("unit", "most", "expected"),
    [
        ("number", 5, ["0", "2", "4", "6"]),
        ("number", 1, ["0", "1"]),
        ("number", 0, ["0", "1"]),
        ("number", 35_341, ["0", "10k", "20k", "30k", "40k"]),
        ("number", 9_000, ["0", "5k", "10k"]),
        ("number", 7_400_000_000, ["0", "2G", "4G", "6G", "8G"]),
        ("rate", 0.3, ["0", "0.1", "0.2", "0.3"]),
        ("rate", 69, ["0", "20", "40", "60", "80"]),
        ("seconds", 500, ["0", "5 min", "10 min"]),
        ("seconds", 45, ["0", "30 s", "60 s"]),
        ("seconds", 90_000, ["0", "12 h", "24 h", "36 h"]),
        ("seconds", 0.2, ["0", "1 s"]),
    ],
)
def test_ticks_are_round_and_written_as_they_are(unit, most, expected):
    assert labels(unit, most) == expected


@pytest.mark.parametrize("unit", SCALES)
@pytest.mark.parametrize("most", [0, 0.004, 0.7, 1, 3, 9.99, 10, 11, 59, 61, 999, 1001, 86_401, 123_456_789, 2**63])
def test_any_value_is_below_the_last_of_a_few_short_labels(unit, most):
    ticks = SCALES[unit].ticks(most)
    texts = labels(unit, most)
    assert ticks[0] == 0 and ticks[-1] >= most and 2 <= len(ticks) <= 6
    assert (len(set(texts)) == len(texts) and max(map(len, texts)) <= 8) or most == 2**63


@pytest.mark.parametrize(
    ("zone", "seconds", "expected"),
    [
        ("UTC", 3600, ["12:00", "12:10", "12:20", "12:30", "12:40", "12:50", "13:00"]),
        ("UTC", 900, ["12:00", "12:05", "12:10", "12:15"]),
        ("Asia/Kolkata", 7200, ["17:30", "18:00", "18:30", "19:00", "19:30"]),
        ("UTC", 86_400, ["12:00", "18:00", "11-25", "06:00", "12:00"]),
        ("UTC", 20, ["12:00:00", "12:00:05", "12:00:10", "12:00:15", "12:00:20"]),
    ],
)
def test_times_are_round_in_the_viewers_zone(zone, seconds, expected):
    use_zone(zone)
    try:
        assert [text for _, text in time_ticks(NOON, NOON + seconds * 1000)] == expected
    finally:
        use_zone(None)


def test_a_chart_has_its_values_at_each_time_and_its_range():
    points = [Point(NOON + 10_000 * number, float(number)) for number in range(361)]
    shown = chart("Messages a second", [ChartLine("in", points, now=7.25), ChartLine("out", points, "two")], "rate")
    assert shown.count("<title>") == 60
    assert "<title>2026-11-24 12:00:30: in 3.0, out 3.0</title>" in shown
    assert "2026-11-24 12:00 to 13:00, UTC" in shown
    assert "in <b>7.2</b>" in shown or "in <b>7.3</b>" in shown
    assert "style=" not in shown  # the policy of the page forbids it


def test_columns_are_counted_and_labelled():
    shown = columns("Messages due", [NOON, NOON + 1000, NOON + 120_000])
    assert shown.count("class=column") == 2
    assert "<title>2026-11-24 12:00: 2</title>" in shown
    assert columns("Messages due", []) == ""
