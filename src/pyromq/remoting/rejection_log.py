"""What a server refuses: counted by reason, and told in a log that nobody can fill.

A connection gets one line a minute, and all of them together a hundred; the next line says how many were left out.
"""

from __future__ import annotations

import logging
from collections import Counter

from pyromq.clock import Clock
from pyromq.errors import LimitReached, MQError
from pyromq.logs import logger_of

logger = logger_of(__name__)

QUIET_SECONDS = 60.0  # after a line about a connection
MOST_LINES = 100  # within that time, about all connections: who connects again for each line is no newcomer

UNREADABLE = "unreadableRequests"  # reasons that are no setting
UNSUPPORTED = "unsupportedRequests"
FAILED = "failedRequests"
NO_FRAMES = "bytesThatAreNoFrames"
BROKEN_OFF = "framesBrokenOff"
IDLE = "idleConnections"
HANDSHAKES = "failedHandshakes"
NOT_ENCRYPTED = "plainConnections"  # where only TLS is taken


class RejectionLog:
    """How often which limit was met, by the setting's name, or by one of the reasons above."""

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._told: dict[str, float] = {}  # when a line about a connection was written; the oldest first
        self._left_out = 0

    def note(
        self,
        reason: str,
        address: str,
        text: str,
        *arguments: object,
        level: int = logging.WARNING,
        error: BaseException | None = None,
    ) -> None:
        """Count, and log the text about the connection of this address, unless there was a line just now.

        With the traceback of `error`, which is a fault of ours.
        """
        self.counts[reason] += 1
        if not self._may_tell(address):
            self._left_out += 1
            return
        if self._left_out:
            text += " (%d such lines were left out before this one)"
            arguments = (*arguments, self._left_out)
            self._left_out = 0
        logger.log(level, text, *arguments, exc_info=error)

    def note_limit(self, error: MQError, code: int, address: str) -> None:
        """Count and log the refusal of a request, if it meets a limit."""
        if isinstance(error, LimitReached):
            self.note(error.setting, address, "request %d of %s is refused: %s", code, address, error)

    def _may_tell(self, address: str) -> bool:
        now = self._clock.monotonic()
        while self._told and (oldest := next(iter(self._told)), self._told[oldest])[1] <= now - QUIET_SECONDS:
            del self._told[oldest]
        if address in self._told or len(self._told) >= MOST_LINES:
            return False
        self._told[address] = now
        return True
