"""Tells whoever reads the broker's log how long a long start will take; a short one says nothing."""

from __future__ import annotations

from pyromq.clock import Clock
from pyromq.logs import logger_of

logger = logger_of(__name__)

_FIRST_SECONDS = 2.0
_EVERY_SECONDS = 5.0
_LOOK_RECORDS = 8_192  # between two looks at the clock


class ProgressLine:
    """One walk over the log, from `start` to about `end`. Begins when it is made."""

    def __init__(self, clock: Clock, start: int, end: int) -> None:
        self._clock = clock
        self._start = start
        self._end = end
        self._began = clock.monotonic()
        self._next = self._began + _FIRST_SECONDS
        self._records = 0

    def passed(self, log_offset: int) -> None:
        """Take note of a record. Called for every one."""
        self._records += 1
        if self._records % _LOOK_RECORDS == 0 and (now := self._clock.monotonic()) >= self._next:
            self._next = now + _EVERY_SECONDS
            self._tell(log_offset, now - self._began)

    def _tell(self, log_offset: int, seconds: float) -> None:
        done, total = log_offset - self._start, self._end - self._start
        logger.warning(
            "reading the log: %.1f of %.1f GiB, %d messages a second, about %d s left",
            done / (1 << 30),
            total / (1 << 30),
            self._records / seconds,
            seconds * (total - done) / max(done, 1),
        )
