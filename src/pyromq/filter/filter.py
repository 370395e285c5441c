"""The filter that every kind of subscription becomes, and the one function that makes it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pyromq.errors import BrokerError, LimitReached
from pyromq.filter.sql import SQL92, parse_sql
from pyromq.filter.tags import parse_tags

TAG_TYPES = (None, "", "TAG")  # expression types of a subscription by tags


class Filter(Protocol):
    """Two tests; a message is selected if it passes both. A test that is None passes everything.

    Filters are hashable. If equal subscriptions share one object, an arriving message is tested once for all their long
    polls.
    """

    @property
    def codes(self) -> frozenset[int] | None:
        """The accepted hash codes, if they can be listed; None or empty: `accepts_code` decides."""

    @property
    def weight(self) -> int:
        """The cost of keeping and testing this filter in a long poll, as a number of pulls without a filter."""

    @property
    def accepts_code(self) -> Callable[[int], bool] | None:
        """The test of a queue entry's tags code, without reading the record."""

    @property
    def accepts_record(self) -> Callable[[memoryview], bool] | None:
        """The test of a record in memory. Damaged records pass, so that the consumer reports them."""


def filter_of(expression_type: str | None, expression: str | None, *, by_properties: bool = True) -> Filter:
    """Return the filter of a subscription. `by_properties`: whether SQL92 expressions are supported."""
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
