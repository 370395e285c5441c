"""How a blocking class is made of an async one: `topics = blocking(AsyncAdmin.topics)`.

Signature, types and docstring of the async method stay those of the blocking one. Methods with work of their own in
the calling thread are written out in their class.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import wraps
from types import TracebackType
from typing import Concatenate, Generic, ParamSpec, Self, TypeVar

from pyromq.client.async_lifespan import AsyncLifespan
from pyromq.client.blocking.blocking_runner import BlockingRunner

P = ParamSpec("P")
T = TypeVar("T")
A = TypeVar("A")
C = TypeVar("C", bound=AsyncLifespan)


class Blocking(Generic[A]):
    """An async object whose methods are called from threads without an event loop."""

    def __init__(self, runner: BlockingRunner, target: A) -> None:
        self._runner = runner
        self._async = target


def blocking(method: Callable[Concatenate[A, P], Awaitable[T]]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return an async object's method as one that blocks until it has ended, and returns or raises the same."""

    @wraps(method)
    def run(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.run(method, self._async, *args, **kwargs)

    return run


def on_loop(method: Callable[Concatenate[A, P], T]) -> Callable[Concatenate[Blocking[A], P], T]:
    """Return an async object's plain method as one that is called on its event loop."""

    @wraps(method)
    def call(self: Blocking[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._runner.call(method, self._async, *args, **kwargs)

    return call


class BlockingClient(Blocking[C]):
    """A blocking client: started when a `with` block is entered, closed when it is left."""

    def __init__(self, client: C, instance: str | None = None) -> None:
        super().__init__(BlockingRunner(self.close, instance), client)

    def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        self._runner.start(self._async.start)

    def close(self) -> None:
        """Wait for unanswered sends and running listeners, commit offsets, leave the group, close the connections.

        Each client does its share of these, as the `close` of its async class says. Idempotent.
        """
        self._runner.close(self._async.close)

    def __enter__(self) -> Self:
        self._runner.start(self._async._enter)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
