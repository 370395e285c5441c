"""Work that may touch what lies on the disk only: it says what it is about to touch, and goes on once that is loaded.

Whoever touches a page that is not in memory stands still until the disk has brought it. So such work is a generator:
it yields what is to be loaded by a thread meanwhile, or nothing wherever others may have a turn. Reading of files that
is told not to wait raises `NotInMemory` instead.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import NamedTuple, TypeVar

T = TypeVar("T")


class FilePiece(NamedTuple):
    """Bytes of a file that is not mapped."""

    path: Path
    position: int
    size: int


Unread = list[memoryview | FilePiece]  # views are of mapped files
Looking = Generator[Unread, None, T]


class NotInMemory(Exception):
    """What has to come from the disk first."""

    def __init__(self, unread: Unread) -> None:
        self.unread = unread


def looked(work: Looking[T]) -> T:
    """Do such work at once, and wait for the disk."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: T = done.value
            return found
