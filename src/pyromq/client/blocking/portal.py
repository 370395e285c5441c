"""The way from blocking code to the event loop of one blocking client.

The calling thread itself turns the loop while it waits: a hand-over to another thread and back would cost more than
the whole exchange with a broker. Who turned the loop last keeps it until somebody else needs it:

    caller       takes the loop if nobody turns it, turns it until its own work is done, leaves it
    next caller  finds somebody turning it: gives its work to the loop, waits, and goes on turning when that one leaves
    keeper       a background thread: turns the loop when nobody has for some ms, so that heartbeats go on and answers
                 are read, and leaves it as soon as a caller comes

One thread turns the loop at any time (`_turning` is held by it); all state of the async clients is touched by that
thread only. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import logging
import os
import selectors
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from pyromq.client.blocking.sigint import shield
from pyromq.errors import NotRunning, UsageError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TAKE_OVER_SECONDS = 0.005  # the keeper turns the loop when nobody has for so long
TURN_EACH = 64  # works submitted without waiting after which the submitter turns the loop once
TURN_SECONDS = 0.0005  # or when the last turn is so long ago
EXIT_SECONDS = 5.0  # what closing at the end of the program may take


class _Selector(selectors.DefaultSelector):
    """Lets Ctrl-C through while the main thread waits here: no callback is interrupted half-way."""

    def select(self, timeout: float | None = None) -> Any:
        if threading.get_ident() != shield.main_thread:
            return super().select(timeout)
        shield.waiting = True
        try:
            return super().select(timeout)
        finally:
            shield.waiting = False


class _Loop(asyncio.SelectorEventLoop):
    """A loop turned by hand. `_run_once` is private but unchanged since Python 3.4; `run_until_complete`, which does
    the same between set-up and tear-down, costs as much as a whole exchange with a broker."""

    def __init__(self) -> None:
        super().__init__(_Selector())

    def turn(self) -> None:
        """Wait for something to happen and run what is ready."""
        self._run_once()  # type: ignore[attr-defined]

    def turn_now(self) -> None:
        """Run what is ready without waiting."""
        self.call_soon(_nothing)  # so that the selector does not wait
        self._run_once()  # type: ignore[attr-defined]

    def abandon(self) -> None:
        """Count as closed without closing: in a forked child even `close` would change the parent's epoll set."""
        self._closed = True


def _nothing() -> None:
    pass


class _Visitor:
    """A caller that found somebody else turning the loop."""

    def __init__(self) -> None:
        self.woken = threading.Event()
        self.future: asyncio.Future[Any] | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or (self.future is not None and self.future.done())


class Outcome(concurrent.futures.Future[T]):
    """The future of work that nobody waits for yet; who asks for its result turns the loop meanwhile."""

    def __init__(self, portal: Portal) -> None:
        super().__init__()
        self._portal = portal

    def result(self, timeout: float | None = None) -> T:
        self._portal.turn_for(self, timeout)
        return super().result(0 if timeout is not None else None)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._portal.turn_for(self, timeout)
        return super().exception(0 if timeout is not None else None)

    def copy(self, future: asyncio.Future[T]) -> None:
        """Take over what an asyncio future holds."""
        if not self.set_running_or_notify_cancel():
            return
        if future.cancelled():
            super().set_exception(asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(future.result())


class Portal:
    """Runs async work for blocking callers, from any number of threads. `owner_close` is called at program exit."""

    def __init__(self, owner_close: Callable[[], None]) -> None:
        self._owner_close = owner_close
        self._loop: _Loop
        self._keeper: threading.Thread
        self._turning = threading.Lock()
        self._lock = threading.Lock()  # guards the next two, and who may still be queued
        self._visitors: list[_Visitor] = []
        self._queued = 0  # submitted works that whoever turns the loop has not begun yet
        self._turned_at = 0.0
        self._unturned = 0
        self._keeper_stays = True
        self._refusal: str | None = "the client is not running: start it with `with` or start()"

    def start(self, start: Callable[[], Awaitable[None]]) -> None:
        """Open the portal and run the client's own start; closed again when that fails."""
        if self._refusal is None:
            raise UsageError("the client is running already")
        self._loop = _Loop()
        self._keeper = threading.Thread(target=self._keep, name="pyromq keeper", daemon=True)
        self._turned_at = time.monotonic()
        self._refusal = None
        _portals.add(self)
        self._keeper.start()
        try:
            self.run(start)
        except BaseException:
            self._shut()
            raise

    def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run the client's own close, stop the keeper, close the loop; later calls raise `NotRunning`. Idempotent."""
        with self._lock:
            first = self in _portals
            _portals.discard(self)
        if not first:
            return
        try:
            self.run(close)
        finally:
            self._shut()

    def run(self, start: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the awaitable of `start(...)` gives; `start` is called on the loop.

        Raises `UsageError` inside a running event loop, `NotRunning` after `close` and in a forked child.
        """
        self._check()
        shielded = shield.enter()
        try:
            if not self._turning.acquire(blocking=False):
                return self._visit(partial(start, *args, **kwargs))
            try:
                result: T = self._on_loop(self._finish, partial(start, *args, **kwargs))
                return result
            finally:
                self._leave()
        finally:
            if shielded:
                shield.leave()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what a plain function gives when it is called on the loop."""

        async def called() -> T:
            return function(*args, **kwargs)

        return self.run(called)

    def submit(self, start: Callable[P, asyncio.Future[T]], *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Begin work and return at once; what is submitted in a row shares turns of the loop.

        Raises what `start` itself raises, when nobody else turns the loop; otherwise the outcome has it.
        """
        self._check()
        outcome: Outcome[T] = Outcome(self)

        def begin() -> None:
            start(*args, **kwargs).add_done_callback(outcome.copy)

        shielded = shield.enter()
        try:
            if not self._turning.acquire(blocking=False):
                self._queue(partial(_told, begin, outcome))
                return outcome
            try:
                self._on_loop(self._begin, begin)
            finally:
                self._leave()
        finally:
            if shielded:
                shield.leave()
        return outcome

    def turn_for(self, outcome: Outcome[Any], timeout: float | None) -> None:
        """Turn the loop, or let others turn it, until the outcome is there or for `timeout` seconds."""
        if outcome.done() or self._refusal is not None or asyncio._get_running_loop() is not None:
            return

        async def wait() -> None:
            there = asyncio.Event()
            loop = self._loop
            outcome.add_done_callback(lambda _: loop.call_soon_threadsafe(there.set))
            try:
                async with asyncio.timeout(timeout):
                    await there.wait()
            except TimeoutError:
                pass  # the caller looks at the outcome itself

        self.run(wait)

    def close_at_exit(self) -> None:
        """Close the client that owns this portal, if the program forgot; never for longer than `EXIT_SECONDS`."""
        closing = threading.Thread(target=self._owner_close, daemon=True)
        closing.start()
        closing.join(EXIT_SECONDS)

    def abandon(self) -> None:
        """After a fork, in the child: refuse every call. The parent's connections stay the parent's."""
        self._refusal = f"this client was made before fork(); make a new one in process {os.getpid()}"
        self._loop.abandon()

    def _check(self) -> None:
        if self._refusal is not None:
            raise NotRunning(self._refusal)
        if asyncio._get_running_loop() is not None:
            raise UsageError(
                "a blocking client was called inside a running event loop; use the Async class of the same name there"
            )

    def _shut(self) -> None:
        with self._lock:
            self._refusal = "the client is closed; make a new one"
        _portals.discard(self)
        self._keeper_stays = False
        self._loop.call_soon_threadsafe(_nothing)
        self._keeper.join()
        with self._turning:
            self._on_loop(self._cancel_leftovers)
            self._loop.close()
        with self._lock:
            for visitor in self._visitors:
                visitor.woken.set()

    def _cancel_leftovers(self) -> None:
        """End what callers interrupted by Ctrl-C, or cut off by the closing, have left."""
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            self._loop.turn()
        self._loop.turn_now()

    def _on_loop(self, work: Callable[..., T], *args: Any) -> T:
        """Do work that turns the loop; what was queued before comes first, so that order is kept."""
        asyncio._set_running_loop(self._loop)
        try:
            if self._queued:
                self._loop.turn_now()
            return work(*args)
        finally:
            asyncio._set_running_loop(None)

    def _queue(self, work: Callable[[], None]) -> None:
        """Leave work to whoever turns the loop; the keeper then leaves the loop to those who submit."""
        with self._lock:  # against `_shut`: what is queued before it is still run, and nothing is queued after it
            if self._refusal is not None:
                raise NotRunning(self._refusal)
            self._queued += 1
            self._keeper_stays = False
            self._call_soon(partial(self._unqueue, work))

    def _unqueue(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._queued -= 1
        work()

    def _finish(self, start: Callable[[], Awaitable[T]]) -> T:
        """Start work and turn the loop until it is done."""
        future = _as_future(start(), self._loop)
        turn = self._loop.turn
        try:
            while not future.done():
                turn()
                if shield.calls_off:
                    raise KeyboardInterrupt  # takes the place of what the program's handler does on leaving
        finally:
            if not future.done():
                future.cancel()  # it winds down in later turns
        return future.result()

    def _begin(self, begin: Callable[[], None]) -> None:
        begin()
        self._unturned += 1
        if self._unturned >= TURN_EACH or time.monotonic() - self._turned_at > TURN_SECONDS:
            self._unturned = 0
            self._loop.turn_now()
            self._turned_at = time.monotonic()

    def _leave(self) -> None:
        if not self._unturned:
            self._turned_at = time.monotonic()
        self._turning.release()
        if self._visitors:
            self._pass_on()

    def _pass_on(self) -> None:
        """Nobody turns the loop, but somebody waits: let one of those go on with it.

        Who is done is told too: the loop may have been left before it ran the callback that does.
        """
        with self._lock:
            for visitor in self._visitors:
                visitor.woken.set()
                if not visitor.done:
                    return

    def _visit(self, start: Callable[[], Awaitable[T]]) -> T:
        """Give the work to whoever turns the loop, and turn it oneself when that one leaves before it is done."""
        visitor = _Visitor()
        with self._lock:
            self._visitors.append(visitor)
        try:
            self._queue(partial(self._begin_visit, visitor, start))  # also wakes the keeper, which then leaves
            self._wait(visitor)
        finally:
            with self._lock:
                self._visitors.remove(visitor)
            if visitor.future is not None and not visitor.done:
                self._call_soon(visitor.future.cancel)
            if self._visitors and not self._turning.locked():
                self._pass_on()
        if visitor.error is not None:
            raise visitor.error
        assert visitor.future is not None
        return visitor.future.result()  # type: ignore[no-any-return]  # typed by `start`

    def _begin_visit(self, visitor: _Visitor, start: Callable[[], Awaitable[Any]]) -> None:
        try:
            visitor.future = _as_future(start(), self._loop)
        except Exception as error:  # noqa: BLE001  whatever it is, the caller raises it
            visitor.error = error
            visitor.woken.set()
        else:
            visitor.future.add_done_callback(lambda _: visitor.woken.set())

    def _call_soon(self, function: Callable[[], Any]) -> None:
        try:
            self._loop.call_soon_threadsafe(function)
        except RuntimeError as error:  # closed by another thread just now
            raise NotRunning(self._refusal or "the client is closed") from error

    def _wait(self, visitor: _Visitor) -> None:
        while not visitor.done:
            visitor.woken.clear()
            if visitor.done:
                return
            if self._refusal is not None:
                raise NotRunning(self._refusal)
            if self._turning.acquire(blocking=False):
                try:
                    self._on_loop(self._turn_for_visitor, visitor)
                finally:
                    self._leave()
            else:
                self._await_wake(visitor)
            if shield.calls_off:
                raise KeyboardInterrupt

    def _await_wake(self, visitor: _Visitor) -> None:
        main = threading.get_ident() == shield.main_thread
        shield.waiting |= main
        try:
            visitor.woken.wait()
        finally:
            if main:
                shield.waiting = False

    def _turn_for_visitor(self, visitor: _Visitor) -> None:
        while not visitor.done and not shield.calls_off:
            self._loop.turn()

    def _keep(self) -> None:
        """The keeper's thread."""
        while self._refusal is None:
            if time.monotonic() - self._turned_at < TAKE_OVER_SECONDS:
                time.sleep(TAKE_OVER_SECONDS)
            elif not self._turning.acquire(blocking=False):
                time.sleep(4 * TAKE_OVER_SECONDS)
            else:
                self._keeper_stays = True
                try:
                    self._on_loop(self._turn_for_nobody)
                except BaseException:  # a task of the application's on our loop exits: not from here
                    logger.exception("a task exits in the event loop of a client, which goes on")
                finally:
                    self._leave()

    def _turn_for_nobody(self) -> None:
        self._unturned = 0
        while self._keeper_stays and not self._visitors and self._refusal is None:
            self._loop.turn()


def _as_future(awaitable: Awaitable[T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    if isinstance(awaitable, asyncio.Future):
        return awaitable
    return loop.create_task(awaitable)  # type: ignore[arg-type]  # all others are coroutines


def _told(begin: Callable[[], None], outcome: Outcome[Any]) -> None:
    try:
        begin()
    except Exception as error:  # noqa: BLE001  whatever it is, the caller is told by the outcome
        outcome.set_exception(error)


_portals: WeakSet[Portal] = WeakSet()


@atexit.register
def _close_all() -> None:
    for portal in list(_portals):
        portal.close_at_exit()


def _abandon_all() -> None:
    shield.main_thread = threading.get_ident()  # the forking thread is the child's main thread
    for portal in list(_portals):
        portal.abandon()
    _portals.clear()


os.register_at_fork(after_in_child=_abandon_all)
