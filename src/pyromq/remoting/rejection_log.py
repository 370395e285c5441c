"""Counts and logs the requests that a server refuses, with a limit for the log.

Each connection gets one line per minute, all connections together 100. The next line has the number of omitted lines.
"""

from __future__ import annotations

import logging
from collections import Counter

from pyromq.clock import Clock
from pyromq.errors import LimitReached, MQError
from pyromq.logs import logger_of

logger = logger_of(__name__)

QUIET_SECONDS = 60.0  # time without further lines after a line about a connection
MAX_LINES = 100  # limit of lines within QUIET_SECONDS: a peer may reconnect for each line

UNREADABLE = "unreadableRequests"  # this and the next names are reasons of refusals that are not limits in the settings
UNSUPPORTED = "unsupportedRequests"
FAILED = "failedRequests"
NO_FRAMES = "bytesThatAreNoFrames"
BROKEN_OFF = "framesBrokenOff"
IDLE = "idleConnections"
HANDSHAKES = "failedHandshakes"
NOT_ENCRYPTED = "plainConnections"  # plain connections to ports that require TLS


class RejectionLog:
    """Counts refused requests by reason: the name of the exceeded setting, or one of the reasons in this module."""

    def __init__(self, clock: Clock) -> None:
        self.counts: Counter[str] = Counter()
        self._clock = clock
        self._logged: dict[str, float] = {}  # time of the last line about each connection, oldest first
        self._omitted = 0

    def note(
        self,
        reason: str,
        address: str,
        text: str,
        *arguments: object,
        level: int = logging.WARNING,
        error: BaseException | None = None,
    ) -> None:
        """Count a refusal, and log `text` about the connection unless the limit of lines is reached.

        If `error` is given, an internal error, the traceback is logged.
        """
        self.counts[reason] += 1
        if not self._may_log(address):
            self._omitted += 1
            return
        if self._omitted:
            text += " (%d such lines were left out before this one)"
            arguments = (*arguments, self._omitted)
            self._omitted = 0
        logger.log(level, text, *arguments, exc_info=error)

    def note_limit(self, error: MQError, code: int, address: str) -> None:
        """Count and log the refusal of a request if the error is a reached limit."""
        if isinstance(error, LimitReached):
            self.note(error.setting, address, "request %d of %s is refused: %s", code, address, error)

    def _may_log(self, address: str) -> bool:
        now = self._clock.monotonic()
        while self._logged and (oldest := next(iter(self._logged)), self._logged[oldest])[1] <= now - QUIET_SECONDS:
            del self._logged[oldest]
        if address in self._logged or len(self._logged) >= MAX_LINES:
            return False
        self._logged[address] = now
        return True
