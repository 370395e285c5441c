"""A future without locks, for replies that complete on the event loop.

Each waiting pull has one. There may be a hundred thousand, and a `concurrent.futures.Future` takes nearly 2 kB.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


class Later(msgspec.Struct, gc=False, eq=False):
    """A future for the event loop's thread only, with one callback."""

    _outcome: Any = None
    _callback: Any = None  # the callback

    def done(self) -> bool:
        return self._outcome is not None

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float = 0) -> Any:
        """Return the result or raise the error. It must be done."""
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome

    def exception(self, timeout: float = 0) -> BaseException | None:
        return self._outcome if isinstance(self._outcome, BaseException) else None

    def set_result(self, outcome: object) -> None:
        """Complete with a result that is not None. The callback is called before this returns."""
        self._outcome = outcome
        if (callback := self._callback) is not None:
            self._callback = None
            callback(self)

    set_exception = set_result

    def add_done_callback(self, callback: Callable[[Later], object]) -> None:
        if self.done():
            callback(self)
        else:
            self._callback = callback
