"""Work that loads pages before it reads them, as a page fault blocks the event loop until the disk has answered.

Such work is a generator. It yields the pages that a thread must load, or an empty list where other work may run.
File reads that must not wait raise `NotInMemory` instead.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class FilePiece(NamedTuple):
    """A range of a file that is not mapped."""

    path: Path
    position: int
    size: int


PagesToLoad = list[memoryview | FilePiece]  # views are of mapped files
PageLoad = Generator[PagesToLoad, None, T]


class NotInMemory(Exception):
    """Raised with the pages to load before the next attempt."""

    def __init__(self, to_load: PagesToLoad) -> None:
        self.to_load = to_load


def run_blocking(work: PageLoad[T]) -> T:
    """Run the work to its end; blocks at each page fault."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: T = done.value
            return found
