"""A log that takes no message, and what its errors leave behind."""

import gc
from contextlib import suppress

from pyromq.errors import StoreNotWritable


class LogFull(StoreNotWritable):
    """The error of these tests alone: other tests may leave theirs."""


def refuse(*_):
    raise LogFull("the disk is full")


def leaves_errors(deliver):
    """Call `deliver`, which meets a full log. Return whether its error waits for the collector of garbage."""
    gc.disable()
    try:
        with suppress(LogFull):
            deliver()
        return any(isinstance(each, LogFull) for each in gc.get_objects())
    finally:
        gc.enable()
