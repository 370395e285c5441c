"""An answer that comes later, and is completed where it is waited for: a future without locks.

A pull that waits for a message has one, and there may be a hundred thousand: a `concurrent.futures.Future` takes nearly
two kilobytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Later(msgspec.Struct, gc=False, eq=False):
    """As a future, for the event loop's thread only; one function may wait for it."""

    _outcome: Any = None
    _waiting: Any = None  # the function that waits; it is forgotten when it is called

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float = 0) -> Any:
        """Return what it was completed with. Raises the error where that was one; it must be done."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def exception(self, timeout: float = 0) -> BaseException | None:
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def set_result(self, outcome: object) -> None:
        """Complete it with what is not None; who waits is called before this returns."""
        self._outcome = outcome
        if (waiting := self._waiting) is not None:
            self._waiting = None
            waiting(self)

    set_exception = set_result

    def add_done_callback(self, waiting: Callable[[Later], object]) -> None:
        if self.done():
            waiting(self)
        else:
            self._waiting = waiting
