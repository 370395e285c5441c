"""The terms of SQL92 expressions, each a function from a message's properties to a value.

Logic has three values: True, False, and None if a property is missing. A term raises `ValueError` if values cannot be
compared; the message is not selected then. Source: RocketMQ 4.9.8, the classes of
org.apache.rocketmq.filter.expression.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from operator import ge, gt, le, lt
from typing import TypeAlias

from pyromq.message import NAME_VALUE, PAIRS

Value: TypeAlias = bool | int | float | str | None

# Without digits beyond the BMP, which Java reads as surrogates.
_WHOLE = re.compile("[+-]?[^\\D\U00010000-\U0010ffff]+")
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")
_HEX_DOUBLE = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_BLANKS = "".join(map(chr, range(33)))

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1

Evaluate: TypeAlias = Callable[[bytes], Value]
MAX_LEVELS = 100  # limit of nested terms: each is a nested call
MAX_TERMS = 1_000  # limit of terms in an expression: each costs memory, and time for every message

ORDERS = {">": gt, ">=": ge, "<": lt, "<=": le}
_PAIRS, _NAME_VALUE = PAIRS.encode(), NAME_VALUE.encode()


class Kind(Enum):
    """Where in an expression a term may be used."""

    PROPERTY = auto()
    CONSTANT = auto()  # includes TRUE, FALSE and NULL
    CONDITION = auto()
    NEGATIVE = auto()


@dataclass(frozen=True, slots=True)
class Term:
    """A term of an SQL92 expression.

    `evaluate` takes the stored properties with a separator on either side. `value` is the value of a constant. `bare`
    is a property that the term uses as a condition, if any.
    """

    kind: Kind
    evaluate: Evaluate
    text: str
    levels: int = 1
    size: int = 1  # number of terms, nested ones included
    value: Value = None
    bare: str = ""

    @property
    def is_boolean(self) -> bool:
        """Whether the value of the term is true, false or unknown."""
        return self.kind is Kind.CONDITION or (self.kind is Kind.CONSTANT and isinstance(self.value, bool | None))


def constant(value: Value, text: str) -> Term:
    return Term(Kind.CONSTANT, lambda properties: value, text, value=value)


def whole_constant(text: str) -> Term:
    number = int(text.rstrip("lL")) if len(text) < 30 else LONG_MAX + 1
    if number > LONG_MAX:
        raise ValueError(f"{text:.80} is larger than {LONG_MAX}")
    return constant(number if number <= INT_MAX else Long(number), text)


def double_constant(text: str) -> Term:
    number = float(text)
    if number in (0.0, float("inf")):  # as in RocketMQ, where the minimum is the smallest positive number
        raise ValueError(f"{text:.80} is not between 4.9E-324 and 1.7976931348623157E308; write 0 for zero")
    return constant(number, text)


def prop(name: str) -> Term:
    """Return the term of a property, whose value is the property's text; None if the message lacks the property.

    The last of equal names counts; an empty property is absent.
    """
    key = _PAIRS + name.encode() + _NAME_VALUE
    size = len(key)

    def evaluate(properties: bytes) -> Value:
        at = properties.rfind(key)
        while at >= 0:
            begin = at + size
            if value := properties[begin : properties.find(_PAIRS, begin)]:
                return value.decode("utf-8", "replace")
            at = properties.rfind(key, 0, at)
        return None

    return Term(Kind.PROPERTY, evaluate, name)


def negative(operand: Term) -> Term:
    inner = operand.evaluate

    def evaluate(properties: bytes) -> Value:
        value = inner(properties)
        if isinstance(value, bool | str | None):
            return None
        return Long(-value) if type(value) is Long else -value

    return _made(Kind.NEGATIVE, evaluate, f"-{operand.text}", operand)


def condition(operand: Term) -> Term:
    """Return a term for use as a condition. A property alone is never true, because its value is a string."""
    if operand.is_boolean:
        return operand
    if operand.kind is not Kind.PROPERTY:
        raise ValueError(f"{operand.text:.80} is neither true nor false")
    inner = operand.evaluate
    made = _made(Kind.CONDITION, lambda properties: None if inner(properties) is None else False, operand.text, operand)
    return replace(made, bare=operand.text)


def negated(operand: Term) -> Term:
    operand = condition(operand)
    inner = operand.evaluate

    def evaluate(properties: bytes) -> Value:
        value = inner(properties)
        return None if value is None else not value

    return _made(Kind.CONDITION, evaluate, f"NOT {operand.text}", operand)


def all_of(operands: Sequence[Term]) -> Term:
    """Return the term for AND. Later operands are evaluated unless an earlier operand is false."""
    return _joined(operands, "AND", decides=False)


def any_of(operands: Sequence[Term]) -> Term:
    """Return the term for OR. Later operands are evaluated unless an earlier operand is true."""
    return _joined(operands, "OR", decides=True)


def equal(left: Term, right: Term) -> Term:
    for operand in (left, right):
        if operand.kind is Kind.CONSTANT and operand.value is None:
            raise ValueError("NULL cannot be compared; write IS NULL or IS NOT NULL")
    if left.kind is right.kind is Kind.CONSTANT and left.is_boolean and not right.is_boolean:
        raise ValueError(f"{left.text} cannot be compared with {right.text:.80}")
    if left.kind is Kind.PROPERTY and right.kind is Kind.CONSTANT and isinstance(right.value, str):
        return _made(Kind.CONDITION, _is_text(left.evaluate, right.value), f"{left.text} = {right.text}", left, right)
    return _made(Kind.CONDITION, _are_equal(left.evaluate, right.evaluate), f"{left.text} = {right.text}", left, right)


def is_null(operand: Term) -> Term:
    inner = operand.evaluate
    return _made(Kind.CONDITION, lambda properties: inner(properties) is None, f"{operand.text} IS NULL", operand)


def ordered(left: Term, sign: str, right: Term) -> Term:
    """Return the term for one of > >= < <=, between numbers or strings that are read as numbers."""
    for operand in (left, right):
        if operand.kind is Kind.CONDITION or (
            operand.kind is Kind.CONSTANT and isinstance(operand.value, bool | str | None)
        ):
            raise ValueError(f"{operand.text:.80} has no order; {sign} compares numbers")
    text = f"{left.text} {sign} {right.text}"
    if left.kind is Kind.PROPERTY and right.kind is Kind.CONSTANT:
        assert not isinstance(right.value, str | None)
        return _made(Kind.CONDITION, _is_on_side(left.evaluate, sign, right.value), text, left, right)
    is_so = ORDERS[sign]

    def evaluate(properties: bytes) -> Value:
        first = left.evaluate(properties)
        if first is None:
            return None
        second = right.evaluate(properties)
        if second is None:
            return None
        if isinstance(first, str) and isinstance(second, str):
            first, second = double(first), double(second)
        return bool(is_so(compare(first, second), 0))

    return _made(Kind.CONDITION, evaluate, text, left, right)


def between(operand: Term, low: Term, high: Term) -> Term:
    are_known = low.kind is high.kind is Kind.CONSTANT and low.value is not None and high.value is not None
    if are_known and compare(high.value, low.value) < 0:
        raise ValueError(f"nothing is between {low.text:.80} and {high.text:.80}; the smaller one comes first")
    return all_of([ordered(operand, ">=", low), ordered(operand, "<=", high)])


def not_between(operand: Term, low: Term, high: Term) -> Term:
    return any_of([ordered(operand, "<", low), ordered(operand, ">", high)])


def one_of(operand: Term, texts: Sequence[str], *, negate: bool) -> Term:
    if operand.kind is not Kind.PROPERTY:
        raise ValueError(f"{operand.text:.80} is not a property; only a property can be IN a list")
    known = frozenset(texts)
    inner = operand.evaluate

    def evaluate(properties: bytes) -> Value:
        value = inner(properties)
        return None if value is None else (value in known) is not negate

    return _made(Kind.CONDITION, evaluate, f"{operand.text} {'NOT ' if negate else ''}IN (...)", operand)


def _made(kind: Kind, evaluate: Evaluate, text: str, *operands: Term) -> Term:
    levels = 1 + max(operand.levels for operand in operands)
    if levels > MAX_LEVELS:
        raise ValueError(f"it has more than {MAX_LEVELS} conditions within each other")
    size = 1 + sum(operand.size for operand in operands)
    if size > MAX_TERMS:
        raise ValueError(f"it has more than {MAX_TERMS} comparisons, properties and values; a list after IN is one")
    bare = next((operand.bare for operand in operands if operand.bare), "")
    return Term(kind, evaluate, text[:100], levels, size, bare=bare)


def _joined(operands: Sequence[Term], word: str, *, decides: bool) -> Term:
    conditions = [condition(operand) for operand in operands]
    inner = [each.evaluate for each in conditions]

    def evaluate(properties: bytes) -> Value:
        answer: Value = not decides
        for each in inner:
            value = each(properties)
            if value is decides:
                return decides
            if value is None:
                answer = None
        return answer

    return _made(Kind.CONDITION, evaluate, f"({conditions[0].text} {word} ...)", *conditions)


def _are_equal(left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(properties: bytes) -> Value:
        first, second = left(properties), right(properties)
        if first is None:
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return evaluate


def _is_text(left: Evaluate, text: str) -> Evaluate:
    def evaluate(properties: bytes) -> Value:
        value = left(properties)
        return None if value is None else value == text

    return evaluate


def _is_on_side(left: Evaluate, sign: str, number: float) -> Evaluate:
    """The most frequent comparison: a property with a number."""
    is_so = ORDERS[sign]
    if isinstance(number, float):

        def of_doubles(properties: bytes) -> Value:
            value = left(properties)
            return None if value is None else is_so(compare_numbers(double(str(value)), number), 0)

        return of_doubles

    def of_whole_numbers(properties: bytes) -> Value:
        value = left(properties)
        return None if value is None else is_so(whole_number(str(value), number), number)

    return of_whole_numbers


class Long(int):
    """A whole number of 64 bits.

    A string compared with a `Long` may have 64 bits, a string compared with an `int` only 32.
    """


def whole_number(text: str, like: int) -> int:
    """Parse a string as the type of `like`. Raises `ValueError` unless it is a whole number of that type."""
    number = int(text) if _WHOLE.fullmatch(text) else None
    most = LONG_MAX if type(like) is Long else INT_MAX
    if number is None or not -most - 1 <= number <= most:
        raise ValueError(f"{text!r:.80} is not a whole number of {64 if most == LONG_MAX else 32} bits")
    return number


def double(text: str) -> float:
    """Parse a string as Java's Double does. Raises `ValueError` for a string that is not a number."""
    text = text.strip(_BLANKS)
    if match := _DOUBLE.fullmatch(text):
        return float(match[0].rstrip("fFdD") if match[2] else text)
    if match := _HEX_DOUBLE.fullmatch(text):
        try:
            return float.fromhex(match[1])
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    raise ValueError(f"{text!r:.80} is not a number")


def compare(left: Value, right: Value) -> int:
    """Return a number below, equal to or above zero for `left` below, equal to or above `right`; neither is None.

    Values of incompatible types are unequal: -1. Raises `ValueError` if a string must be a number and is not, and for a
    boolean on the left of a string.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return (left.lower() == "true") - right
        return compare_numbers(_like(left, right), right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise ValueError("a boolean on the left is not compared with a string")
        return left - right if isinstance(right, bool) else -1
    if isinstance(right, str):
        return compare_numbers(left, _like(right, left))
    return -1 if isinstance(right, bool) else compare_numbers(left, right)


def compare_numbers(left: float | None, right: float | None) -> int:
    """Compare numbers as Java's Double does: NaN is above all other numbers, and -0.0 is below 0.0."""
    assert left is not None and right is not None
    if isinstance(left, float) or isinstance(right, float):
        left, right = float(left), float(right)
        if left == right:
            return int(math.copysign(1, left) - math.copysign(1, right))
        if left != left or right != right:
            return (left != left) - (right != right)
    return (left > right) - (left < right)


def _like(text: str, number: float | None) -> float:
    return double(text) if isinstance(number, float) else whole_number(text, number or 0)
