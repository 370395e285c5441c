"""Work that may touch what lies on the disk only: it says what it is about to touch, and goes on once that is loaded.

Whoever touches a page that is not in memory stands still until the disk has brought it. So such work is a generator:
it yields what is to be loaded by a thread meanwhile, or nothing wherever others may have a turn.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")

Unread = list[memoryview]
Looking = Generator[Unread, None, T]


def looked(work: Looking[T]) -> T:
    """Do such work at once, and wait for the disk."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            found: T = done.value
            return found
