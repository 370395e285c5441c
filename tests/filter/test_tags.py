"""Tag expressions: what they want, by hash and by text."""

import pytest

from pyromq.errors import SubscriptionParseFailed
from pyromq.filter.tags import parse_tags, subscribed_tags
from pyromq.java_hash import tag_hash


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
