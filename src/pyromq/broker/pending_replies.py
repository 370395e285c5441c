"""Answers that wait, and for how long: what an overloaded broker refuses by, and tells of itself."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future
from typing import TypeVar

from pyromq.clock import Clock

T = TypeVar("T")


class PendingReplies:
    """Futures in the order in which they began to wait. Asked and added to by the loop; completed in any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._begun: deque[tuple[float, Future[object]]] = deque()

    def add(self, future: Future[T]) -> Future[T]:
        """Count a future until it is done."""
        self._drop_done()
        self._begun.append((self._clock.monotonic(), future))  # type: ignore[arg-type]  # its result is nobody's here
        return future

    def __len__(self) -> int:
        self._drop_done()
        return len(self._begun)

    @property
    def oldest_seconds(self) -> float:
        """How long the first one has been waiting; 0.0 where none does."""
        self._drop_done()
        return self._clock.monotonic() - self._begun[0][0] if self._begun else 0.0

    def _drop_done(self) -> None:
        """Behind one that is not done others may be: they count as long as it waits."""
        while self._begun and self._begun[0][1].done():
            self._begun.popleft()
