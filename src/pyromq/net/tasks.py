"""Background tasks that belong to an owner, periodic actions, and actions that run when they are due."""

from __future__ import annotations

import asyncio
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, TypeVar

from pyromq.clock import Clock
from pyromq.errors import MQError
from pyromq.logs import logger_of

logger = logger_of(__name__)

T = TypeVar("T")

RETRY_SECONDS = 1.0  # pause before a failed action runs again
_LONGEST_SLEEP = 3600.0  # event loops refuse an infinite delay


async def every(
    seconds: float,
    action: Callable[[], Awaitable[None] | None],
    clock: Clock,
    *,
    first_after: float | None = None,
) -> None:
    """Run `action` every `seconds`, first after `first_after` (default: `seconds`), until cancelled.

    An action that fails is logged and runs again at the next time: a task must not end silently.
    """
    await clock.sleep(seconds if first_after is None else first_after)
    faults = _Faults(getattr(action, "__qualname__", str(action)))
    while True:
        with faults:
            result = action()
            if inspect.isawaitable(result):
                await result
        await clock.sleep(seconds)


class Tasks:
    """The background tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

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


def take_error(done: asyncio.Future[Any]) -> None:
    """Retrieve the error of a finished future, because the event loop logs errors that are not retrieved."""
    if not done.cancelled():
        done.exception()


async def shared(future: asyncio.Future[T]) -> T:
    """Return the result of a future that several callers await; cancelling a caller does not cancel the future.

    Unlike `asyncio.shield` in CPython 3.14, logs no error that comes after the cancellation.
    """
    try:
        await asyncio.wait([future])
    except asyncio.CancelledError:
        future.add_done_callback(take_error)
        raise
    return future.result()


def call_soon(work: Callable[[], None]) -> None:
    """Let the running event loop call a function in its next turn. Only for the event loop's own thread."""
    asyncio.get_running_loop().call_soon(work)


def soon_in_this_loop() -> Callable[[Callable[[], object]], object]:
    """Return a function that lets the running event loop call another function; for any thread.

    Without a running event loop the other function is called immediately.
    """
    try:
        return asyncio.get_running_loop().call_soon_threadsafe
    except RuntimeError:
        return lambda work: work()


class Alarm:
    """Runs an action at a time that can be moved.

    `schedule_within` moves the time forward, and may be called before `run`.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = math.inf  # time of the next run in monotonic seconds
        self._sleep: asyncio.Future[None] | None = None

    def schedule_within(self, seconds: float) -> None:
        """Run the action within `seconds`; 0 means in the next turn of the event loop."""
        at = self._clock.monotonic() + seconds
        if at < self._at:
            self._at = at
            if self._sleep is not None:
                self._sleep.cancel()

    @property
    def seconds_left(self) -> float:
        """Seconds until the action runs; infinity if no time is set."""
        return self._at - self._clock.monotonic()

    async def run(self, action: Callable[[], float | None], *, first_after: float = 0.0) -> None:
        """Run the action after `first_after` seconds and then whenever it is due, until cancelled.

        The action returns the seconds until its next run, or None to wait for `schedule_within`. An action that fails
        is logged and runs again a second later.
        """
        self.schedule_within(first_after)
        faults = _Faults(action.__qualname__)
        while True:
            while (left := self.seconds_left) > 0:
                await self._wait(left)
            self._at = math.inf
            seconds: float | None = RETRY_SECONDS
            with faults:
                seconds = action()
            if seconds is not None:
                self.schedule_within(seconds)
            await asyncio.sleep(0)  # other tasks run between two actions

    async def _wait(self, seconds: float) -> None:
        self._sleep = asyncio.ensure_future(self._clock.sleep(min(seconds, _LONGEST_SLEEP)))
        try:
            await asyncio.wait({self._sleep})
        finally:
            self._sleep.cancel()
            self._sleep = None


class _Faults:
    """Context manager that logs the errors of a repeated action.

    An `MQError` is logged when it begins and when it has ended: a full disk must not fill the log, too.
    """

    def __init__(self, action: str) -> None:
        self._action = action
        self._text = ""  # of the error that lasts; empty after a success

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None) -> bool:
        text = ""
        if isinstance(error, MQError):
            text = str(error)
            if text != self._text:
                logger.warning("%s: %s", self._action, error)
        elif isinstance(error, Exception):
            logger.error("%s failed", self._action, exc_info=error)
        elif error is None and self._text:
            logger.info("%s succeeds again", self._action)
        self._text = text
        return isinstance(error, Exception)
