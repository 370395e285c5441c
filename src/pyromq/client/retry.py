"""Trying again until a deadline, with a pause between attempts that doubles: how a restarted broker is found."""

from __future__ import annotations

from pyromq.clock import Clock

FIRST_PAUSE = 0.02
LONGEST_PAUSE = 0.5


class Retry:
    """The attempts of one question, which has `seconds` for all of them."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._pause = FIRST_PAUSE

    @property
    def left(self) -> float:
        """Seconds that the next attempt may take, a little more than nothing at the end."""
        return max(0.001, self._deadline - self._clock.monotonic())

    async def pause(self) -> bool:
        """Wait before the next attempt. False, at once, where the deadline comes first."""
        if self._clock.monotonic() + self._pause >= self._deadline:
            return False
        await self._clock.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True
