"""The event loop of a server process: asyncio's, whose selector serves connections while it waits.

Without compiled parts it is asyncio's own loop. The compiled reactor works in any other loop as well, but there every
burst of requests costs a turn of the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from pyromq import speedups

if TYPE_CHECKING or speedups.is_active:
    from pyromq.speedups.reactor import ServingSelector

_selectors: WeakKeyDictionary[asyncio.AbstractEventLoop, ServingSelector] = WeakKeyDictionary()


def new_serving_loop() -> asyncio.AbstractEventLoop:
    """Return a new event loop for a server process; for `asyncio.Runner`."""
    if not speedups.is_active:
        return asyncio.new_event_loop()
    selector = ServingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    _selectors[loop] = selector
    return loop


def selector_of(loop: asyncio.AbstractEventLoop) -> ServingSelector | None:
    """Return the selector of a loop made by `new_serving_loop`; None for other loops."""
    return _selectors.get(loop)
