"""Background tasks that belong to an owner, and periodic actions."""

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
    """Run `action` every `seconds`, first after `first_after` (default: `seconds`), until cancelled.

    An action that fails is logged and runs again next time: a task must not end silently.
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
    """The background tasks of one owner."""

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
        """Cancel all tasks and wait until they have ended."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
