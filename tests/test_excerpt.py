import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import BrokerError, from_response
from pyromq.excerpt import bounded, excerpt


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("orders", "orders"),
        ("bestellungen für 東京", "bestellungen für 東京"),
        ("a\nERROR b", r"a\nERROR b"),
        ("\x1b[2J\x9b1m\x7f", r"\x1b[2J\x9b1m\x7f"),
        ("a\u2028b\u202ec\ud800", r"a\u2028b\u202ec\ud800"),
        (None, "None"),
    ],
)
def test_what_steers_a_terminal_or_ends_a_line_is_written_out(text, shown):
    assert excerpt(text) == shown


def test_a_long_text_says_how_much_is_left_out():
    assert excerpt("x" * 1000, 3) == "xxx... (997 more characters)"
    assert bounded("xxx", 3) == "xxx"


@given(st.text(st.characters(), max_size=300))
def test_an_excerpt_is_printable_and_short(text):
    shown = excerpt(text)
    assert shown.isprintable()
    assert len(shown) <= 200 * len(r"\U0010ffff") + len("... (100 more characters)")


def test_the_remark_of_an_answer_is_one_short_printable_line():
    error = from_response(1, "no\nERROR \x1b[2J" + "x" * 5_000_000)
    assert isinstance(error, BrokerError)
    assert str(error).startswith(r"no ERROR \x1b[2J" + "x" * 100)
    assert len(str(error)) < 2100
