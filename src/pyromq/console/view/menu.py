"""The menu: sections with their pages, and the letters that lead there."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """`path` is the page's address; every page below it belongs to the entry. `key` follows a g."""

    path: str
    text: str
    key: str
    admin_only: bool = False


MENU = (
    Entry("/", "Overview", "o"),
    Entry("/topics", "Topics", "t"),
    Entry("/messages", "Messages", "m"),
    Entry("/groups", "Groups", "g"),
    Entry("/dead-letters", "Dead letters", "d"),
    Entry("/delayed", "Delayed", "y"),
    Entry("/transactions", "Transactions", "x"),
    Entry("/brokers", "Brokers", "b"),
    Entry("/accounts", "Accounts", "a", admin_only=True),
    Entry("/audit", "Audit log", "l", admin_only=True),
)
