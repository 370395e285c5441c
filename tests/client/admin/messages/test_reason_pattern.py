"""Reasons that differ only in numbers, ids and quoted texts have one pattern."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.client.admin.messages.reason_pattern import MAX_PATTERN, NO_REASON, reason_pattern


@pytest.mark.parametrize(
    ("reason", "pattern"),
    [
        (None, NO_REASON),
        ("", NO_REASON),
        ("GiveUp", "GiveUp"),
        ("GiveUp: no such customer: 4711", "GiveUp: no such customer: …"),
        ("GiveUp: amount is negative: -3.20", "GiveUp: amount is negative: …"),
        ("KeyError: 'iban'", "KeyError: …"),
        ("ValueError: can't read order-17 of O'Neil", "ValueError: can't read … of O'Neil"),
        ("HTTP 503 from http://bank.example:8080/pay/1: overloaded", "HTTP 503 from …: overloaded"),
        ("urllib.error.HTTPError: HTTP Error 404: Not Found", "urllib.error.HTTPError: HTTP Error 404: Not Found"),
        (
            "OSError: [Errno 111] Connect call failed ('127.0.0.1', 5432)",
            "OSError: [Errno 111] Connect call failed (…)",
        ),
        ("Unavailable: broker 10.0.0.7:10911 is down", "Unavailable: broker … is down"),
        ("id 7F0000010E2E76D2C1497917F03D0009 twice", "id … twice"),
        ("ids 1, 2, 3 are missing", "ids … are missing"),
        ("Expected `int`, got `str` - at `$.order`", "Expected …, got … - at …"),
        ("12345", "…"),
        ("two\nlines  here", "two lines here"),
        ("keine Kundin: Grüße", "keine Kundin: Grüße"),
    ],
)
def test_a_pattern_leaves_out_what_differs(reason, pattern):
    assert reason_pattern(reason) == pattern


@given(st.text(max_size=2000))
def test_every_text_has_a_short_pattern(text):
    assert 1 <= len(reason_pattern(text)) <= MAX_PATTERN


def test_a_pattern_of_a_hostile_text_is_quick():
    for text in ("x" * 50_000, "'" * 50_000, "1:" * 50_000, "HTTP " * 20_000):
        assert len(reason_pattern(text)) <= MAX_PATTERN
