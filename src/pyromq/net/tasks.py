"""Periodic work with an owner: `every` repeats an action until its task is cancelled."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import logger_of

logger = logger_of(__name__)


async def every(
    seconds: float,
    action: Callable[[], Awaitable[None] | None],
    clock: Clock,
    *,
    first_after: float | None = None,
) -> None:
    """Run `action` each `seconds` for ever, the first time after `first_after` (default: `seconds`).

    A failing action is logged and runs again next time: a loop that dies silently is worse than one that repeats its
    complaint. Cancelling the task ends it.
    """
    await clock.sleep(seconds if first_after is None else first_after)
    while True:
        try:
            result = action()
            if inspect.isawaitable(result):
                await result
        except MQError as error:
            logger.warning("%s: %s", getattr(action, "__qualname__", action), error)
        except Exception:
            logger.exception("%s failed", getattr(action, "__qualname__", action))
        await clock.sleep(seconds)


class Tasks:
    """The tasks of one owner. Leaving cancels them and waits until each has ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task %s died", task.get_name(), exc_info=error)

    async def stop(self) -> None:
        """Cancel all tasks and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
