"""Parallel requests to brokers, limited in number."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32  # limit of parallel requests: more would only queue at the brokers


async def each_of(
    look: Callable[[T], Awaitable[R]], items: Sequence[T], shown: Callable[[int], None] | None = None
) -> list[R]:
    """Return `look(item)` of all items, in order. The first error is raised and cancels the others.

    `shown` is called with the number of finished items.
    """
    room, done = asyncio.Semaphore(AT_ONCE), 0

    async def one(item: T) -> R:
        nonlocal done
        async with room:
            found = await look(item)
        done += 1
        if shown is not None:
            shown(done)
        return found

    tasks = [asyncio.ensure_future(one(item)) for item in items]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()  # after a failure
