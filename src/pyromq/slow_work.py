"""Long work of servers: coroutines that wait in one of three ways, without an event loop of their own.

`await breathe()` lets other requests run. `await loaded(pages)` waits until a thread has loaded pages that are not
resident, as a page fault blocks the event loop. `await completed(future)` waits for an event. Tables may change at each
`await`, so copy what is iterated over. A plain function raises `NotInMemory`, and `when_loaded` retries it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from pathlib import Path
from types import coroutine
from typing import Any, NamedTuple, TypeVar

from pyromq.errors import BrokerError

T = TypeVar("T")

LOADED_AT_ONCE = 256  # pieces that a thread loads before it serves other work
MAX_ROUNDS = 4  # loads for one record: entry, head, rest, and once more if pages were evicted meanwhile

SlowWork = Coroutine[Any, Any, T]


class FilePiece(NamedTuple):
    """A range of a file. If it is mapped, `memory` is all of the file. `ahead` bytes after it will be read soon."""

    path: Path
    position: int
    size: int
    memory: memoryview | None = None
    ahead: int = 0


PagesToLoad = list[FilePiece]


class NotInMemory(Exception):
    """Raised with the pages to load before the next attempt."""

    def __init__(self, to_load: PagesToLoad) -> None:
        self.to_load = to_load


@coroutine
def breathe() -> Generator[None, None, None]:
    """Let other work run if the time slice is over."""
    yield None


@coroutine
def loaded(pages: PagesToLoad) -> Generator[PagesToLoad, None, None]:
    """Wait until a thread has loaded these pages. Pages that cannot be read stay out of memory."""
    for first in range(0, len(pages), LOADED_AT_ONCE):
        yield pages[first : first + LOADED_AT_ONCE]


async def when_loaded(to_load: PagesToLoad, attempt: Callable[[], T]) -> T:
    """Load pages, then return what `attempt` returns. Pages that it lacks are loaded, and it is called again.

    Raises `BrokerError` if loads do not help: a read of the mapped file might end the process.
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
    """Wait for a future; return its result or raise its error."""
    yield future
    return future.result()


def run_blocking(work: SlowWork[T], load: Callable[[PagesToLoad], object] = lambda pages: None) -> T:
    """Run the work to its end; blocks at each load or page fault. It may await no future that is not done."""
    while True:
        try:
            awaited = work.send(None)
        except StopIteration as done:
            found: T = done.value
            return found
        if isinstance(awaited, list):
            load(awaited)
