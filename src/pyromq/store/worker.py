"""Runs slow disk work in a thread; in a simulation without threads `submit` runs the work itself."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from pyromq.store.disk import Disk


class Worker(Protocol):
    """Runs work items in the order of `submit`, one at a time."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...

    def shutdown(self) -> None:
        """Block until all submitted work is done."""


class AtOnce:
    """A worker without a thread: `submit` runs the work and returns when the work is done."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except OSError as error:
            done.set_exception(error)
        return done

    def shutdown(self) -> None:
        """Do nothing, as `submit` has done all work."""


def worker(disk: Disk, name: str) -> Worker:
    """Return a worker for slow work on a disk: a thread called `name`, or `AtOnce` if the disk allows no threads."""
    return ThreadPoolExecutor(1, thread_name_prefix=name) if disk.in_threads else AtOnce()
