"""A log that takes no message, and what its errors leave behind."""

import gc
from contextlib import suppress

from pyromq.errors import StoreNotWritable


class LogFull(StoreNotWritable):
    pass


def refuse(*_):
    raise LogFull("the disk is full")


def leaves_errors(deliver):
    """Call `deliver`, which meets a full log. Return whether its error waits for the collector of garbage."""
    gc.disable()
    try:
        before = _errors()  # of earlier tests
        with suppress(LogFull):
            deliver()
        return _errors() > before
    finally:
        gc.enable()


def _errors():
    return sum(type(each) is LogFull for each in gc.get_objects())
