"""Times in the viewer's zone: shown, and read from fields."""

import re

import pytest

from pyromq.errors import UsageError

pytest.importorskip("markupsafe")

from pyromq.console.view import viewer_times
from pyromq.console.view.viewer_times import TimeRange, field_text, read_time, time_text, use_zone

NOON = 1_795_521_600_000  # 2026-11-24 12:00 UTC


@pytest.fixture(autouse=True)
def in_utc_afterwards():
    yield
    use_zone(None)


@pytest.mark.parametrize(
    ("zone", "shown"),
    [(None, "12:00:00"), ("Europe/Berlin", "13:00:00"), ("Asia/Kolkata", "17:30:00"), ("America/New_York", "07:00:00")],
)
def test_a_time_is_shown_and_read_in_the_same_zone(zone, shown):
    use_zone(zone)
    assert time_text(NOON) == f"2026-11-24 {shown}"
    assert read_time(time_text(NOON), 0) == NOON
    assert read_time(time_text(NOON + 7, exact=True), 0) == NOON + 7
    assert field_text(NOON) == f"2026-11-24 {shown}"
    assert field_text(NOON + 7) == f"2026-11-24 {shown}.007"
    assert (zone or "UTC") in viewer_times.moment(NOON)


@pytest.mark.parametrize("name", ["Nowhere/Land", "America", "../../etc/passwd", "/etc/localtime", "x" * 500, "", "\0"])
def test_an_unknown_zone_is_utc(name):
    use_zone("Europe/Berlin")
    use_zone(name)
    assert viewer_times.zone_name() == "UTC"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-24T13:00", NOON),
        (" 2026-11-24 13:00:00.000 ", NOON),
        ("2026-11-24T12:00Z", NOON),
        ("2026-11-24T07:00-05:00", NOON),
        ("13:00", NOON),
        ("12:45:30", NOON - 870_000),
        ("2026-11-24", NOON - 13 * 3_600_000),
        ("-15m", NOON - 900_000),
        ("- 15 min", NOON - 900_000),
        ("+1h", NOON + 3_600_000),
        ("-1d", NOON - 86_400_000),
        (str(NOON), NOON),
        ("", None),
    ],
)
def test_a_time_is_read_as_people_write_it(text, expected):
    use_zone("Europe/Berlin")
    assert read_time(text, NOON) == expected


@pytest.mark.parametrize(
    "text", ["soon", "25:00", "2026-13-01", "-15 parsecs", "15m", "1" * 30, "1969-01-01", "-", "99999-01-01"]
)
def test_what_is_no_time_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=re.escape(text[:60])) as failed:
        read_time(text, NOON)
    assert "write" in str(failed.value)


def test_a_range_is_two_times_or_the_last_minutes():
    assert TimeRange.of({"since": "2026-11-24 11:00", "until": ""}, NOON) == TimeRange(NOON - 3_600_000)
    assert TimeRange.of({"since": "2026-11-20", "until": "2026-11-21", "last": "15m"}, NOON) == TimeRange(
        NOON - 900_000
    )
    assert TimeRange.of({}, NOON) == TimeRange()
    with pytest.raises(UsageError, match="before it begins"):
        TimeRange.of({"since": "12:00", "until": "11:00"}, NOON)
    with pytest.raises(UsageError, match="weeks"):
        TimeRange.of({"last": "2 weeks"}, NOON)


def test_a_range_in_an_address_means_the_same_to_a_viewer_in_another_zone():
    asked = {"since": "2026-11-24 13:00", "until": "2026-11-24 14:00", "zone": "Europe/Berlin"}
    use_zone("Asia/Tokyo")
    found = TimeRange.of(asked, NOON)
    assert found == TimeRange(NOON, NOON + 3_600_000)
    assert TimeRange.of(found.fields, 0) == found


def test_a_number_that_is_no_time_is_shown_as_a_number():
    assert time_text(10**17) == f"{10**17} ms"
    assert viewer_times.moment(10**17) == f"{10**17} ms"
    assert "–" in viewer_times.moment(0) and "–" in viewer_times.moment(-5) and "–" in viewer_times.moment(None)
