"""Times out of messages: whatever number is there, there is a time or none."""

from datetime import UTC, datetime, timedelta, timezone

import pytest

from pyromq.clock import iso_time, local_time, utc_time, whole_ms


@pytest.mark.parametrize("ms", [10**17, 2**63 - 1, -(2**63), 10**400, -(10**400), float("nan"), float("inf")])
def test_a_number_that_is_no_time_is_none(ms):
    assert utc_time(ms) is local_time(ms) is iso_time(ms) is None


def test_times_are_exact_to_the_ends_of_the_calendar():
    assert utc_time(-62_135_596_800_000) == datetime(1, 1, 1, tzinfo=UTC)
    assert iso_time(253_402_300_799_999) == "9999-12-31T23:59:59.999+00:00"
    assert utc_time(253_402_300_800_000) is None
    assert iso_time(-1) == "1969-12-31T23:59:59.999+00:00"


def test_a_time_here_is_none_where_it_is_not_known_or_in_the_year_10000():
    assert local_time(0) is local_time(-1) is None
    assert local_time(253_402_300_799_999, timezone(timedelta(hours=14))) is None
    assert local_time(1, UTC) == datetime(1970, 1, 1, 0, 0, 0, 1000, UTC)


@pytest.mark.parametrize("text", [None, "", "soon", "1e9", "1.5", "1" * 5000])
def test_what_is_no_number_is_no_time(text):
    assert whole_ms(text) == 0
