"""The way from blocking code to the async client behind it: each client has a portal.

Portals of one instance share an event loop, and so do all that have none: their clients share connections. Who turns
the loop is said in `turned_loop`. Knows nothing of messages.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ParamSpec, TypeVar
from weakref import WeakSet

from pyromq.client.blocking.caller_runs_loop import CallerRunsLoop, as_future, forget_all, give_back, take
from pyromq.client.blocking.sigint import shield
from pyromq.client.cluster.shared_connections import share_on
from pyromq.errors import NotRunning, UsageError

P = ParamSpec("P")
T = TypeVar("T")

EXIT_SECONDS = 5.0  # what closing at the end of the program may take


def refuse_running_loop(instead: str = "the Async class of the same name") -> None:
    """Raise `UsageError` in a thread whose event loop is running: blocking it would stop the application's tasks."""
    if asyncio._get_running_loop() is not None:
        raise UsageError(f"a blocking client was called inside a running event loop; use {instead} there")


class Outcome(concurrent.futures.Future[T]):
    """The future of work that nobody waits for yet; who asks for its result turns the loop meanwhile."""

    def __init__(self, portal: BlockingRunner) -> None:
        super().__init__()
        self._runner = portal

    def result(self, timeout: float | None = None) -> T:
        self._runner.turn_for(self, timeout)
        return super().result(0 if timeout is not None else None)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._runner.turn_for(self, timeout)
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


class BlockingRunner:
    """Runs async work for blocking callers, from any number of threads. `owner_close` is called at program exit.

    Portals of one `instance` share a loop, those of none another.
    """

    def __init__(self, owner_close: Callable[[], None], instance: str | None = None) -> None:
        self._owner_close = owner_close
        self._instance = instance
        self._turned: CallerRunsLoop
        self._lock = threading.Lock()  # guards who starts and who closes
        self._calls: set[asyncio.Future[Any]] = set()  # that are not done
        self._refusal: str | None = "the client is not running: start it with `with` or start()"
        self.was_started = False  # stays True when the client is closed

    def start(self, start: Callable[[], Awaitable[None]]) -> None:
        """Open the portal and run the client's own start; closed again when that fails.

        Raises `UsageError` inside a running event loop.
        """
        refuse_running_loop()
        with self._lock:
            if self._refusal is None:
                raise UsageError("the client is running already")
            self._turned = take(self._instance, self)
            if self._instance is None:
                share_on(self._turned.loop)
            self._refusal = None
            _portals.add(self)
        try:
            self.run(start)
        except BaseException:
            self._shut()
            raise
        self.was_started = True

    def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run the client's own close, and end a loop nobody else needs; later calls raise `NotRunning`. Idempotent.

        Raises `UsageError` inside a running event loop: the client stays open.
        """
        with self._lock:
            if self not in _portals:
                return
            refuse_running_loop()
            _portals.discard(self)
        try:
            self.run(close)
        finally:
            self._shut()

    def run(self, start: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what the awaitable of `start(...)` gives; `start` is called on the loop.

        Raises `UsageError` inside a running event loop, `NotRunning` after `close` and in a forked child.
        """
        self._check()
        try:
            return self._turned.run(partial(self._noted, partial(start, *args, **kwargs)))
        except asyncio.CancelledError:
            self._check()  # another thread has closed the client
            raise

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

        self._turned.submit(begin, partial(_told, begin, outcome))
        return outcome

    def turn_for(self, outcome: Outcome[Any], timeout: float | None) -> None:
        """Turn the loop, or let others turn it, until the outcome is there or for `timeout` seconds.

        Raises `UsageError` inside a running event loop, unless the outcome is there.
        """
        if outcome.done() or self._refusal is not None:
            return
        refuse_running_loop("`await asyncio.wrap_future(...)`")

        async def wait() -> None:
            there = asyncio.Event()
            loop = self._turned.loop
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
        self._turned.abandon()

    def _check(self) -> None:
        refuse_running_loop()
        if self._refusal is not None:
            raise NotRunning(self._refusal)

    def _noted(self, start: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Begin a call on the loop, which does not end with this client: it is ended by `_shut`."""
        future = as_future(start(), self._turned.loop)
        self._calls.add(future)
        future.add_done_callback(self._calls.discard)
        return future

    def _shut(self) -> None:
        self._refusal = "the client is closed; make a new one"
        _portals.discard(self)
        if self._calls:  # of other threads, which wait still
            self._turned.run(self._cancel_calls)
        give_back(self._turned, self)

    async def _cancel_calls(self) -> None:
        calls = list(self._calls)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


def _told(begin: Callable[[], None], outcome: Outcome[Any]) -> None:
    try:
        begin()
    except Exception as error:  # noqa: BLE001  whatever it is, the caller is told by the outcome
        outcome.set_exception(error)


_portals: WeakSet[BlockingRunner] = WeakSet()


@atexit.register
def _close_all() -> None:
    for portal in list(_portals):
        portal.close_at_exit()


def _abandon_all() -> None:
    shield.main_thread = threading.get_ident()  # the forking thread is the child's main thread
    for portal in list(_portals):
        portal.abandon()
    _portals.clear()
    forget_all()


os.register_at_fork(after_in_child=_abandon_all)
