"""Shares of a table: its entries counted by account, or by connection without one.

An entry counts for its holder until it is removed, also after the connection ends. So the table never evicts one.
"""

from __future__ import annotations

from pyromq.errors import LimitReached


class Holders:
    """Counts entries by holder. A holder's share is half of the room that the others leave.

    `what` names the entries in error texts, in the plural. The setting `setting` limits their number to `most`.
    """

    def __init__(self, what: str, setting: str, most: int) -> None:
        self._what = what
        self._setting = setting
        self._most = most
        self._total = 0
        self._counts: dict[str, int] = {}

    def check(self, holder: str) -> None:
        """Raise `LimitReached` unless the holder may add an entry. While there is room each may have one."""
        own = self._counts.get(holder, 0)
        if self._total >= self._most:
            text = f"this broker keeps {self._total} {self._what}; wait until some are decided or forgotten"
            raise LimitReached(self._setting, self._most, text)
        if own and own >= (self._most - (self._total - own)) // 2:
            text = f"{own} {self._what} of {holder} are its share; wait until some are decided or forgotten"
            raise LimitReached(self._setting, self._most, text)

    def add(self, holder: str, count: int = 1) -> None:
        """Count `count` entries more, even beyond the limit: they exist already."""
        self._total += count
        self._counts[holder] = self._counts.get(holder, 0) + count

    def remove(self, holder: str, count: int = 1) -> None:
        """Count `count` entries less."""
        self._total -= count
        left = self._counts[holder] - count
        if left:
            self._counts[holder] = left
        else:
            del self._counts[holder]
