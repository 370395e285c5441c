"""Threads that call plain listeners, so that one that blocks holds up nothing else.

A message a thread costs more than most listeners do, so threads take pieces from one backlog and are woken sparingly:
one when pieces come, more only when those at work do not get through within a millisecond. Results go back to the
event loop in bunches. Knows no queues and no brokers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Generic, Protocol, TypeVar

LOOK_AGAIN_SECONDS = 0.001
FAST_PIECES = 10  # as many in that time mean that more threads would only get in each other's way


class ThreadWork(Protocol):
    """What a thread can do: one or several calls of listeners. False when there was none."""

    def run(self) -> bool: ...


W = TypeVar("W", bound=ThreadWork)


class ListenerThreads(Generic[W]):
    """At most `count` threads, started when needed. `finished` is called on the loop for each piece that ran."""

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
        """How many threads there are now."""
        return len(self._threads)

    def submit(self, pieces: Iterable[W]) -> None:
        """Let the listeners of the pieces be called, the first ones first. Called on the loop."""
        self._loop = asyncio.get_running_loop()
        self._backlog.extend(pieces)
        self._wake_one()
        if self._look is None and self._backlog:
            self._finished_before = self._finished_count
            self._look = self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def replace(self) -> None:
        """One of the threads hangs in its listener: let there be another one in its place."""
        self._count += 1
        self._wake_one()

    def shrink(self) -> None:
        """A thread that was replaced is back: let one of them end."""
        self._count -= 1
        if self._idle:
            self._idle.pop().wake.release()

    def stop(self) -> None:
        """Let idle threads end, and others when their listener returns; what is in the backlog is not run."""
        self._count = 0
        self._backlog.clear()
        if self._look is not None:
            self._look.cancel()
            self._look = None
        while self._idle:
            self._idle.pop().wake.release()

    def _wake_one(self) -> bool:
        """Put one more thread to work; false when all are."""
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
        """Wake as many threads as there are pieces left, unless those at work are quick."""
        self._look = None
        left = len(self._backlog)
        quick = self._finished_count - self._finished_before >= FAST_PIECES
        if left and (quick or all([self._wake_one() for _ in range(min(left, self._count))])):
            self._finished_before = self._finished_count
            self._look = self._loop.call_later(LOOK_AGAIN_SECONDS, self._look_again)

    def work(self, thread: _Thread) -> None:
        """Run pieces until there are none, then wait to be woken; the body of each thread."""
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
        """Wait for a call to work; false when the thread is to end."""
        if len(self._threads) > self._count:
            return False
        self._idle.append(thread)
        # Pieces that came between the last look at the backlog and now may have found nobody idle.
        if self._backlog or len(self._threads) > self._count:
            try:
                self._idle.remove(thread)
            except ValueError:
                pass  # somebody is calling this thread already
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
        self._results_asked = False  # before looking: what comes later asks again
        results, finished = self._results, self._finished
        while results:
            finished(results.popleft())


class _Thread(threading.Thread):
    """A daemon: a listener that hangs does not keep the program from ending."""

    def __init__(self, owner: ListenerThreads[Any], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.wake = threading.Lock()
        self.wake.acquire()
        self._owner = owner

    def run(self) -> None:
        self._owner.work(self)
