"""Retries with doubling pauses until a deadline: long enough to reach a restarted broker."""

from __future__ import annotations

from pyromq.clock import Clock

FIRST_PAUSE = 0.02  # seconds
LONGEST_PAUSE = 0.5  # seconds


class Retry:
    """The attempts of one request, limited to `seconds` together."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._pause = FIRST_PAUSE

    @property
    def left(self) -> float:
        """Seconds left for the next attempt, at least 1 ms."""
        return max(0.001, self._deadline - self._clock.monotonic())

    async def pause(self) -> bool:
        """Wait before the next attempt. Return False at once if the deadline comes first."""
        if self._clock.monotonic() + self._pause >= self._deadline:
            return False
        await self._clock.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True
