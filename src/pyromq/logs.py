"""Loggers whose lines are bounded and printable, whatever strangers call their topics, groups and clients."""

from __future__ import annotations

import logging
import traceback

from pyromq.excerpt import excerpt

MOST_LOGGED = 1000  # characters of one argument: errors of ours that give advice have half of it
_MOST_LINES = 200  # of a traceback; Python shows three levels of a recursion


def logger_of(module: str) -> logging.Logger:
    """Return a module's own logger: texts it is given are shortened, and escaped where a line or a terminal breaks.

    So are tracebacks, which may end with a stranger's text: their lines are indented, and so none passes for a line of
    the log's own.
    """
    logger = logging.getLogger(module)
    logger.addFilter(_make_printable)
    return logger


def _make_printable(record: logging.LogRecord) -> bool:
    if isinstance(record.args, tuple):
        record.args = tuple(_printable(each) for each in record.args)
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        lines = "".join(traceback.format_exception(record.exc_info[1])).splitlines()
        kept = [f"  {excerpt(line, MOST_LOGGED)}" for line in lines[-_MOST_LINES:]]
        record.exc_text = "\n".join(kept)
    return True


def _printable(argument: object) -> object:
    """Return what the argument's text is too long or not printable for; else itself, for handlers that look at it."""
    if argument is None or isinstance(argument, int | float):
        return argument
    text = str(argument)
    return argument if len(text) <= MOST_LOGGED and text.isprintable() else excerpt(text, MOST_LOGGED)
