"""Fair shares of a limit: each holder may use a part of what the others leave free, so newcomers always find room."""

from __future__ import annotations

from typing import Generic, TypeVar

from pyromq.errors import LimitReached

SHARES = 10  # a holder may use 1/10 of what the others leave: ten greedy ones leave a third, a hundred a tenth

H = TypeVar("H")


def fair_share(limit: int, others: int, *, shares: int = SHARES, least: int = 1) -> int:
    """Return how much one holder may use of a limit of which the others use `others`; always `least`."""
    return max(least, (limit - others) // shares)


class Quota(Generic[H]):
    """The limit `limit`, named `setting`, of all holders together, with each holder's amount.

    A holder is, for example, a connection, a group or an account. `least` is what each may use even if the limit is
    reached, unless `is_hard`: then the limit is never exceeded by `take`.
    """

    def __init__(
        self, setting: str, limit: int, *, shares: int = SHARES, least: int = 1, is_hard: bool = False
    ) -> None:
        self.setting = setting
        self.limit = limit
        self.used = 0
        self._shares = shares
        self._least = least
        self._is_hard = is_hard
        self._amounts: dict[H, int] = {}  # least recently changed first

    def __len__(self) -> int:
        """Return the number of holders."""
        return len(self._amounts)

    def of(self, holder: H) -> int:
        """Return the amount of a holder."""
        return self._amounts.get(holder, 0)

    def share_of(self, holder: H, *, free: int | None = None) -> int:
        """Return how much a holder may use in all. `free` is what is left of the limit, if other uses count as well."""
        left = self.limit - self.used if free is None else free
        return max(self._least, (left + self.of(holder)) // self._shares)

    def check(self, holder: H, amount: int = 1, *, text: str, free: int | None = None) -> None:
        """Raise `LimitReached` with this text if the holder may not take `amount` more."""
        is_full = self._is_hard and self.used + amount > self.limit
        if is_full or self.of(holder) + amount > self.share_of(holder, free=free):
            raise LimitReached(self.setting, self.limit, text)

    def take(self, holder: H, amount: int = 1, *, text: str, free: int | None = None) -> None:
        """Add to the amount of a holder. Raises as `check` does."""
        self.check(holder, amount, text=text, free=free)
        self.add(holder, amount)

    def add(self, holder: H, amount: int = 1) -> None:
        """Add to the amount of a holder, even beyond its share; for what exists already."""
        self.hold(holder, self.of(holder) + amount)

    def give(self, holder: H, amount: int = 1) -> None:
        """Give an amount back."""
        self.hold(holder, self.of(holder) - amount)

    def hold(self, holder: H, amount: int) -> None:
        """Set the amount of a holder."""
        self.used += amount - self._amounts.pop(holder, 0)
        if amount:
            self._amounts[holder] = amount

    def end(self, holder: H) -> None:
        """Give everything back that a holder has."""
        self.hold(holder, 0)

    def idlest(self) -> H | None:
        """Return the holder whose amount changed least recently; None while the limit is not exceeded."""
        return next(iter(self._amounts)) if self.used > self.limit else None
