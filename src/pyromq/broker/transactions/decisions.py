"""Remembers the latest decisions on half messages, so that a repeated request is answered like the first one."""

from __future__ import annotations

from pyromq.broker.transactions.half_messages import HalfIdentity

REMEMBERED = 5_000  # latest decisions that are always remembered; a table of this size is not moved in memory again


class Decisions:
    """The latest decisions, at least `REMEMBERED` and less than twice as many.

    A half message is known by its identity, or by its log offset if it has none.
    """

    # A decision is kept under a hash of 64 bits: an identity takes four times the memory. A false match would need two
    # equal hashes among a few thousand, and would only answer a request for a decided message without an error. Two
    # tables take turns. A single table that constantly drops its oldest entry would be copied at each 10,000th entry,
    # and the copies would fragment the process's memory.

    def __init__(self) -> None:
        self._latest: dict[int, int] = {}
        self._earlier: dict[int, int] = {}

    def note(self, half: HalfIdentity | int, decision: int) -> None:
        """Remember the decision (COMMIT or ROLLBACK) on a half message."""
        self._latest[hash(half)] = decision
        if len(self._latest) == REMEMBERED:
            self._earlier, self._latest = self._latest, {}

    def find(self, half: HalfIdentity | int) -> int | None:
        """Return the decision on a half message; None if it is not remembered."""
        key = hash(half)
        return self._latest.get(key, self._earlier.get(key))
