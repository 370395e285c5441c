"""Who does slow work on a disk beside the writer: a thread, or nobody where a simulation has none."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from pyromq.store.disk import Disk


class Worker(Protocol):
    """Does one thing after the other, beside the writer."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...

    def shutdown(self) -> None:
        """Return when all is done."""


class AtOnce:
    """A worker without a thread."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except OSError as error:
            done.set_exception(error)
        return done

    def shutdown(self) -> None:
        """All is done."""


def worker(disk: Disk, name: str) -> Worker:
    """Return who does slow work on that disk."""
    return ThreadPoolExecutor(1, thread_name_prefix=name) if disk.in_threads else AtOnce()
