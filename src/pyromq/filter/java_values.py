"""How Java compares what expressions compare: texts that become numbers, whole and floating-point numbers, booleans.

A value is None, a `bool`, an `int` (Java's Integer), a `Long`, a `float` (Java's Double) or a `str`.
Source: RocketMQ 4.9.8, ComparisonExpression; java.lang.Integer, Long and Double, valueOf and compareTo.
"""

from __future__ import annotations

import math
import re
from typing import TypeAlias

Value: TypeAlias = bool | int | float | str | None

_WHOLE = re.compile("[+-]?[^\\D\U00010000-\U0010ffff]+")  # of digits beyond the BMP, Java sees surrogates
_DOUBLE = re.compile(r"[+-]?(NaN|Infinity|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?[fFdD]?)")
_HEX_DOUBLE = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_BLANKS = "".join(map(chr, range(33)))

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1


class Long(int):
    """A whole number of 64 bits. It compares as a number; a text beside it may be as large, beside an `int` not."""


def whole_number(text: str, like: int) -> int:
    """Read a text as the type of `like`. Raises `ValueError` for what is none, or too large for that type."""
    number = int(text) if _WHOLE.fullmatch(text) else None
    most = LONG_MAX if type(like) is Long else INT_MAX
    if number is None or not -most - 1 <= number <= most:
        raise ValueError(f"{text!r:.80} is no whole number of {64 if most == LONG_MAX else 32} bits")
    return number


def double(text: str) -> float:
    """Read a text as Java's Double does. Raises `ValueError` for what is none."""
    text = text.strip(_BLANKS)
    if match := _DOUBLE.fullmatch(text):
        return float(match[0].rstrip("fFdD") if match[2] else text)
    if match := _HEX_DOUBLE.fullmatch(text):
        try:
            return float.fromhex(match[1])
        except OverflowError:
            return -math.inf if text[0] == "-" else math.inf
    raise ValueError(f"{text!r:.80} is no number")


def compare(left: Value, right: Value) -> int:
    """Return a number below, equal to or above zero, as `left` is to `right`; neither is None.

    Values of different kinds that cannot be brought together are unequal: -1. Raises `ValueError` where a text is no
    number as it would have to be, and for a boolean on the left of a text.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return (left.lower() == "true") - right
        return compare_numbers(_like(left, right), right)
    if isinstance(left, bool):
        if isinstance(right, str):
            raise ValueError("a boolean on the left is not compared with a text")
        return left - right if isinstance(right, bool) else -1
    if isinstance(right, str):
        return compare_numbers(left, _like(right, left))
    return -1 if isinstance(right, bool) else compare_numbers(left, right)


def compare_numbers(left: float | None, right: float | None) -> int:
    """As `compare`, of numbers. NaN is above all others, and -0.0 below 0.0, as between Java's Doubles."""
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
