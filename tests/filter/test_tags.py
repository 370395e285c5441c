"""Tag expressions: what they want, by hash and by text."""

import tracemalloc

import pytest

from pyromq.errors import IllegalMessage, SubscriptionParseFailed
from pyromq.filter.filter import check_tag, check_tag_words, parse_tags, subscribed_tags, tag_hash


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_an_expression_without_tags_wants_everything(expression):
    wanted = parse_tags(expression)
    assert wanted.accepts_code is None
    assert wanted.accepts_tag(None)
    assert wanted.accepts_tag("any")


def test_tags_are_split_at_bars_and_trimmed():
    wanted = parse_tags(" a ||b|| ")
    assert wanted.tags == {"a", "b"}
    assert wanted.codes == {tag_hash("a"), tag_hash("b")}


def test_tags_with_equal_hashes_differ_by_text():
    wanted = parse_tags("Aa")
    assert tag_hash("Aa") == tag_hash("BB")
    assert wanted.accepts_code is not None
    assert wanted.accepts_code(tag_hash("BB"))
    assert not wanted.accepts_tag("BB")


def test_an_expression_of_separators_only_is_refused():
    with pytest.raises(SubscriptionParseFailed, match=r"names no tag"):
        parse_tags(" || ")


@pytest.mark.parametrize(
    "expression",
    [
        "price > 5",
        "price>5",
        "a = 'x'",
        "a IS NOT NULL",
        "a is null",
        "a BETWEEN 1 AND 2",
        "a IN ('b', 'c')",
        "x and y",
    ],
)
def test_an_expression_that_looks_like_sql_is_hinted_at_once(expression, caplog):
    for _ in range(2):
        assert subscribed_tags(expression).tags == {expression}
    [record] = caplog.records
    assert record.getMessage().startswith(f"tags {expression!r} look like an SQL expression")


@pytest.mark.parametrize("expression", ["*", "a", "a || b", "made in china", "a=b", "x-y", "IN", "price", "a>b"])
def test_tags_are_not_taken_for_sql(expression, caplog):
    subscribed_tags(expression)
    assert caplog.records == []


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("a ||", "has an empty tag beside `||`"),
        ("|| a", "has an empty tag"),
        ("a || || b", "has an empty tag"),
        ("a || *", "has `*` beside other tags"),
        ("a | b", "has a single `|` in 'a | b'"),
        ("a || b |", "has a single `|` in 'b |'"),
        ("a ||| b", "has a single `|` in '| b'"),
        (" || ", "names no tag"),
    ],
)
def test_an_expression_that_is_read_differently_than_written_is_refused(expression, text):
    with pytest.raises(SubscriptionParseFailed) as caught:
        subscribed_tags(expression)
    assert text in str(caught.value)
    assert repr(expression) in str(caught.value)


@pytest.mark.parametrize("expression", ["", "*", " * ", "a", " a ||b ", "a-b", "a=b", "a.b", "a|b", "a|b || c", "ä"])
def test_plain_expressions_are_taken(expression):
    subscribed_tags(expression)
    check_tag_words(expression)


def test_a_star_means_everything_also_with_blanks_around_it():
    assert subscribed_tags(" * ").accepts_tag("any")


@pytest.mark.parametrize(
    "expression", ["a b", "a, b", "a,b", "a;b || c", "a && b", "new*", "a\tb", "price>5", "x and y"]
)
def test_tags_that_were_meant_as_several_or_as_a_pattern_are_told(expression):
    with pytest.raises(SubscriptionParseFailed, match="two tags are written `a"):
        check_tag_words(expression)


@pytest.mark.parametrize("tag", ["  ", "||", "a||b", " a", "a\n"])
def test_a_tag_that_no_subscription_finds_is_refused(tag):
    with pytest.raises(IllegalMessage, match="no subscription finds a tag with"):
        check_tag(tag)


def test_hashes_of_many_tags_take_little_memory():
    tracemalloc.start()
    try:
        for number in range(70_000):
            tag_hash(f"{number:090d}")
        assert tracemalloc.get_traced_memory()[0] < 1_500_000
    finally:
        tracemalloc.stop()
