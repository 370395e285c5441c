"""Noticing that who reads standard output is gone while there is nothing to write, as `head` is after its last line."""

from __future__ import annotations

import errno
import select
import sys
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

LOOK_MS = 1000  # how long the thread outlives what it watched for; a closed pipe wakes it at once


class OutputWatch:
    """Calls `end` in a thread of its own when standard output is a pipe or socket that nobody reads any more.

    Leaving it then raises `BrokenPipeError`, as the next write would have.
    """

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self._closed = False
        self._left = threading.Event()

    def __enter__(self) -> Self:
        try:
            descriptor = sys.stdout.fileno()
        except OSError:  # not a file
            return self
        threading.Thread(target=self._watch, args=(descriptor,), name="pyromq output", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        if self._closed:
            raise BrokenPipeError(errno.EPIPE, "nobody reads standard output") from error

    def _watch(self, descriptor: int) -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # errors and hang-ups are told unasked
        while not self._left.is_set():
            if poll.poll(LOOK_MS):
                self._closed = True
                self._end()
                return
