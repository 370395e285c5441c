"""Makes blocking classes from async ones, method by method: `topics = blocking(AsyncAdmin.topics)`.

The blocking method has the signature, types and docstring of the async one. Methods that do part of their work in the
calling thread are written out in their class.

Each blocking client has a `BlockingRunner`. Runners of one instance share an event loop, and so do all runners without
an instance: their clients share connections. `CallerRunsLoop` decides which thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import os
import threading
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar
from weakref import WeakSet

from pyromq.client.blocking.caller_runs_loop import CallerRunsLoop, forget_all, give_back, take
from pyromq.client.blocking.sigint import shield
from pyromq.client.cluster.cluster_client import AsyncLifespan
from pyromq.client.cluster.shared_connections import share_on
from pyromq.errors import NotRunning, UsageError
from pyromq.platforms import platform

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
C = TypeVar("C", bound=AsyncLifespan)

EXIT_SECONDS = 5.0  # limit of closing a client that the program did not close before its exit


def refuse_running_loop(instead: str = "the Async class of the same name") -> None:
    """Raise `UsageError` if this thread's event loop is running: blocking it would stop the application's tasks.

    `instead` names what to use.
    """
    if asyncio._get_running_loop() is not None:
        raise UsageError(f"a blocking client was called inside a running event loop; use {instead} there")


class Outcome(concurrent.futures.Future[T]):
    """The future of submitted work. A thread that waits for the result runs the event loop meanwhile."""

    def __init__(self, runner: BlockingRunner) -> None:
        super().__init__()
        self._runner = runner

    def result(self, timeout: float | None = None) -> T:
        self._runner.turn_for(self, timeout)
        return super().result(0 if timeout is not None else None)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        self._runner.turn_for(self, timeout)
        return super().exception(0 if timeout is not None else None)

    def copy(self, future: asyncio.Future[T]) -> None:
        """Take over the result or error of a finished asyncio future; called on the event loop."""
        if not self.set_running_or_notify_cancel():
            return
        if future.cancelled():
            super().set_exception(asyncio.CancelledError())
        elif (error := future.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(future.result())


class BlockingRunner:
    """Runs async work for blocking callers in any number of threads. `owner_close` is called at program exit.

    Runners of one `instance` share an event loop; all runners without an instance share another one.
    """

    def __init__(self, owner_close: Callable[[], None], instance: str | None = None) -> None:
        self._owner_close = owner_close
        self._instance = instance
        self._caller_loop: CallerRunsLoop
        self._lock = threading.Lock()  # held while the state of the client changes to started or closed
        self._refusal: str | None = "the client is not running: start it with `with` or start()"
        self.was_started = False  # stays True after the client is closed

    def start(self, start: Callable[[], Awaitable[None]]) -> None:
        """Run `start`, the client's own start, on the event loop. If it fails, the runner is closed.

        Raises `UsageError` inside a running event loop, or if the client is running.
        """
        refuse_running_loop()
        with self._lock:
            if self._refusal is None:
                raise UsageError("the client is running already")
            self._caller_loop = take(self._instance, self)
            if self._instance is None:
                share_on(self._caller_loop.loop)
            self._refusal = None
            _runners.add(self)
        try:
            self.run(start)
        except BaseException:
            self._shut()
            raise
        self.was_started = True

    def close(self, close: Callable[[], Awaitable[None]]) -> None:
        """Run `close`, the client's own close, and end the event loop if no other client uses it. Idempotent.

        Later calls raise `NotRunning`. Inside a running event loop this raises `UsageError`, and the client stays open.
        """
        with self._lock:
            if self not in _runners:
                return
            refuse_running_loop()
            _runners.discard(self)
        try:
            self.run(close)
        finally:
            self._shut()

    def run(self, start: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of the awaitable `start(...)`; `start` is called on the client's event loop.

        Raises `UsageError` inside a running event loop, `NotRunning` after `close` and in a forked child.
        """
        if self._refusal is not None or asyncio._get_running_loop() is not None:
            self._check()
        try:
            return self._caller_loop.run(self, start, *args, **kwargs)
        except asyncio.CancelledError:
            self._check()  # another thread has closed the client
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a plain function on the client's event loop and return its result."""

        async def call() -> T:
            return function(*args, **kwargs)

        return self.run(call)

    def submit(self, start: Callable[P, asyncio.Future[T]], *args: P.args, **kwargs: P.kwargs) -> Outcome[T]:
        """Begin work on the event loop and return without waiting for the result.

        Works submitted in a row share turns of the loop. An error of `start` itself is raised here, or by the outcome
        if another thread runs the loop.
        """
        self._check()
        outcome: Outcome[T] = Outcome(self)

        def begin() -> None:
            start(*args, **kwargs).add_done_callback(outcome.copy)

        self._caller_loop.submit(begin, partial(_begin_or_fail, begin, outcome))
        return outcome

    def turn_for(self, outcome: Outcome[Any], timeout: float | None) -> None:
        """Wait up to `timeout` seconds for the outcome. This thread runs the event loop unless another thread does.

        Unless the outcome is done, raises `UsageError` inside a running event loop, and `NotRunning` if no thread will
        run the event loop again: after an interrupted `close`, and in a forked child.
        """
        if outcome.done():
            return
        if self._refusal is not None:
            raise NotRunning(self._refusal)
        refuse_running_loop("`await asyncio.wrap_future(...)`")

        async def wait() -> None:
            there = asyncio.Event()
            loop = self._caller_loop.loop
            outcome.add_done_callback(lambda _: loop.call_soon_threadsafe(there.set))
            try:
                async with asyncio.timeout(timeout):
                    await there.wait()
            except TimeoutError:
                pass  # the outcome's `result` raises the error

        self.run(wait)

    def close_at_exit(self) -> None:
        """Close the client at program exit. Returns after `EXIT_SECONDS` even if closing has not ended."""
        closing = threading.Thread(target=self._owner_close, daemon=True)
        closing.start()
        closing.join(EXIT_SECONDS)

    def abandon(self) -> None:
        """Refuse every later call, in the child of a fork: the connections belong to the parent."""
        self._refusal = f"this client was made before fork(); make a new one in process {os.getpid()}"
        self._caller_loop.abandon()

    def _check(self) -> None:
        refuse_running_loop()
        if self._refusal is not None:
            raise NotRunning(self._refusal)

    def _shut(self) -> None:
        self._refusal = "the client is closed; make a new one"
        _runners.discard(self)
        self._caller_loop.run(None, self._caller_loop.cancel_calls, self)  # other threads may wait for these calls
        give_back(self._caller_loop, self)


def _begin_or_fail(begin: Callable[[], None], outcome: Outcome[Any]) -> None:
    try:
        begin()
    except Exception as error:  # noqa: BLE001  the outcome raises the error in the calling thread
        outcome.set_exception(error)


_runners: WeakSet[BlockingRunner] = WeakSet()


@atexit.register
def _close_all() -> None:
    for runner in list(_runners):
        runner.close_at_exit()


def _abandon_all() -> None:
    shield.main_thread = threading.get_ident()  # the forking thread is the child's main thread
    for runner in list(_runners):
        runner.abandon()
    _runners.clear()
    forget_all()


platform.after_fork(after_in_child=_abandon_all)


class Blocking(Generic[A]):
    """A blocking form of an async object: its methods are called from threads without an event loop."""

    def __init__(self, runner: BlockingRunner, target: A) -> None:
        self._runner = runner
        self._async = target


def blocking(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return a method that runs an async method, blocks until it has ended, and returns or raises the same."""

    @wraps(method)
    def run(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.run(method, self._async, *args, **kwargs)

    return run


def on_loop(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return a method that calls a plain method of an async object on the object's event loop."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.call(method, self._async, *args, **kwargs)

    return call


def at_any_time(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return a plain method of an async object as one that may also be called before the client's start.

    Before the start it runs in the calling thread, later on the event loop.
    """

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if self._runner.was_started:
            return self._runner.call(method, self._async, *args, **kwargs)
        return method(self._async, *args, **kwargs)

    return call


class BlockingClient(Blocking[C]):
    """A blocking client, started when a `with` block is entered and closed when the block is left."""

    def __init__(self, client: C, instance: str | None = None) -> None:
        super().__init__(BlockingRunner(self.close, instance), client)

    def start(self) -> None:
        """Connect. Raises `NoNameServer` immediately if no name server can be reached."""
        self._runner.start(self._async.start)

    def close(self) -> None:
        """Wait for unanswered sends and running listeners, commit offsets, leave the group, close the connections.

        `close` of the async class says which of these steps a client does. Idempotent.
        """
        self._runner.close(self._async.close)

    def __enter__(self) -> Self:
        self._runner.start(self._async._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
