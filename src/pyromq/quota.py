"""Shares a limit fairly: each holder (a connection, a group or an account) may use a part of what the others leave.

New holders therefore always find room.
"""

from __future__ import annotations

import sys
from typing import Generic, TypeVar

from pyromq.errors import LimitReached

SHARES = 10  # a holder may use 1/10 of what the others leave: ten greedy holders leave a third

H = TypeVar("H")


def fair_share(limit: int, others: int, *, shares: int = SHARES, least: int = 1) -> int:
    """Return how much of `limit` one holder (for example a connection) may use.

    `others` is the amount that the other holders use. The result is at least `least`.
    """
    return max(least, (limit - others) // shares)


class Quota(Generic[H]):
    """A limit, named `setting`, on the sum of the amounts that all holders use.

    A holder is, for example, a connection, a group or an account. Each holder may use the amount `least` even if the
    limit is reached, and at most `max_each`. If `is_hard` is true, `acquire` never exceeds the limit.
    """

    def __init__(
        self,
        setting: str,
        limit: int,
        *,
        shares: int = SHARES,
        least: int = 1,
        max_each: int = sys.maxsize,
        is_hard: bool = False,
    ) -> None:
        self.setting = setting
        self.limit = limit
        self.used = 0
        self._shares = shares
        self._least = least
        self._max_each = max_each
        self._is_hard = is_hard
        self._amounts: dict[H, int] = {}  # amount by holder, least recently changed first

    def __len__(self) -> int:
        """Return the number of holders."""
        return len(self._amounts)

    def of(self, holder: H) -> int:
        """Return the amount that a holder uses; 0 for an unknown holder."""
        return self._amounts.get(holder, 0)

    def share_of(self, holder: H, *, free: int | None = None) -> int:
        """Return how much a holder may use in all.

        `free` replaces the unused part of the limit if other uses count, too.
        """
        left = self.limit - self.used if free is None else free
        return min(self._max_each, max(self._least, (left + self.of(holder)) // self._shares))

    def check(self, holder: H, amount: int = 1, *, text: str, free: int | None = None) -> None:
        """Raise `LimitReached` with this text if the holder may not use `amount` more."""
        is_full = self._is_hard and self.used + amount > self.limit
        if is_full or self.of(holder) + amount > self.share_of(holder, free=free):
            raise LimitReached(self.setting, self.limit, text)

    def acquire(self, holder: H, amount: int = 1, *, text: str, free: int | None = None) -> None:
        """Add `amount` to the amount that a holder uses.

        Raises `LimitReached` with this text if the holder may not use so much.
        """
        self.check(holder, amount, text=text, free=free)
        self.add(holder, amount)

    def add(self, holder: H, amount: int = 1) -> None:
        """Add `amount` to the amount that a holder uses, without a check. For uses that cannot be refused."""
        self.hold(holder, self.of(holder) + amount)

    def release(self, holder: H, amount: int = 1) -> None:
        """Subtract `amount` from the amount that a holder uses."""
        self.hold(holder, self.of(holder) - amount)

    def hold(self, holder: H, amount: int) -> None:
        """Set the amount that a holder uses, without a check."""
        self.used += amount - self._amounts.pop(holder, 0)
        if amount:
            self._amounts[holder] = amount

    def end(self, holder: H) -> None:
        """Remove a holder and its amount."""
        self.hold(holder, 0)

    def idlest(self) -> H | None:
        """Return the holder whose amount changed least recently; None unless the limit is exceeded."""
        return next(iter(self._amounts)) if self.used > self.limit else None
