"""Searches that users saved under names, for each account, in one JSON file."""

from __future__ import annotations

from pathlib import Path

import msgspec

from pyromq.errors import UsageError
from pyromq.whole_file import replace_file

MAX_SEARCHES = 100  # limit of saved searches of one account
MAX_NAME, MAX_QUERY = 80, 2000  # limits of characters in a name and in a query string


class SavedSearches:
    """The saved searches. A search is the query string of an address, for example `topic=orders&q=4711`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._by_account: dict[str, dict[str, str]] = {}
        if path.exists():
            try:
                self._by_account = msgspec.json.decode(path.read_bytes(), type=dict[str, dict[str, str]])
            except msgspec.DecodeError as error:
                raise UsageError(f"the console's saved searches in {path} cannot be read: {error}") from error

    def of(self, account: str) -> dict[str, str]:
        return dict(sorted(self._by_account.get(account, {}).items()))

    def save(self, account: str, name: str, query: str) -> None:
        """Save a search under a name, replacing an earlier search of that name. Raises `UsageError` at a limit."""
        name = name.strip()
        if not name or len(name) > MAX_NAME or len(query) > MAX_QUERY:
            raise UsageError(
                f"a saved search has a name of 1 to {MAX_NAME} characters, and at most {MAX_QUERY} characters itself"
            )
        own = {**self._by_account.get(account, {}), name: query}
        if len(own) > MAX_SEARCHES:
            raise UsageError(f"there are {MAX_SEARCHES} saved searches already; delete one first")
        self._write({**self._by_account, account: own})

    def delete(self, account: str, name: str) -> None:
        own = {key: each for key, each in self._by_account.get(account, {}).items() if key != name}
        self._write({**self._by_account, account: own})

    def _write(self, searches: dict[str, dict[str, str]]) -> None:
        replace_file(self._path, msgspec.json.format(msgspec.json.encode(searches), indent=2) + b"\n")
        self._by_account = searches
