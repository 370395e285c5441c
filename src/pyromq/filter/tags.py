"""Tag subscriptions: `*`, `a`, `a || b`. A broker compares hashes of tags, a consumer the tags themselves.

Source: RocketMQ 4.9.8, FilterAPI.buildSubscriptionData.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from pyromq.errors import IllegalMessage, SubscriptionParseFailed
from pyromq.java_hash import tag_hash
from pyromq.logs import logger_of

logger = logger_of(__name__)

ALL = "*"
_UNIT = 8  # number of tags with about the memory of one long poll

# Parts of SQL92 expressions that are rare in tags: operators and words between blanks, comparisons with literals.
_SQL = re.compile(r"\s(=|<>|[<>]=?|AND|OR|NOT|IN|IS|BETWEEN|and|or)\s|[<>=]\s*['\d]|(?i:\bis\s+(not\s+)?null\b)")

# Characters in a tag that suggest several tags, or a pattern.
_UNLIKELY = re.compile(r"[\s,;&*]")

# A single bar, probably meant as `||`. The tag `a|b` is legal, and Java's clients find it.
_LONE_BAR = re.compile(r"^\||\s\||\|\s|\|$")


@dataclass(frozen=True, slots=True, eq=False)
class TagFilter:
    """A parsed tag expression: a `Filter` that tests hash codes; different tags may share one. Without tags it accepts
    all.
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
    """Return the filter of a tag expression of our own client; warn, once for each, if it looks like SQL.

    Raises `SubscriptionParseFailed` for an expression that does not mean what it says. RocketMQ's own parser,
    `parse_tags`, accepts such expressions: it skips an empty tag, and treats `*` beside other tags as a tag.
    """
    parts = _parts(expression)
    if parts == [ALL]:  # also with blanks around it
        return EVERYTHING
    _check_parts(expression, parts)
    _hint_at_sql(expression)
    return parse_tags(expression)


def check_tag_words(expression: str) -> None:
    """Raise `SubscriptionParseFailed` for a tag with a blank, a comma or similar, or that looks like SQL.

    Such a tag is legal. Usually two tags, or a pattern, were meant, and the subscription finds nothing.
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
    """Raise `IllegalMessage` for a message's tag that no subscription can select."""
    if not isinstance(tag, str):
        raise IllegalMessage(f"tags={tag!r:.80} is {type(tag).__name__}; a message has one tag, a text")
    if "||" in tag:
        raise IllegalMessage(f"tags={tag!r:.80}: no subscription finds a tag with `||` in it; a message has one tag")
    if tag != tag.strip():
        raise IllegalMessage(f"tags={tag!r:.80}: no subscription finds a tag with blanks around it")


def parse_tags(expression: str | None) -> TagFilter:
    """Return the filter of a tag expression; None, the empty text and `*` accept everything.

    Equal expressions return the same object while it is cached; few long ones are, because they use much memory. Raises
    `SubscriptionParseFailed` for an expression of separators only.
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


_SHORT = 512  # characters; a filter may use fifty times the memory of its expression
_parse_short = lru_cache(maxsize=1024)(_parse)
_parse_long = lru_cache(maxsize=32)(_parse)
