"""The fields of the search form, as the address has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from pyromq.errors import UsageError

WAYS = ("any", "id", "key", "tag", "text", "sql")
LIMITS = (20, 50, 100, 500)
MOST_TEXT = 1000  # limit of characters in a searched text


@dataclass(frozen=True, slots=True)
class Query:
    """The search that an address describes. `by` is one of `WAYS`. Times are ms since 1970, both ends included.
    `before` continues an earlier page.
    """

    topic: str = ""
    text: str = ""
    by: str = "any"
    since_ms: int | None = None
    until_ms: int | None = None
    queue: str = ""
    limit: int = 50
    before: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> Query:
        """Return the query that the fields of an address describe. Raises `UsageError`."""
        by = query.get("by") or "any"
        if by not in WAYS:
            raise UsageError(f"by={by[:40]!r} is unknown; write {' or '.join(WAYS)}")
        text = query.get("q", "").strip()
        if len(text) > MOST_TEXT:
            raise UsageError(f"the text has {len(text)} characters; the limit of a search is {MOST_TEXT}")
        limit = query.get("limit", "")
        return cls(
            topic=query.get("topic", "").strip(),
            text=text,
            by=by,
            since_ms=moment(query.get("since", "")),
            until_ms=moment(query.get("until", "")),
            queue=query.get("queue", "").strip(),
            limit=int(limit) if limit in map(str, LIMITS) else 50,
            before=query.get("before", ""),
        )


def moment(text: str) -> int | None:
    """Return ms since 1970 from a text: `2026-11-22T17:00` (in UTC if there is no zone), or a number of ms.

    Raises `UsageError`.
    """
    text = text.strip()
    if not text:
        return None
    if text.isdecimal() and len(text) < 16:
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text[:60]!r} is not a time: write 2026-11-22T17:00, or ms since 1970") from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)
