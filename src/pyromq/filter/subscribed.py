"""The filter of a subscription of our own clients: by tags, or by an SQL92 expression."""

from __future__ import annotations

from typing import TypeAlias

from pyromq.errors import UsageError
from pyromq.filter.sql import SqlFilter, check_sql
from pyromq.filter.tags import ALL, TagFilter, subscribed_tags

Wanted: TypeAlias = TagFilter | SqlFilter


def wanted_by(tags: str, sql: str | None) -> Wanted:
    """Return the filter of a subscription by `tags` (`*`, `a || b`), or by `sql` unless that is None.

    Raises `UsageError` for both at once, `SubscriptionParseFailed` for an invalid one.
    """
    if sql is None:
        return subscribed_tags(tags)
    if tags not in ("", ALL):
        raise UsageError(f"tags={tags!r:.80} and sql={sql!r:.80} together: say it in sql, as in `TAGS = 'a' AND ...`")
    return check_sql(sql)
