"""Tables of many rows: filtered, sorted and divided into pages by the fields of the address."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from urllib.parse import urlencode

R = TypeVar("R")

PAGE_ROWS = 50
MAX_ROWS = 500


class Table(Generic[R]):
    """One page of the rows of a table.

    `columns` are the sortable columns, named in the address as `sort=name` or `sort=-name`. Templates use `rows`,
    `total` (after the filter), `page`, `pages`, `sort_link` and `page_link`.
    """

    def __init__(
        self,
        rows: Sequence[R],
        query: Mapping[str, str],
        *,
        columns: Mapping[str, Callable[[R], Any]],
        sort: str,
        text: Callable[[R], str] | None = None,
    ) -> None:
        self._query = {name: value for name, value in query.items() if value}
        self.filter = query.get("filter", "").strip()
        self.of = len(rows)
        if self.filter and text is not None:
            words = self.filter.casefold().split()
            rows = [row for row in rows if all(word in text(row).casefold() for word in words)]
        wanted = query.get("sort", sort)
        name, self.descending = wanted.removeprefix("-"), wanted.startswith("-")
        self.sort = name if name in columns else sort.removeprefix("-")
        if name not in columns:
            self.descending = sort.startswith("-")
        rows = sorted(rows, key=columns[self.sort], reverse=self.descending)
        self.total = len(rows)
        size = min(max(_whole(query.get("rows"), PAGE_ROWS), 1), MAX_ROWS)
        self.pages = max(1, -(-self.total // size))
        self.page = min(max(_whole(query.get("page"), 1), 1), self.pages)
        self.first = (self.page - 1) * size
        self.rows = rows[self.first : self.first + size]

    def sort_link(self, name: str, *, descending_first: bool = False) -> str:
        """Return the address of this table sorted by a column.

        If the table is sorted by this column, the address has the other direction.
        """
        down = not self.descending if name == self.sort else descending_first
        return self._link(sort=("-" if down else "") + name, page="")

    def aria_sort(self, name: str) -> str:
        if name != self.sort:
            return "none"
        return "descending" if self.descending else "ascending"

    def page_link(self, page: int) -> str:
        return self._link(page=str(page) if page > 1 else "")

    def with_query(self, **changes: str) -> str:
        """Return the address of this table with changed query fields; the value "" removes a field."""
        return self._link(page="", **changes) if "page" not in changes else self._link(**changes)

    def _link(self, **changes: str) -> str:
        query = {**self._query, **changes}
        return "?" + urlencode({name: value for name, value in query.items() if value})


def _whole(text: str | None, otherwise: int) -> int:
    return int(text) if text and text.isdecimal() and len(text) < 9 else otherwise
