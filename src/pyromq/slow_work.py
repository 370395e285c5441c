"""Long work of servers, as coroutines that wait in one of three ways and need no event loop of their own.

`await yield_slice()` lets other requests run. `await loaded(pages)` waits until a thread has loaded pages that are not
resident, because a page fault would block the event loop. `await completed(future)` waits for a future. Tables may
change during each `await`, so copy a table before an iteration. A plain function raises `NotInMemory`, and
`when_loaded` retries this function.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from pathlib import Path
from types import coroutine
from typing import Any, NamedTuple, TypeVar

from pyromq.errors import BrokerError

T = TypeVar("T")

LOADED_AT_ONCE = 256  # limit of pieces that a thread loads before the thread serves other work
MAX_ROUNDS = 4  # limit of page loads for one record: entry, head, rest, and one if pages were evicted meanwhile

SlowWork = Coroutine[Any, Any, T]


class FilePiece(NamedTuple):
    """A range of a file. `memory` is the whole file if the file is mapped.

    `ahead` bytes after the range will be read soon.
    """

    path: Path
    position: int
    size: int
    memory: memoryview | None = None
    ahead: int = 0


PagesToLoad = list[FilePiece]


class NotInMemory(Exception):
    """Raised when a read needs pages that are not resident; `to_load` are the pages to load before the next attempt."""

    def __init__(self, to_load: PagesToLoad) -> None:
        self.to_load = to_load


@coroutine
def yield_slice() -> Generator[None, None, None]:
    """Let other work of the server run if this work's time slice is over."""
    yield None


@coroutine
def loaded(pages: PagesToLoad) -> Generator[PagesToLoad, None, None]:
    """Wait until a thread has loaded these pages.

    Pages that cannot be read from the disk stay out of memory, without an error.
    """
    for first in range(0, len(pages), LOADED_AT_ONCE):
        yield pages[first : first + LOADED_AT_ONCE]


async def when_loaded(to_load: PagesToLoad, attempt: Callable[[], T]) -> T:
    """Load pages, then return the result of `attempt`.

    If `attempt` raises `NotInMemory`, load those pages and call `attempt` again.

    Raises `BrokerError` if pages are still missing after 4 loads: the disk probably cannot read them. Reading such
    pages through the mapping might kill the process.
    """
    for _ in range(MAX_ROUNDS):
        await loaded(to_load)
        try:
            return attempt()
        except NotInMemory as lack:
            to_load = lack.to_load
    piece = to_load[0]
    raise BrokerError(
        f"{piece.path} cannot be read from the disk at byte {piece.position} ({piece.size} bytes): look for errors of"
        " the disk in the kernel's log (dmesg), and restore the file from a copy"
    )


@coroutine
def completed(future: Future[T]) -> Generator[Future[T], None, T]:
    """Wait until a future is done; return its result or raise its error."""
    yield future
    return future.result()


class Turns:
    """Runs coroutines one after another, in the order of the calls. Coroutines of other names do not wait."""

    def __init__(self) -> None:
        self._last: dict[str, Future[None]] = {}

    async def run(self, work: Callable[[], SlowWork[T]], name: str = "") -> T:
        """Run `work()` after all earlier coroutines of that name; return its result."""
        before, done = self._last.get(name), Future[None]()
        self._last[name] = done
        try:
            if before is not None:
                await completed(before)
            return await work()
        finally:
            if self._last.get(name) is done:  # later work may have been closed before
                del self._last[name]
            done.set_result(None)


def run_blocking(work: SlowWork[T], load: Callable[[PagesToLoad], object] = lambda pages: None) -> T:
    """Run a coroutine of slow work to its end and return the result.

    Blocks at each load or page fault. Futures that the coroutine awaits must be done.
    """
    while True:
        try:
            awaited = work.send(None)
        except StopIteration as done:
            found: T = done.value
            return found
        if isinstance(awaited, list):
            load(awaited)
