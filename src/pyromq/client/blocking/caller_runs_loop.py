"""An event loop that is run by the threads that wait for results. A turn is one step of the loop.

The calling thread runs the loop while it waits: handing work to another thread and back costs more than a request to a
broker. Three kinds of threads run the loop:

    caller          takes the loop if no thread runs it, runs it until its own work is done, and leaves it
    another caller  meanwhile gives its work to the loop and waits; it takes over when the first caller leaves
    keeper          a background thread: runs the loop when no caller has for some ms, so that heartbeats are sent and
                    replies are read; it leaves as soon as a caller comes

At any time at most one thread turns the loop; that thread holds `_turning`. Only this thread touches the state of async
clients. Clients of one instance share one loop; clients without an instance share another.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar

from pyromq.client.blocking.sigint import shield
from pyromq.errors import NotRunning
from pyromq.logs import logger_of
from pyromq.platforms import platform

logger = logger_of(__name__)

P = ParamSpec("P")
T = TypeVar("T")

TAKE_OVER_SECONDS = 0.005  # time without a turn of the loop after which the keeper runs it
TURN_EACH = 64  # limit of works submitted without waiting between two turns of the loop
TURN_SECONDS = 0.0005  # longest time between two turns of the loop while works are submitted


def take(shared_as: str | None, user: object) -> CallerRunsLoop:
    """Return the running loop of an instance, started if necessary, with `user` added to its users."""
    with _sharing:
        caller_loop = _shared.get(shared_as)
        if caller_loop is None:
            caller_loop = _shared[shared_as] = CallerRunsLoop(shared_as)
        caller_loop.users.add(user)
        return caller_loop


def give_back(caller_loop: CallerRunsLoop, user: object) -> None:
    """Remove a user of the loop. The loop ends with its last user."""
    with _sharing:
        caller_loop.users.discard(user)
        if caller_loop.users:
            return
        _shared.pop(caller_loop.shared_as, None)
    caller_loop.end()


def forget_all() -> None:
    """Forget all loops, in the child of a fork: they belong to the parent process."""
    global _sharing
    _sharing = threading.Lock()  # the inherited lock may be held by a thread that exists only in the parent
    _shared.clear()


class _Selector(selectors.DefaultSelector):
    """A selector that lets Ctrl-C interrupt the main thread only while it waits in `select`, never in a callback."""

    def select(self, timeout: float | None = None) -> Any:
        if threading.get_ident() != shield.main_thread:
            return super().select(timeout)
        if platform.LONGEST_SELECT is not None:
            timeout = min(timeout if timeout is not None else platform.LONGEST_SELECT, platform.LONGEST_SELECT)
        shield.waiting = True
        try:
            return super().select(0 if shield.pending else timeout)
        finally:
            shield.waiting = False


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that is run turn by turn: one step per call.

    `_run_once`, `_ready` and `_scheduled` are private but unchanged since Python 3.4. The public `run_until_complete`
    adds set-up and tear-down that cost as much as a request to a broker.
    """

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self) -> None:
        self._events = _Selector()
        super().__init__(self._events)

    def turn(self) -> None:
        """Run the callbacks that are ready; if there are none, wait for an event and run its callback.

        `_run_once` costs twice as much as the usual case here: nothing is ready, no timer is due, one socket is read.
        """
        wait = self._scheduled[0].when() - self.time() if self._scheduled else None
        if self._ready or (wait is not None and wait <= 0):
            self._run_once()  # type: ignore[attr-defined]
            return
        events = self._events.select(wait)
        if len(events) == 1:
            key, mask = events[0]
            reader = key.data[0]
            if mask == selectors.EVENT_READ and not reader._cancelled:
                reader._run()
                return
        self._process_events(events)  # type: ignore[attr-defined]

    def turn_now(self) -> None:
        """Run the callbacks that are ready, without waiting for events."""
        self.call_soon(_nothing)  # a ready callback, so that the selector does not wait
        self._run_once()  # type: ignore[attr-defined]

    def abandon(self) -> None:
        """Mark the loop as closed. In a forked child, really closing it would change the parent's epoll set."""
        self._closed = True


def _nothing() -> None:
    pass


class _WaitingCaller:
    """A caller that waits while another thread runs the loop and so runs the caller's work."""

    def __init__(self, owner: object) -> None:
        self.owner = owner
        self.woken = threading.Event()
        self.future: asyncio.Future[Any] | None = None
        self.error: BaseException | None = None

    @property
    def done(self) -> bool:
        return self.error is not None or (self.future is not None and self.future.done())


class CallerRunsLoop:
    """Runs async work for blocking callers in any number of threads, until `end`."""

    def __init__(self, shared_as: str | None) -> None:
        self.shared_as = shared_as
        self.users: set[object] = set()  # strong references: a forgotten client is closed at program exit
        self.loop = _Loop()
        self._turning = threading.Lock()
        self._lock = threading.Lock()  # guards `_waiting_callers`, `_queued` and `_refusal`
        self._waiting_callers: list[_WaitingCaller] = []
        self._queued = 0  # number of works given to the thread that runs the loop and not begun yet
        # Owner and call of the thread that runs the loop.
        self._own_call: tuple[object, asyncio.Future[Any]] | None = None
        self._turned_at = time.monotonic()
        self._unturned = 0
        self._keeper_stays = True
        self._refusal: str | None = None
        self._keeper = threading.Thread(target=self._keep, name="pyromq keeper", daemon=True)
        self._keeper.start()

    def run(self, owner: object, start: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the awaitable `start(...)`; `start` is called on the loop.

        `owner` is the client that makes the call, see `cancel_calls`.
        """
        shielded = shield.enter()
        try:
            if not self._turning.acquire(blocking=False):
                return self._hand_over(owner, partial(start, *args, **kwargs))
            asyncio._set_running_loop(self.loop)
            try:
                if self._queued:
                    self.loop.turn_now()
                return self._finish(owner, as_future(start(*args, **kwargs), self.loop))
            finally:
                asyncio._set_running_loop(None)
                self._leave()
        finally:
            if shielded:
                shield.leave()

    def submit(self, begin: Callable[[], None], queued: Callable[[], None]) -> None:
        """Call `begin` on the loop and return; works submitted in a row share turns of the loop.

        If another thread runs the loop, `queued` is called there instead of `begin`; `queued` must not raise.
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
        """Give up the loop in the child of a fork: the connections belong to the parent."""
        self.loop.abandon()

    def end(self) -> None:
        """Stop the keeper, cancel unfinished tasks and close the loop; waiting callers raise `NotRunning`."""
        with self._lock:
            self._refusal = "the client is closed; make a new one"
        self._keeper_stays = False
        self.loop.call_soon_threadsafe(_nothing)
        self._keeper.join()
        with self._turning:
            self._on_loop(self._cancel_leftovers)
            self.loop.close()
        with self._lock:
            for caller in self._waiting_callers:
                caller.woken.set()

    def _cancel_leftovers(self) -> None:
        """Cancel the tasks of calls that Ctrl-C or closing the client interrupted."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        while not all(task.done() for task in tasks):
            self.loop.turn()
        self.loop.turn_now()

    def _on_loop(self, work: Callable[..., T], *args: Any) -> T:
        """Call `work`, which runs the loop, after the works queued by other threads have begun."""
        assert asyncio._get_running_loop() is None, "the running event loop of the application would be lost"
        asyncio._set_running_loop(self.loop)
        try:
            if self._queued:
                self.loop.turn_now()
            return work(*args)
        finally:
            asyncio._set_running_loop(None)

    def _queue(self, work: Callable[[], None]) -> None:
        """Give work to the thread that runs the loop. If the keeper runs it, the keeper leaves."""
        with self._lock:  # works queued before `end` still run; after it no work is queued
            if self._refusal is not None:
                raise NotRunning(self._refusal)
            self._queued += 1
            self._keeper_stays = False
            self._call_soon(partial(self._unqueue, work))

    def _unqueue(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._queued -= 1
        work()

    def _finish(self, owner: object, future: asyncio.Future[T]) -> T:
        """Run the loop until the future is done. Return the future's result."""
        self._own_call = owner, future
        turn = self.loop.turn
        try:
            while not future.done():
                turn()
                if shield.pending:
                    shield.deliver()
        finally:
            self._own_call = None
            if not future.done():
                future.cancel()  # the cancelled task ends in later turns of the loop
        return future.result()

    async def cancel_calls(self, owner: object) -> None:
        """Cancel the running calls of one client, in all threads, and wait until they have ended."""
        own = asyncio.current_task()
        calls = [call for call in self._calls() if call[0] is owner and call[1] is not own]
        for _, future in calls:
            future.cancel()
        await asyncio.gather(*(future for _, future in calls), return_exceptions=True)

    def _calls(self) -> list[tuple[object, asyncio.Future[Any]]]:
        with self._lock:
            calls = [(each.owner, each.future) for each in self._waiting_callers if each.future is not None]
        return calls if self._own_call is None else [*calls, self._own_call]

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
        if self._waiting_callers:
            self._pass_on()

    def _pass_on(self) -> None:
        """Wake a waiting caller to run the loop.

        Callers whose work is done are woken, too: the loop may have been left before their callback ran.
        """
        with self._lock:
            for caller in self._waiting_callers:
                caller.woken.set()
                if not caller.done:
                    return

    def _hand_over(self, owner: object, start: Callable[[], Awaitable[T]]) -> T:
        """Let the thread that runs the loop do the work, and return its result. Take over if that thread leaves."""
        caller = _WaitingCaller(owner)
        with self._lock:
            self._waiting_callers.append(caller)
        try:
            self._queue(partial(self._begin_handed_over, caller, start))  # this also makes the keeper leave the loop
            self._wait(caller)
        finally:
            with self._lock:
                self._waiting_callers.remove(caller)
            if caller.future is not None and not caller.done:
                self._call_soon(caller.future.cancel)
            if self._waiting_callers and not self._turning.locked():
                self._pass_on()
        if caller.error is not None:
            raise caller.error
        assert caller.future is not None
        return caller.future.result()  # type: ignore[no-any-return]  # `start` has the type

    def _begin_handed_over(self, caller: _WaitingCaller, start: Callable[[], Awaitable[Any]]) -> None:
        try:
            caller.future = as_future(start(), self.loop)
        except Exception as error:  # noqa: BLE001  the caller's thread raises the error
            caller.error = error
            caller.woken.set()
        else:
            caller.future.add_done_callback(lambda _: caller.woken.set())

    def _call_soon(self, function: Callable[[], Any]) -> None:
        try:
            self.loop.call_soon_threadsafe(function)
        except RuntimeError as error:  # another thread has just closed the loop
            raise NotRunning(self._refusal or "the client is closed") from error

    def _wait(self, caller: _WaitingCaller) -> None:
        while not caller.done:
            caller.woken.clear()
            if caller.done:
                return
            if self._refusal is not None:
                raise NotRunning(self._refusal)
            if self._turning.acquire(blocking=False):
                try:
                    self._on_loop(self._turn_for_caller, caller)
                finally:
                    self._leave()
            else:
                self._await_wake(caller)
            shield.deliver()

    def _await_wake(self, caller: _WaitingCaller) -> None:
        main = threading.get_ident() == shield.main_thread
        shield.waiting |= main
        try:
            if not shield.is_due:
                caller.woken.wait()
        finally:
            if main:
                shield.waiting = False

    def _turn_for_caller(self, caller: _WaitingCaller) -> None:
        while not caller.done and not shield.is_due:
            self.loop.turn()

    def _keep(self) -> None:
        """Run the loop while no caller does; the body of the keeper's thread."""
        while self._refusal is None:
            if time.monotonic() - self._turned_at < TAKE_OVER_SECONDS:
                time.sleep(TAKE_OVER_SECONDS)
            elif not self._turning.acquire(blocking=False):
                time.sleep(4 * TAKE_OVER_SECONDS)
            else:
                self._keeper_stays = True
                try:
                    self._on_loop(self._turn_idle)
                except BaseException:  # an exit raised by an application's task must not end the keeper
                    logger.exception("a task raised an exit in the event loop of a client; the loop continues")
                finally:
                    self._leave()

    def _turn_idle(self) -> None:
        self._unturned = 0
        while self._keeper_stays and not self._waiting_callers and self._refusal is None:
            self.loop.turn()


def as_future(awaitable: Awaitable[T], loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
    """Return an awaitable as a future of the loop; a coroutine is started as a task."""
    if isinstance(awaitable, asyncio.Future):
        return awaitable
    return loop.create_task(awaitable)  # type: ignore[arg-type]  # all others are coroutines


_shared: dict[str | None, CallerRunsLoop] = {}
_sharing = threading.Lock()  # guards `_shared` and `users`
