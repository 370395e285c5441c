"""Calls listeners: plain ones in threads, `async` ones in tasks of the event loop, up to a limit for each.

A piece of work is one or several listener calls. This module does not depend on queues and brokers.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar, cast

from pyromq.net.tasks import Tasks

LOOK_AGAIN_SECONDS = 0.001
FAST_PIECES = 10  # pieces finished in LOOK_AGAIN_SECONDS from which on more threads would only slow each other down
TURN_SECONDS = 0.002  # longest time for which listeners that never wait block the event loop


class ListenerWork(Protocol):
    """A piece of work: one or several listener calls. `run` and `run_in_task` return False without a call."""

    @property
    def in_task(self) -> bool: ...

    def run(self) -> bool: ...

    async def run_in_task(self) -> bool: ...


W = TypeVar("W", bound=ListenerWork)
_in_task = attrgetter("in_task")


class ListenerPool(Generic[W]):
    """Runs pieces of work in at most `count` threads and `count` tasks.

    `finished(piece)` is called on the event loop after each piece in which a listener was called.
    """

    def __init__(self, count: int, finished: Callable[[W], None], *, group: str) -> None:
        self._threads = ListenerThreads[W](count, finished, name=f"pyromq {group}")
        self._tasks = ListenerTasks[W](count, finished, name=f"listener of {group}")

    def submit(self, pieces: Iterable[W]) -> None:
        """Run pieces of work. Those for threads begin in order, and so do those for tasks. Called on the event loop."""
        for in_task, group in groupby(pieces, _in_task):
            (self._tasks if in_task else self._threads).submit(group)

    def abandon(self, piece: W) -> None:
        """Cancel a piece of work in a task. For one in a thread, which cannot be cancelled, allow one more thread."""
        if piece.in_task:
            self._tasks.cancel(piece)
        else:
            self._threads.replace()

    def returned(self, piece: W) -> None:
        """End the additional thread that `abandon` allowed, because the listener of `piece` has returned."""
        if not piece.in_task:
            self._threads.shrink()

    def cancel(self, piece: W) -> None:
        """Cancel a piece of work that runs in a task. One that runs in a thread cannot be cancelled."""
        self._tasks.cancel(piece)

    async def stop(self) -> None:
        """Cancel tasks and drop waiting work. Threads end when their listeners return; their results are ignored."""
        self._threads.stop()
        await self._tasks.stop()


class ListenerThreads(Generic[W]):
    """Runs pieces of work in at most `count` threads, which are started when needed.

    `finished(piece)` is called on the event loop. A thread for each message would cost more than most listeners, so
    threads take pieces from one backlog. New pieces wake one thread, and more threads if work is left after a
    millisecond. Results return to the event loop in groups.
    """

    def __init__(self, count: int, finished: Callable[[W], None], *, name: str) -> None:
        self._count = count
        self._finished = finished
        self._name = name
        self._backlog: deque[W] = deque()
        self._results: deque[W] = deque()
        self._results_asked = False
        self._threads: set[_Thread] = set()
        self._idle: deque[_Thread] = deque()
        self._look: asyncio.TimerHandle | None = None
        self._finished_count = 0
        self._finished_before = 0
        self._loop: asyncio.AbstractEventLoop

    @property
    def count(self) -> int:
        """The present number of threads."""
        return len(self._threads)

    def submit(self, pieces: Iterable[W]) -> None:
        """Run pieces of work; they begin in order. Called on the event loop."""
        self._loop = asyncio.get_running_loop()
        self._backlog.extend(pieces)
        self._wake_one()
        if self._look is None and self._backlog:
            self._finished_before = self._finished_count
            self._look = self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def replace(self) -> None:
        """Allow one more thread, because the listener of a running thread does not return."""
        self._count += 1
        self._wake_one()

    def shrink(self) -> None:
        """Allow one thread less, because a listener whose thread was replaced has returned."""
        self._count -= 1
        if self._idle:
            self._idle.pop().wake.release()

    def stop(self) -> None:
        """End idle threads immediately, and others when their listeners return. The backlog is not run."""
        self._count = 0
        self._backlog.clear()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        while self._idle:
            self._idle.pop().wake.release()

    def _wake_one(self) -> bool:
        """Wake an idle thread or start a new one. Return False if all allowed threads are running."""
        try:
            thread = self._idle.pop()
        except IndexError:
            if len(self._threads) >= self._count:
                return False
            thread = _Thread(self, f"{self._name} {len(self._threads) + 1}")
            self._threads.add(thread)
            thread.start()
        else:
            thread.wake.release()
        return True

    def _look_again(self) -> None:
        """Wake a thread for each waiting piece, unless the threads finished `FAST_PIECES` since the last look."""
        self._look = None
        left = len(self._backlog)
        quick = self._finished_count - self._finished_before >= FAST_PIECES
        if left and (quick or all([self._wake_one() for _ in range(min(left, self._count))])):
            self._finished_before = self._finished_count
            self._look = self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def work(self, thread: _Thread) -> None:
        """Run pieces of work from the backlog, and wait while it is empty; each thread runs this method."""
        backlog, results = self._backlog, self._results
        while True:
            while True:
                try:
                    piece = backlog.popleft()
                except IndexError:
                    break
                if piece.run():
                    results.append(piece)
                    self._finished_count += 1
                    if not self._results_asked:
                        self._ask_results()
            if not self._rest(thread):
                self._threads.discard(thread)
                return

    def _rest(self, thread: _Thread) -> bool:
        """Wait until this thread is woken. Return False if the thread must end."""
        if len(self._threads) > self._count:
            return False
        self._idle.append(thread)
        # A piece submitted after the backlog was found empty may have found no idle thread to wake.
        if self._backlog or len(self._threads) > self._count:
            try:
                self._idle.remove(thread)
            except ValueError:
                pass  # this thread is being woken
            else:
                return len(self._threads) <= self._count
        thread.wake.acquire()
        return len(self._threads) <= self._count

    def _ask_results(self) -> None:
        self._results_asked = True
        try:
            self._loop.call_soon_threadsafe(self._hand_results)
        except RuntimeError:
            pass  # the loop is closed: the consumer was stopped while this listener ran

    def _hand_results(self) -> None:
        # Cleared before the results are read, so that a result added meanwhile schedules `_hand_results` again.
        self._results_asked = False
        results, finished = self._results, self._finished
        while results:
            finished(results.popleft())


class _Thread(threading.Thread):
    """A daemon thread: a listener that does not return must not keep the program from ending."""

    def __init__(self, owner: ListenerThreads[Any], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.wake = threading.Lock()
        self.wake.acquire()
        self._owner = owner

    def run(self) -> None:
        self._owner.work(self)


class ListenerTasks(Generic[W]):
    """Runs pieces of work in at most `count` tasks, started when there is work and ended when there is none.

    A task runs several pieces after each other, so a listener that does not wait needs no task of its own.
    `finished(piece)` is called after each piece.
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
        """Run pieces of work; they begin in order."""
        self._backlog.extend(pieces)
        self._start_one()

    def cancel(self, piece: W) -> None:
        """Cancel the task that runs a piece of work; no effect if the piece is not running."""
        if (task := self._at.get(piece)) is not None:
            task.cancel()

    async def stop(self) -> None:
        """Cancel the running listeners and drop the work that waits."""
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
                self._start_one()  # a second task runs the next piece while this listener waits
                self._at[piece] = task
                try:
                    ran = await piece.run_in_task()
                finally:
                    del self._at[piece]
                while task.cancelling():  # a listener suppressed a cancellation, which must not reach the next one
                    task.uncancel()
                if ran:
                    self._finished(piece)
                if time.monotonic() > turn_ends:
                    await asyncio.sleep(0)
                    turn_ends = time.monotonic() + TURN_SECONDS
        finally:
            self._running -= 1
            self._start_one()
