"""Property texts of many records into pairs of name and value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyarrow")
pytest.importorskip("numpy")

import numpy as np

from pyromq.message import decode_properties
from pyromq.spark.read.property_pairs import PropertyPairs


def pairs_of(texts):
    """Return the pairs of these texts, which lie in one block with a byte of something else before each."""
    encoded = [text.encode() if isinstance(text, str) else text for text in texts]
    sizes = np.array([len(text) for text in encoded], np.int64)
    at = np.cumsum(sizes + 1) - sizes
    return PropertyPairs(np.frombuffer(b"".join(b"!" + text for text in encoded), np.uint8), at, sizes)


def properties(texts, hidden=frozenset()):
    """Return the properties of each text as a list of pairs."""
    found = [[] for _ in texts]
    rows, names, values = pairs_of(texts).without(hidden)
    for row, *pair in zip(rows, names.to_pylist(), values.to_pylist(), strict=True):
        found[row].append(tuple(pair))
    return found


def test_a_value_may_begin_with_a_line_break():
    assert properties(["a\x01\nb"]) == [[("a", "\nb")]]


def test_broken_pairs_are_dropped_and_the_last_of_equal_names_stays():
    assert properties(["a\x011\x02broken\x02\x02\x01x\x02b\x01\x02a\x012\x02"]) == [[("a", "2")]]


def test_the_value_of_a_name_is_null_in_texts_without_it():
    pairs = pairs_of(["a\x011\x02b\x012", "", "a\x013\x02a\x014"])
    assert [pairs.value_of(name).to_pylist() for name in "abc"] == [["1", None, "4"], ["2", None, None], [None] * 3]


def test_hidden_names_are_left_out():
    assert properties(["a\x011\x02b\x012", "b\x013"], frozenset("b")) == [[("a", "1")], []]


@given(st.lists(st.text("aKEYS\x01\x02é", max_size=30), max_size=60))
def test_properties_are_those_that_reading_one_record_finds(texts):
    assert [dict(found) for found in properties(texts)] == [decode_properties(text) for text in texts]


@pytest.mark.parametrize(
    "other",
    [
        "a\x01xy\x02d\x01z",
        "ab\x01c\x02d\x01e",
        "b\x01bc\x02d\x01e",
        "a\x01b\x00\x02d\x01e",
        "a\x01bc\x01d\x01e",
        "\x02" * 8,
    ],
)
def test_texts_of_one_size_may_differ_in_any_way(other):
    texts = ["a\x01bc\x02d\x01e"] * 3 + [other]
    assert [dict(found) for found in properties(texts)] == [decode_properties(text) for text in texts]


def test_what_is_no_text_is_replaced():
    assert properties([b"TAGS\x01a\xff\x02n\xff\x01c"]) == [[("TAGS", "a\ufffd"), ("n\ufffd", "c")]]


def test_more_different_names_than_anybody_has():
    texts = [f"name{number}\x01{number}\x02TAGS\x01t{number}" for number in range(100)]
    assert properties(texts) == [[(f"name{n}", str(n)), ("TAGS", f"t{n}")] for n in range(100)]
