"""What every kind of subscription comes down to, and the one place where subscriptions are made into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyromq.errors import BrokerError, LimitReached
from pyromq.filter.sql import SQL92, parse_sql
from pyromq.filter.tags import parse_tags

TAG_TYPES = (None, "", "TAG")  # how a subscription by tags calls itself


class Filter(Protocol):
    """Two tests; a message is wanted if it passes both. One that is None passes everything.

    Filters are hashable. Where equal subscriptions give the same object, an arrival asks once for all their long polls.
    """

    @property
    def codes(self) -> frozenset[int] | None:
        """The only codes that are accepted, where they can be named; None or none: `accepts_code` says which."""

    @property
    def weight(self) -> int:
        """How much it takes to keep it while somebody waits, and to ask it: as many pulls of everything."""

    @property
    def accepts_code(self) -> Callable[[int], bool] | None:
        """The test of a queue entry's tags code, for which no record is touched."""

    @property
    def accepts_record(self) -> Callable[[memoryview], bool] | None:
        """The test of a record, which is in memory by then. It passes damaged ones: whoever pulls them names them."""


def filter_of(expression_type: str | None, expression: str | None, *, by_properties: bool = True) -> Filter:
    """Return the filter of a subscription. `by_properties`: whether expressions over properties are served.

    Raises `BrokerError` for a type that is not served, `SubscriptionParseFailed` for an expression that makes no sense.
    """
    if expression_type in TAG_TYPES:
        return parse_tags(expression)
    if expression_type == SQL92 and by_properties:
        return parse_sql(expression)
    raise BrokerError(f"The broker does not support consumer to filter message by {expression_type}")


def check_length(expression: str | None, most: int) -> None:
    """Raise `LimitReached` for a subscription longer than a broker keeps."""
    if expression is not None and len(expression) > most:
        text = f"the subscription {expression[:40]}... has {len(expression)} characters: subscribe to all, or to less"
        raise LimitReached("maxSubscriptionLength", most, text)
