"""How many entries of a table each account, or each connection without one, has made, and which share it gets.

Entries outlive the connection that made them, and count for it until they go. So the table never has to drop one.
"""

from __future__ import annotations

from pyromq.errors import LimitReached


class Holders:
    """Counts the entries of a table by holder; a holder gets half of what others leave.

    `what` names the entries, in the plural. `setting` limits their number to `most`.
    """

    def __init__(self, what: str, setting: str, most: int) -> None:
        self._what = what
        self._setting = setting
        self._most = most
        self._total = 0
        self._counts: dict[str, int] = {}

    def check(self, holder: str) -> None:
        """Raise `LimitReached` unless the holder may make one more entry. Each may have one while there is room."""
        own = self._counts.get(holder, 0)
        if self._total >= self._most:
            text = f"this broker keeps {self._total} {self._what}; wait until some are decided or forgotten"
            raise LimitReached(self._setting, self._most, text)
        if own and own >= (self._most - (self._total - own)) // 2:
            text = f"{own} {self._what} of {holder} are its share; wait until some are decided or forgotten"
            raise LimitReached(self._setting, self._most, text)

    def add(self, holder: str) -> None:
        """Count one more, whatever the limit is: it is kept already."""
        self._total += 1
        self._counts[holder] = self._counts.get(holder, 0) + 1

    def remove(self, holder: str, count: int = 1) -> None:
        """Count so many less."""
        self._total -= count
        left = self._counts[holder] - count
        if left:
            self._counts[holder] = left
        else:
            del self._counts[holder]
