"""The fields of the search form, as the address has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyromq.console.view.viewer_times import TimeRange
from pyromq.errors import UsageError

WAYS = ("any", "id", "key", "tag", "text", "sql")
LIMITS = (25, 50, 100, 500)  # the first is the default: as many rows as a screen has
MAX_TEXT = 1000  # limit of characters in a searched text


@dataclass(frozen=True, slots=True)
class Query:
    """The search that an address describes.

    `by` is one of `WAYS`. Times are ms since 1970, both ends included. `match_case` distinguishes upper and lower case
    in texts. `before` continues an earlier page.
    """

    topic: str = ""
    text: str = ""
    by: str = "any"
    match_case: bool = False
    since_ms: int | None = None
    until_ms: int | None = None
    queue: str = ""
    limit: int = LIMITS[0]
    before: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str], times: TimeRange) -> Query:
        """Return the query in the fields of an address, limited to a range of times. Raises `UsageError`."""
        by = query.get("by") or "any"
        if by not in WAYS:
            raise UsageError(f"by={by[:40]!r} is unknown; write {' or '.join(WAYS)}")
        text = query.get("q", "").strip()
        if len(text) > MAX_TEXT:
            raise UsageError(f"the text has {len(text)} characters; the limit of a search is {MAX_TEXT}")
        limit = query.get("limit", "")
        return cls(
            topic=query.get("topic", "").strip(),
            text=text,
            by=by,
            match_case=query.get("case") == "yes",
            since_ms=times.since_ms,
            until_ms=times.until_ms,
            queue=query.get("queue", "").strip(),
            limit=int(limit) if limit in map(str, LIMITS) else LIMITS[0],
            before=query.get("before", ""),
        )
