"""An event loop turned by the threads that wait for it: how blocking code gets work done without handing it over.

The calling thread itself turns the loop while it waits: a hand-over to another thread and back would cost more than
the whole exchange with a broker. Who turned the loop last keeps it until somebody else needs it:

    caller       takes the loop if nobody turns it, turns it until its own work is done, leaves it
    next caller  finds somebody turning it: gives its work to the loop, waits, and goes on turning when that one leaves
    keeper       a background thread: turns the loop when nobody has for some ms, so that heartbeats go on and answers
                 are read, and leaves it as soon as a caller comes

One thread turns the loop at any time (`_turning` is held by it); all state of the async clients is touched by that
thread only. Clients of one instance share one such loop, as do those of none. Knows nothing of clients and messages.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

from pyromq.client.blocking.sigint import shield
from pyromq.errors import NotRunning
from pyromq.logs import logger_of

logger = logger_of(__name__)

T = TypeVar("T")

TAKE_OVER_SECONDS = 0.005  # the keeper turns the loop when nobody has for so long
TURN_EACH = 64  # works submitted without waiting after which the submitter turns the loop once
TURN_SECONDS = 0.0005  # or when the last turn is so long ago


def take(shared_as: str | None, user: object) -> CallerRunsLoop:
    """Return the running loop of this name, or of those without one, for one more client, which it keeps."""
    with _sharing:
        turned = _shared.get(shared_as)
        if turned is None:
            turned = _shared[shared_as] = CallerRunsLoop(shared_as)
        turned.users.add(user)
        return turned


def give_back(turned: CallerRunsLoop, user: object) -> None:
    """Note that a client needs its loop no more; the last one ends it."""
    with _sharing:
        turned.users.discard(user)
        if turned.users:
            return
        _shared.pop(turned.shared_as, None)
    turned.end()


def forget_all() -> None:
    """After a fork, in the child: the parent's loops stay the parent's."""
    global _sharing
    _sharing = threading.Lock()  # a thread that the child does not have may have held it
    _shared.clear()


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


class CallerRunsLoop:
    """Runs async work for blocking callers, from any number of threads, until `end`."""

    def __init__(self, shared_as: str | None) -> None:
        self.shared_as = shared_as
        self.users: set[object] = set()  # lives as long as the keeper: who was started and forgotten is closed at exit
        self.loop = _Loop()
        self._turning = threading.Lock()
        self._lock = threading.Lock()  # guards the next two, and who may still be queued
        self._visitors: list[_Visitor] = []
        self._queued = 0  # submitted works that whoever turns the loop has not begun yet
        self._turned_at = time.monotonic()
        self._unturned = 0
        self._keeper_stays = True
        self._refusal: str | None = None
        self._keeper = threading.Thread(target=self._keep, name="pyromq keeper", daemon=True)
        self._keeper.start()

    def run(self, start: Callable[[], Awaitable[T]]) -> T:
        """Return what the awaitable of `start()` gives; `start` is called on the loop."""
        shielded = shield.enter()
        try:
            if not self._turning.acquire(blocking=False):
                return self._visit(start)
            try:
                result: T = self._on_loop(self._finish, start)
                return result
            finally:
                self._leave()
        finally:
            if shielded:
                shield.leave()

    def submit(self, begin: Callable[[], None], queued: Callable[[], None]) -> None:
        """Call `begin` on the loop, and return; what is submitted in a row shares turns of the loop.

        `queued` is called instead where somebody else turns the loop: it does as `begin`, and never raises.
        """
        shielded = shield.enter()
        try:
            if not self._turning.acquire(blocking=False):
                self._queue(queued)
                return
            try:
                self._on_loop(self._begin, begin)
            finally:
                self._leave()
        finally:
            if shielded:
                shield.leave()

    def abandon(self) -> None:
        """After a fork, in the child: the parent's connections stay the parent's."""
        self.loop.abandon()

    def end(self) -> None:
        """Stop the keeper, end what is left, close the loop; who waits still gets `NotRunning`."""
        with self._lock:
            self._refusal = "the client is closed; make a new one"
        self._keeper_stays = False
        self.loop.call_soon_threadsafe(_nothing)
        self._keeper.join()
        with self._turning:
            self._on_loop(self._cancel_leftovers)
            self.loop.close()
        with self._lock:
            for visitor in self._visitors:
                visitor.woken.set()

    def _cancel_leftovers(self) -> None:
        """End what callers interrupted by Ctrl-C, or cut off by the closing, have left."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            self.loop.turn()
        self.loop.turn_now()

    def _on_loop(self, work: Callable[..., T], *args: Any) -> T:
        """Do work that turns the loop; what was queued before comes first, so that order is kept."""
        assert asyncio._get_running_loop() is None, "the running event loop of the application would be lost"
        asyncio._set_running_loop(self.loop)
        try:
            if self._queued:
                self.loop.turn_now()
            return work(*args)
        finally:
            asyncio._set_running_loop(None)

    def _queue(self, work: Callable[[], None]) -> None:
        """Leave work to whoever turns the loop; the keeper then leaves the loop to those who submit."""
        with self._lock:  # against `end`: what is queued before it is still run, and nothing is queued after it
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
        future = as_future(start(), self.loop)
        turn = self.loop.turn
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
            self.loop.turn_now()
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
            visitor.future = as_future(start(), self.loop)
        except Exception as error:  # noqa: BLE001  whatever it is, the caller raises it
            visitor.error = error
            visitor.woken.set()
        else:
            visitor.future.add_done_callback(lambda _: visitor.woken.set())

    def _call_soon(self, function: Callable[[], Any]) -> None:
        try:
            self.loop.call_soon_threadsafe(function)
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
            self.loop.turn()

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
            self.loop.turn()


def as_future(awaitable: Awaitable[T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    """Return an awaitable as a future of the loop."""
    if isinstance(awaitable, asyncio.Future):
        return awaitable
    return loop.create_task(awaitable)  # type: ignore[arg-type]  # all others are coroutines


_shared: dict[str | None, CallerRunsLoop] = {}
_sharing = threading.Lock()  # guards it, and `users`
