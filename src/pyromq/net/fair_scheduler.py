"""Gives connections whose requests take longer than one slice further slices in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from pyromq.clock import Clock

TURN_SECONDS = 0.002  # of slices per turn of the event loop
_SLICE_SECONDS = 0.0005  # of one connection: with 100 pending connections each waits 50 ms


class Pending(Protocol):
    """A connection with pending requests."""

    def answer_pending(self, until: float) -> None:
        """Answer requests until a monotonic time, in seconds; add itself to the scheduler again if more are pending."""


class FairScheduler:
    """The connections that wait for a slice. While there is one, connections with new requests wait here as well.

    New connections get every second slice: most need only one, and must not wait for all connections that need more.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._new: deque[Pending] = deque()
        self._old: deque[Pending] = deque()
        self._is_new_first = True
        self._working: Pending | None = None

    @property
    def is_empty(self) -> bool:
        return not (self._new or self._old)

    def add(self, connection: Pending) -> None:
        """Give a connection a slice soon. It must not be waiting already."""
        if self.is_empty and self._working is None:
            self._loop.call_soon(self._work)
        (self._old if connection is self._working else self._new).append(connection)

    def _work(self) -> None:
        end = self._clock.monotonic() + TURN_SECONDS
        while not self.is_empty:
            first, second = (self._new, self._old) if self._is_new_first else (self._old, self._new)
            self._is_new_first = not self._is_new_first
            self._working = (first or second).popleft()
            self._working.answer_pending(self._clock.monotonic() + _SLICE_SECONDS)
            if self._clock.monotonic() >= end:
                break
        self._working = None
        if not self.is_empty:
            self._loop.call_soon(self._work)
