"""The event loop of a process that serves: asyncio's, which looks after connections while it waits.

Where there are no compiled parts it is asyncio's own. In any other loop the compiled reactor works as well, but every
burst of requests costs a turn of that loop.
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
    """Return a new loop for a process that serves, for `asyncio.Runner`."""
    if not speedups.is_active:
        return asyncio.new_event_loop()
    selector = ServingSelector()
    loop = asyncio.SelectorEventLoop(selector)
    _selectors[loop] = selector
    return loop


def selector_of(loop: asyncio.AbstractEventLoop) -> ServingSelector | None:
    """Return the selector of a loop made here; None of any other."""
    return _selectors.get(loop)
