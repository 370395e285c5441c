"""Filters: what makes them, and which kinds are refused."""

import pytest

from pyromq.errors import BrokerError
from pyromq.filter.filter import TAG_TYPES, filter_of, parse_tags
from pyromq.filter.sql import parse_sql


@pytest.mark.parametrize("expression_type", TAG_TYPES)
def test_a_subscription_by_tags_is_decided_by_codes_alone(expression_type):
    wanted = filter_of(expression_type, "a || b")
    assert wanted is parse_tags("a || b")
    assert wanted.accepts_record is None


def test_pulls_of_the_same_expression_have_the_same_filter():
    assert filter_of("TAG", "*") is filter_of(None, None)
    assert filter_of("TAG", "a") is filter_of("", "a")


def test_other_kinds_are_refused():
    with pytest.raises(BrokerError, match=r"^The broker does not support consumer to filter message by CLASS$"):
        filter_of("CLASS", "price > 5")


def test_a_subscription_by_an_expression_is_decided_by_records():
    wanted = filter_of("SQL92", "price > 5")
    assert wanted is parse_sql("price > 5")
    assert wanted.accepts_code is None
    with pytest.raises(BrokerError, match=r"^The broker does not support consumer to filter message by SQL92$"):
        filter_of("SQL92", "price > 5", by_properties=False)
