"""Tag expressions: what they want, by hash and by text."""

import pytest

from pyromq.errors import SubscriptionParseFailed
from pyromq.filter.tags import parse_tags
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
