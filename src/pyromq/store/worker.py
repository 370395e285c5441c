"""Runs slow disk work in a thread, or at once in a simulation without threads."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from pyromq.store.disk import Disk


class Worker(Protocol):
    """Runs work items one after the other."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]: ...

    def shutdown(self) -> None:
        """Block until all work is done."""


class AtOnce:
    """A worker without a thread: `submit` runs the work."""

    def submit(self, work: Callable[..., Any], /, *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except OSError as error:
            done.set_exception(error)
        return done

    def shutdown(self) -> None:
        """Do nothing: all work is done."""


def worker(disk: Disk, name: str) -> Worker:
    """Return a worker for slow work on a disk: a thread if the disk allows one."""
    return ThreadPoolExecutor(1, thread_name_prefix=name) if disk.in_threads else AtOnce()
