"""Time as a dependency: everything that expires, waits or retries takes a `Clock`, so that tests advance it by hand."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """`now_ms` is wall-clock time in ms since 1970 (stored, sent); `monotonic` is seconds for durations."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clock."""

    monotonic = staticmethod(time.monotonic)

    def now_ms(self) -> int:
        return int(time.time() * 1000)

    async def sleep(self, seconds: float) -> None:
        import asyncio  # only a running loop can call this; the core that only reads time never loads asyncio

        await asyncio.sleep(seconds)
