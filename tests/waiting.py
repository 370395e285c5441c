"""Waiting for a state, never for a time: a loaded machine stands still for seconds, and that is no fault.

Patience is so long that only a fault takes longer, and shorter than a test may take.
"""

import asyncio
import time

PATIENCE_SECONDS = 60
REQUEST_SECONDS = 30.0  # what a request may take where a test does not say


async def until(condition):
    """Return when the condition holds; raise `TimeoutError` when patience ends."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():
            await asyncio.sleep(0.002)


def wait_until(condition):
    """Do as `until`, in a thread without a loop: of other threads, and of other processes."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.01)
