"""SQL92 expressions: three values, what is compared how, what is refused and how that is told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyromq.errors import SubscriptionParseFailed, UsageError
from pyromq.filter.filter import parse_tags, wanted_by
from pyromq.filter.sql import MAX_CHARACTERS, check_sql, parse_sql
from pyromq.filter.sql_terms import MAX_LEVELS, MAX_TERMS, compare, compare_numbers, double
from pyromq.message import StoredMessage, encode_properties
from pyromq.record import encode


def wants(expression, **properties):
    return parse_sql(expression).accepts_properties(encode_properties(properties))


@pytest.mark.parametrize(
    "expression",
    [
        *("price > 5", "price>=6", "price < 6.5 AND region = 'EU'", "price BETWEEN 6 AND 6", "region IN ('US', 'EU')"),
        *("price <> 5", "NOT (price = 5)", "missing IS NULL", "price IS NOT NULL AND missing IS NULL", "6 = price"),
        *("missing > 1 OR price = 6", "name = 'it''s'", "price = 6 /* six */ -- really\n", "+price = 6 OR price = +6"),
        *("low < -1", "price > low", "flag = TRUE", "not (region in ('US')) and (price = 6)", "price = 6 anything"),
    ],
)
def test_true_of_a_message(expression):
    assert wants(expression, price="6", region="EU", name="it's", low="-2", flag="True")


@pytest.mark.parametrize(
    "expression",
    [
        *(
            "price > 6",
            "missing = 1",
            "NOT (missing = 1)",
            "missing <> 1",
            "missing NOT IN ('a')",
            "price = 6 AND missing = 1",
        ),
        *("name > 5", "NOT (name > 5)", "price = 3000000000.5", "region", "NOT price = 6", "big = 5", "TRUE = flag"),
    ],
)
def test_not_true_of_a_message(expression):
    assert not wants(expression, price="6", region="EU", name="it's", big="3000000000", flag="true")


def test_the_last_of_a_property_counts_and_none_that_is_empty():
    stored = "a\x011\x02aa\x013\x02a\x012\x02a\x01\x02"
    assert parse_sql("a = 2 AND aa = 3").accepts_properties(stored)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "it is empty; write a condition like `price > 5`"),
        ("price >", "it ends at character 8, where a property, a number or a 'text' should be"),
        ("price > 'x'", "'x' has no order; > compares numbers"),
        ("price = NULL", "NULL cannot be compared; write IS NULL or IS NOT NULL"),
        ("price + 1 > 2", "+ at character 7 follows a complete expression: is AND or OR missing?"),
        ("price BETWEEN 7 AND 3", "nothing is between 7 and 3; the smaller one comes first"),
        ("name LIKE 'a%'", "LIKE at character 6 follows a complete expression: is AND or OR missing?"),
        ("price = 'open", "a string without closing quote at character 9 has no meaning"),
        ("5 IN ('a')", "5 is not a property; only a property can be IN a list"),
        ("5", "5 is neither true nor false"),
        ("price > 99999999999999999999", "99999999999999999999 is larger than 9223372036854775807"),
        ("(" * 200 + "a = 1" + ")" * 200, f"at character {MAX_LEVELS + 1} it has more than {MAX_LEVELS} levels"),
        ("a = 1" + " = 1" * MAX_LEVELS, f"it has more than {MAX_LEVELS} conditions within each other"),
        (" OR ".join(["a = 1"] * MAX_TERMS), f"it has more than {MAX_TERMS} comparisons, properties and values"),
        ("a" * (MAX_CHARACTERS + 1), f"it has {MAX_CHARACTERS + 1} characters; the limit is {MAX_CHARACTERS}"),
    ],
)
def test_what_is_wrong_is_told(expression, reason):
    with pytest.raises(SubscriptionParseFailed) as caught:
        check_sql(expression)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_stands_behind_an_expression_is_passed_over_for_clients_of_others():
    assert parse_sql("a = 1 ADN b = 2").accepts_properties("a\x011\x02")
    with pytest.raises(SubscriptionParseFailed, match="ADN at character 7"):
        check_sql("a = 1 ADN b = 2")


@given(st.text(st.sampled_from("ab15.'()=<> \tANDORNOTISNULLINBETWEEN,-+/*\nLe"), max_size=60))
def test_any_text_is_taken_or_refused(text):
    try:
        wanted = parse_sql(text)
    except SubscriptionParseFailed:
        return
    assert wanted.accepts_properties("a\x015\x02b\x01x\x02") in (True, False)


@given(st.floats(), st.floats())
def test_numbers_are_in_one_order(left, right):
    assert compare_numbers(left, right) == -compare_numbers(right, left) or compare_numbers(left, right) == 0
    assert compare_numbers(left, left) == 0
    if left < right:
        assert compare_numbers(left, right) < 0


def test_odd_numbers_are_ordered_as_in_java():
    assert compare_numbers(float("nan"), float("inf")) > 0
    assert compare_numbers(-0.0, 0.0) < 0
    assert compare(5, 5.0) == 0


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1e3", 1000.0),
        (" 5. ", 5.0),
        (".5f", 0.5),
        ("-Infinity", float("-inf")),
        ("0x1.8p1", 3.0),
        ("0x1p9999", float("inf")),
    ],
)
def test_texts_are_read_as_doubles_are_in_java(text, number):
    assert double(text) == number


@pytest.mark.parametrize("text", ["", "1_000", "inf", "nan", "٥", "0x1", "1e", "5dd", "- 5"])
def test_other_texts_are_no_doubles(text):
    with pytest.raises(ValueError, match="is not a number"):
        double(text)


@pytest.mark.parametrize("expression", ["flag", "NOT flag", "price > 5 AND (flag)", "FALSE", "NULL", "flag OR TRUE"])
def test_what_is_never_true_or_only_seems_so_is_refused_for_our_users(expression):
    parse_sql(expression)
    with pytest.raises(SubscriptionParseFailed, match="never true"):
        check_sql(expression)
    check_sql("flag = TRUE AND NOT (price = 5) AND flag IS NOT NULL")
    check_sql("TRUE")


@pytest.mark.parametrize(("text", "is_five"), [("5", True), ("\uff15", True), ("0\u0665", True), ("\U0001d7d3", False)])
def test_digits_are_those_of_java_whole_numbers(text, is_five):
    assert wants("a = 5", a=text) is is_five
    assert wants("a = 5.0", a=text) is (text == "5")  # a double has ASCII digits only


def test_a_record_is_judged_by_its_properties():
    wanted = parse_sql("price > 5")
    record = memoryview(encode(StoredMessage("orders", b"body", property_text="price\x016\x02")))
    assert wanted.accepts_record(record)
    assert not wanted.accepts_record(memoryview(encode(StoredMessage("orders", b"body", property_text="price\x014"))))


def test_who_subscribes_says_tags_or_an_expression():
    assert wanted_by("a || b", None) is parse_tags("a || b")
    assert wanted_by("*", "price > 5") is parse_sql("price > 5")
    with pytest.raises(UsageError, match="say it in sql, as in `TAGS = 'a' AND"):
        wanted_by("a", "price > 5")
