"""The pauses between the attempts of one request, and which failed requests a broker may have executed."""

from __future__ import annotations

from pyromq.clock import Clock
from pyromq.errors import ConnectionLost, DeadlineExceeded, Unavailable

FIRST_PAUSE = 0.02  # seconds before the first retry; each pause is twice the previous one
LONGEST_PAUSE = 0.5  # limit of the seconds between two attempts


class Retry:
    """The attempts of one request, which together may take `seconds`."""

    def __init__(self, clock: Clock, seconds: float, *, first_pause: float = FIRST_PAUSE) -> None:
        self._clock = clock
        self._deadline = clock.monotonic() + seconds
        self._pause = first_pause

    @property
    def left(self) -> float:
        """Seconds left for the next attempt, at least 1 ms."""
        return max(0.001, self._deadline - self._clock.monotonic())

    async def pause(self) -> bool:
        """Wait before the next attempt. Return False immediately if the pause would end after the deadline."""
        if self._clock.monotonic() + self._pause >= self._deadline:
            return False
        await self._clock.sleep(self._pause)
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return True


def may_be_taken(error: Unavailable) -> bool:
    """Return whether a broker may have executed the request that failed with `error`."""
    return isinstance(error, ConnectionLost | DeadlineExceeded)
