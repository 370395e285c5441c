"""Tasks that await async listeners on the event loop, a bounded number at once. Knows no queues and no brokers."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, Protocol, TypeVar, cast

from pyromq.net.tasks import Tasks

TURN_SECONDS = 0.002  # listeners that never wait let others run after so long


class TaskWork(Protocol):
    """What a task can do: one or several calls of listeners. False when there was none."""

    async def run_in_task(self) -> bool: ...


W = TypeVar("W", bound=TaskWork)


class ListenerTasks(Generic[W]):
    """At most `count` tasks, started when there is work and ended when there is none.

    A task takes piece after piece: one that does not wait costs no task of its own. `finished` is called for each.
    """

    def __init__(self, count: int, finished: Callable[[W], None], *, name: str) -> None:
        self._count = count
        self._finished = finished
        self._name = name
        self._backlog: deque[W] = deque()
        self._tasks = Tasks()
        self._at: dict[W, asyncio.Task[None]] = {}
        self._running = 0
        self._starting = False

    def submit(self, pieces: Iterable[W]) -> None:
        """Let the listeners of the pieces be awaited, the first ones first."""
        self._backlog.extend(pieces)
        self._start_one()

    def cancel(self, piece: W) -> None:
        """Cancel a listener that takes too long."""
        if (task := self._at.get(piece)) is not None:
            task.cancel()

    async def stop(self) -> None:
        """Cancel the listeners that run and forget the backlog."""
        self._backlog.clear()
        await self._tasks.stop()

    def _start_one(self) -> None:
        if self._backlog and not self._starting and self._running < self._count:
            self._starting = True
            self._running += 1
            self._tasks.start(self._work(), name=self._name)

    async def _work(self) -> None:
        task = cast("asyncio.Task[None]", asyncio.current_task())
        self._starting = False
        turn_ends = time.monotonic() + TURN_SECONDS
        try:
            while self._backlog:
                piece = self._backlog.popleft()
                self._start_one()  # the next piece, should this listener wait
                self._at[piece] = task
                try:
                    ran = await piece.run_in_task()
                finally:
                    del self._at[piece]
                while task.cancelling():  # the listener has hidden that it was cancelled: not to be told to the next
                    task.uncancel()
                if ran:
                    self._finished(piece)
                if time.monotonic() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + TURN_SECONDS
        finally:
            self._running -= 1
            self._start_one()
