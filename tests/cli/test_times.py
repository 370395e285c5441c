import time
from datetime import date, datetime, timedelta

import click
import pytest

from pyromq.cli.times import BEGINNING, END, Start, read_duration, read_moment, read_place, read_start, read_time


@pytest.mark.parametrize(
    ("text", "ago_ms"), [("now", 0), ("90s", 90_000), ("-10m", 600_000), ("1.5h", 5_400_000), ("1w", 604_800_000)]
)
def test_time_may_be_an_age(text, ago_ms):
    before = time.time_ns() // 1_000_000
    assert before <= read_time(text) + ago_ms <= time.time_ns() // 1_000_000


def test_time_may_be_a_date_in_local_time():
    assert read_time("2026-01-31 12:00") == int(datetime(2026, 1, 31, 12).timestamp() * 1000)
    assert read_time("2026-01-31T12:00:00+00:00") == 1769860800000


def test_time_may_be_of_today_and_a_day_named():
    def read():
        return date.today(), [*map(read_time, ("today", "yesterday", "23:59")), read_moment("07:05:09")]

    today, found = read()
    if date.today() != today:  # midnight has passed
        today, found = read()
    midnight = datetime.combine(today, datetime.min.time())
    times = [midnight, midnight - timedelta(days=1), midnight.replace(hour=23, minute=59)]
    times.append(midnight.replace(hour=7, minute=5, second=9))
    assert found == [each.timestamp() * 1000 for each in times]
    for text in ("24:00", "7:5", "12:60", "12"):
        with pytest.raises(click.BadParameter, match="is not a time"):
            read_moment(text)


def test_time_may_be_milliseconds():
    assert read_time("1769860800000") == 1769860800000


def test_start_may_be_a_place_or_an_offset():
    assert (read_start("beginning"), read_start("end")) == (BEGINNING, END)
    assert [read_start(text) for text in ("start", "earliest", "latest")] == [BEGINNING, BEGINNING, END]
    assert read_start("1500") == Start(offset=1500)
    assert read_start("1769860800000") == Start(time_ms=1769860800000)


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5", "2026-13-01", "99999-01-01", "9" * 400 + "d"])
def test_other_text_is_refused_with_the_forms_that_are_possible(text):
    with pytest.raises(click.BadParameter, match="write beginning, end, now, 10m"):
        read_place(text)


def test_a_moment_is_a_date_or_milliseconds_and_no_age():
    assert read_moment("2026-01-31 12:00") == int(datetime(2026, 1, 31, 12).timestamp() * 1000)
    assert read_moment("1769860800000") == 1769860800000
    for text in ("10m", "now", "", "5"):
        with pytest.raises(click.BadParameter, match="write 12:00, 2026-01-31 12:00, or ms"):
            read_moment(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400), ("2d", 172_800), ("2w", 1_209_600)]
)
def test_a_duration_is_a_number_and_a_unit(text, seconds):
    assert read_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "10x", "-5", "5 s", "1e3", "٣s"])
def test_other_text_is_no_duration(text):
    with pytest.raises(click.BadParameter, match="write 90s, 10m"):
        read_duration(text)
