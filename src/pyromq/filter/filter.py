"""Filters of subscriptions: by tags (`*`, `a`, `a || b`) here, by SQL92 expressions in module `sql`.

A broker compares hashes of tags, a consumer the tags themselves. Source: RocketMQ 4.9.8,
FilterAPI.buildSubscriptionData.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol, TypeAlias

from pyromq.errors import BrokerError, IllegalMessage, LimitReached, SubscriptionParseFailed, UsageError
from pyromq.filter.sql import SQL92, SqlFilter, check_sql, parse_sql
from pyromq.java_hash import java_hash
from pyromq.logs import logger_of

logger = logger_of(__name__)

ALL = "*"
_UNIT = 8  # number of tags that take about the memory of one long poll

# Parts of SQL92 expressions that are rare in tags: operators and words between blanks, comparisons with literals.
_SQL = re.compile(r"\s(=|<>|[<>]=?|AND|OR|NOT|IN|IS|BETWEEN|and|or)\s|[<>=]\s*['\d]|(?i:\bis\s+(not\s+)?null\b)")

# Characters in a tag that suggest several tags, or a pattern.
_UNLIKELY = re.compile(r"[\s,;&*]")

# A single bar, probably meant as `||`. The tag `a|b` is legal, and Java's clients find it.
_LONE_BAR = re.compile(r"^\||\s\||\|\s|\|$")

TAG_TYPES = (None, "", "TAG")  # expression types of a subscription by tags


class Filter(Protocol):
    """The filter of a subscription: two tests, both of which a selected message passes.

    A test that is None passes everything. Filters are hashable. If equal subscriptions share one filter, an arriving
    message is tested once for all their long polls.
    """

    @property
    def codes(self) -> frozenset[int] | None:
        """The hash codes of the tags that are accepted, if they can be listed.

        If None or empty, `accepts_code` decides.
        """

    @property
    def weight(self) -> int:
        """The cost of keeping and testing this filter in a long poll, measured in pulls without a filter."""

    @property
    def accepts_code(self) -> Callable[[int], bool] | None:
        """Test of the tag hash in a consume-queue entry, without reading the record; None: every entry passes."""

    @property
    def accepts_record(self) -> Callable[[memoryview], bool] | None:
        """Test of a record in memory; None: every record passes.

        Damaged records pass, so that the consumer reports them.
        """


def filter_of(expression_type: str | None, expression: str | None, *, by_properties: bool = True) -> Filter:
    """Return the filter of a subscription. `by_properties` says whether SQL92 expressions are supported."""
    if expression_type in TAG_TYPES:
        return parse_tags(expression)
    if expression_type == SQL92 and by_properties:
        return parse_sql(expression)
    raise BrokerError(f"The broker does not support consumer to filter message by {expression_type}")


def check_length(expression: str | None, most: int) -> None:
    """Raise `LimitReached` for a subscription expression that is longer than a broker stores."""
    if expression is not None and len(expression) > most:
        text = f"the subscription {expression[:40]}... has {len(expression)} characters: subscribe to all, or to less"
        raise LimitReached("maxSubscriptionLength", most, text)


@dataclass(frozen=True, slots=True, eq=False)
class TagFilter:
    """A `Filter` by tags that tests hash codes of tags; different tags may have one hash code.

    Without tags the filter accepts all messages.
    """

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]
    accepts_code: Callable[[int], bool] | None
    accepts_record: None = None
    expression_type: str = "TAG"

    @property
    def weight(self) -> int:
        return len(self.codes) // _UNIT

    def accepts_tag(self, tag: str | None) -> bool:
        return not self.tags or tag in self.tags


EVERYTHING = TagFilter(ALL, frozenset(), frozenset(), None)


def subscribed_tags(expression: str) -> TagFilter:
    """Return the filter of a tag expression of our own client. Warn, once for each expression, for text like SQL.

    Raises `SubscriptionParseFailed` for an expression that is probably a mistake. RocketMQ's own parser,
    `parse_tags`, accepts such expressions: it skips an empty tag, and treats `*` among other tags as a tag.
    """
    parts = _parts(expression)
    if parts == [ALL]:  # also `*` with blanks around
        return EVERYTHING
    _check_parts(expression, parts)
    _hint_at_sql(expression)
    return parse_tags(expression)


def check_tag_words(expression: str) -> None:
    """Raise `SubscriptionParseFailed` for a tag with a blank, a comma or similar, or a tag that looks like SQL.

    Such a tag is legal. Usually two tags, or a pattern, were meant, and the subscription would find nothing.
    """
    for tag in _parts(expression):
        if tag != ALL and (found := _UNLIKELY.search(tag) or _SQL.search(tag)):
            raise SubscriptionParseFailed(
                f"{expression!r:.80} has the tag {tag!r:.80}, with {found[0]!r} in it: two tags are written `a || b`,"
                f" there are no wildcards; an SQL expression finds a tag of that very text, `TAGS = '{tag:.80}'`"
            )


def _check_parts(expression: str, parts: list[str]) -> None:
    if not any(parts):  # all tags, or only separators, which `parse_tags` refuses
        return
    if "" in parts:
        raise SubscriptionParseFailed(
            f"{expression!r:.80} has an empty tag beside `||`; write `a || b`, or `*` for all"
        )
    if ALL in parts:
        raise SubscriptionParseFailed(f"{expression!r:.80} has `*` beside other tags; write `*` alone for all messages")
    if wrong := [tag for tag in parts if _LONE_BAR.search(tag)]:
        raise SubscriptionParseFailed(f"{expression!r:.80} has a single `|` in {wrong[0]!r:.80}; write `a || b`")


def _parts(expression: str) -> list[str]:
    return [part.strip() for part in (expression or "").split("||")]


def looks_like_sql(expression: str) -> bool:
    return _SQL.search(expression) is not None


@lru_cache(maxsize=1024)
def _hint_at_sql(expression: str) -> None:
    if looks_like_sql(expression):
        logger.warning(
            "tags %r look like an SQL expression, and count as a tag of that text: tags are written `a || b`, an"
            " expression is given as sql, not as tags",
            expression,
        )


def check_tag(tag: str) -> None:
    """Raise `IllegalMessage` for a tag of a message that no subscription can select."""
    if not isinstance(tag, str):
        raise IllegalMessage(f"tags={tag!r:.80} is {type(tag).__name__}; a message has one tag, a string")
    if "||" in tag:
        raise IllegalMessage(f"tags={tag!r:.80}: no subscription finds a tag with `||` in it; a message has one tag")
    if tag != tag.strip():
        raise IllegalMessage(f"tags={tag!r:.80}: no subscription finds a tag with blanks around it")


def tag_hash(tags: str) -> int:
    """Return the code of a tag as consume queues store the tag.

    Codes of short tags are cached, since a topic has few tags.
    """
    return _short_tag_hash(tags) if len(tags) <= _SHORT_TAG else java_hash(tags)


_SHORT_TAG = 100  # limit of characters in a cached tag: the cache has about a megabyte at most
_short_tag_hash = lru_cache(maxsize=4096)(java_hash)


def parse_tags(expression: str | None) -> TagFilter:
    """Return the filter of a tag expression; None, the empty string and `*` accept everything.

    Equal expressions return the same filter object while it is cached; few long expressions are cached, because they
    use much memory. Raises `SubscriptionParseFailed` for an expression of separators only.
    """
    if not expression or expression == ALL:
        return EVERYTHING
    return _parse_short(expression) if len(expression) <= _SHORT else _parse_long(expression)


def _parse(expression: str) -> TagFilter:
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise SubscriptionParseFailed(
            f"parse the consumer's subscription failed: {expression!r:.80} names no tag; write `a || b`, or `*` for all"
        )
    codes = frozenset(map(tag_hash, tags))
    return TagFilter(expression, tags, codes, codes.__contains__)


_SHORT = 512  # limit of characters in an expression that counts as short; a filter may take fifty times the memory
_parse_short = lru_cache(maxsize=1024)(_parse)
_parse_long = lru_cache(maxsize=32)(_parse)


Wanted: TypeAlias = TagFilter | SqlFilter


def wanted_by(tags: str, sql: str | None) -> Wanted:
    """Return the filter of a subscription by `tags` (`*`, `a || b`), or by `sql` unless `sql` is None.

    Raises `UsageError` if both are given, `SubscriptionParseFailed` for an invalid expression.
    """
    if sql is None:
        return subscribed_tags(tags)
    if tags not in ("", ALL):
        raise UsageError(f"tags={tags!r:.80} and sql={sql!r:.80} together: say it in sql, as in `TAGS = 'a' AND ...`")
    return check_sql(sql)
