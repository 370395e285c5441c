"""Loggers whose lines are bounded and printable, whatever names peers give to topics, groups and clients."""

from __future__ import annotations

import logging
import traceback
from types import TracebackType

from pyromq.clock import Clock, SystemClock
from pyromq.excerpt import excerpt

# Name of a logger: clients log the brokers that did not contribute to a result.
PARTIAL_RESULTS = "pyromq.partial_results"
MAX_LOGGED = 1000  # limit of characters in one argument: error texts with advice have half as many
_MAX_LINES = 200  # limit of lines of a traceback; Python shows three levels of a recursion
TRACEBACK_SECONDS = 3600.0  # the traceback of a repeated failure is logged once an hour, so that rotated logs have one
_MAX_KINDS = 100  # limit of kinds of failures that are counted; beyond the limit the oldest kind is forgotten


def logger_of(module: str) -> logging.Logger:
    """Return a module's logger, which shortens long arguments and escapes unprintable characters.

    The logger treats tracebacks alike, since a traceback may end with a peer's text. Lines of tracebacks are indented,
    so that none looks like a line of the log.
    """
    logger = logging.getLogger(module)
    logger.addFilter(_make_printable)
    return logger


class Tracebacks:
    """Counts failures of the application's code, and omits tracebacks that the log has already.

    Two failures are of one kind if they have one type and were raised in the same line. Any thread may call `count`.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._counts: dict[tuple[object, ...], int] = {}
        # Time (s) when the traceback of each kind was logged, oldest first.
        self._logged: dict[tuple[object, ...], float] = {}

    def count(self, error: BaseException | None) -> tuple[str, BaseException | None]:
        """Count a failure; return the end of its log line, and the error as `exc_info`.

        Instead of the error, None is returned if the log has the traceback already.
        """
        if error is None:
            return "", None
        kind, now = (type(error), *_raised_at(error.__traceback__)), self._clock.monotonic()
        self._counts[kind] = count = self._counts.get(kind, 0) + 1
        if now - self._logged.get(kind, now - TRACEBACK_SECONDS) < TRACEBACK_SECONDS:
            return f" (failure {count} of this kind; its traceback is in the log already)", None
        self._logged.pop(kind, None)
        self._logged[kind] = now
        if len(self._logged) > _MAX_KINDS:
            oldest = next(iter(self._logged))
            del self._logged[oldest]
            self._counts.pop(oldest, None)
        return "", error


def _raised_at(trace: TracebackType | None) -> tuple[str, int]:
    """Return the file and the line in which the error was raised."""
    if trace is None:
        return "", 0
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


def _make_printable(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(_printable(each) for each in record.args)
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        lines = "".join(traceback.format_exception(record.exc_info[1])).splitlines()
        kept = [f"  {excerpt(line, MAX_LOGGED)}" for line in lines[-_MAX_LINES:]]
        record.exc_text = "\n".join(kept)
    return True


def _printable(argument: object) -> object:
    """Return an excerpt of a log argument that is too long or unprintable; otherwise return the argument."""
    if argument is None or isinstance(argument, int | float):
        return argument
    text = str(argument)
    return argument if len(text) <= MAX_LOGGED and text.isprintable() else excerpt(text, MAX_LOGGED)
