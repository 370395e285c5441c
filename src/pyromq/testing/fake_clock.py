"""A clock for tests, whose time passes only in `advance`."""

from __future__ import annotations

import asyncio
import heapq
from itertools import count

SETTLE_TURNS = 20  # turns of the event loop in which tasks that have woken can run


class FakeClock:
    """A clock that a test moves. Sleeping tasks wake in order of their times."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(now_ms)
        self._seconds = 1_000.0
        self._sleepers: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = count()

    def now_ms(self) -> int:
        return int(self._now_ms)

    def monotonic(self) -> float:
        return self._seconds

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._sleepers, (self._seconds + seconds, next(self._order), future))
        await future

    async def advance(self, seconds: float) -> None:
        """Advance the time by `seconds`. Sleeping tasks wake at their times, and may sleep again.

        Tasks that are ready before run first, at the time before. An hour of an idle cluster has 50,000 wake-ups, which
        take about four seconds.
        """
        await settle()
        end = self._seconds + seconds
        while self._sleepers and self._sleepers[0][0] <= end:
            due, _, future = heapq.heappop(self._sleepers)
            self._move_to(due)
            if not future.done():
                future.set_result(None)
                await settle()
        self._move_to(end)
        await settle()

    def jump(self, seconds: float) -> None:
        """Set the wall clock, as an operator may do; the monotonic time does not change."""
        self._now_ms += seconds * 1000

    def _move_to(self, seconds: float) -> None:
        self._now_ms += (seconds - self._seconds) * 1000
        self._seconds = seconds


async def settle() -> None:
    """Run the event loop for a few turns, so that ready tasks run."""
    for _ in range(SETTLE_TURNS):
        await asyncio.sleep(0)
