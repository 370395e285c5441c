"""Reading records for a scrape: what is on disk only is loaded by a thread first."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import TypeVar

from pyromq.store.disk import Disk
from pyromq.store.page_load import PageLoad

T = TypeVar("T")


def loaded(work: PageLoad[T], disk: Disk) -> Generator[Callable[[], object] | None, None, T]:
    """Do, as a part of what is told in a scrape, what touches records."""
    while True:
        try:
            unread = next(work)
        except StopIteration as done:
            found: T = done.value
            return found
        yield partial(disk.load, unread) if unread else None
