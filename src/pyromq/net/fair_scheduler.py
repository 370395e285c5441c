"""Connections whose requests take longer than a slice: each goes on for another slice in turn, others between them."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from pyromq.clock import Clock

TURN_SECONDS = 0.002  # of one turn of the loop
_SLICE_SECONDS = 0.0005  # of one connection: with a hundred of them one waits for 50 ms


class Behind(Protocol):
    """A connection with requests that are not answered yet."""

    def go_on(self, until: float) -> None:
        """Work until then (monotonic seconds), and add itself again if there is more to do."""


class FairScheduler:
    """Who waits for another slice. While anybody does, whoever has new requests waits here, too.

    Newcomers have every other slice: most are done with the first, and must not wait for all that are not.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._new: deque[Behind] = deque()
        self._old: deque[Behind] = deque()
        self._is_newcomers_turn = True
        self._working: Behind | None = None

    @property
    def is_empty(self) -> bool:
        return not (self._new or self._old)

    def add(self, connection: Behind) -> None:
        """Let a connection go on soon. It must not be here already."""
        if self.is_empty and self._working is None:
            self._loop.call_soon(self._work)
        (self._old if connection is self._working else self._new).append(connection)

    def _work(self) -> None:
        end = self._clock.monotonic() + TURN_SECONDS
        while not self.is_empty:
            first, second = (self._new, self._old) if self._is_newcomers_turn else (self._old, self._new)
            self._is_newcomers_turn = not self._is_newcomers_turn
            self._working = (first or second).popleft()
            self._working.go_on(self._clock.monotonic() + _SLICE_SECONDS)
            if self._clock.monotonic() >= end:
                break
        self._working = None
        if not self.is_empty:
            self._loop.call_soon(self._work)
