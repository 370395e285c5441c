"""Many questions to brokers side by side, but not all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32  # requests under way: more only wait at the brokers


async def each_of(
    look: Callable[[T], Awaitable[R]], items: Sequence[T], shown: Callable[[int], None] | None = None
) -> list[R]:
    """Return `look(item)` of all, in order, a bounded number at once; the first that raises ends it.

    `shown` is told how many are done.
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
            task.cancel()  # where one has failed
