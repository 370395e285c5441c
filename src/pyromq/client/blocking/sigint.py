"""Ctrl-C in the main thread of a blocking client: let through while it waits, held back while state changes. SIGTERM
where a client runs the program.

Python may raise `KeyboardInterrupt` between any two instructions; raised within a callback of the event loop it would
leave a connection or a lock half-way. Knows no loops.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: its conversion to an enum and back costs a tenth of a send
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_exchange: Callable[[int, Any], Any] = _signal.signal


class Shield:
    """Between `enter` and `leave` the program's own handler of SIGINT runs only while `waiting`, or at `leave`."""

    def __init__(self) -> None:
        self.main_thread = threading.main_thread().ident
        self.waiting = False
        self._pending = False
        self._handler: Any = None

    def enter(self) -> bool:
        """Begin to hold back; return whether the calling thread is one that signals interrupt."""
        if threading.get_ident() != self.main_thread:
            return False
        handler = _exchange(signal.SIGINT, self._on_signal)
        if not callable(handler):  # SIGINT is ignored, or ends the program: nothing to hold back
            _exchange(signal.SIGINT, handler)
            return False
        self._handler = handler
        return True

    def leave(self) -> None:
        """Put the program's handler back, and call it if the signal came meanwhile."""
        _exchange(signal.SIGINT, self._handler)
        if self._pending:
            self._pending = False
            self._handler(signal.SIGINT, None)

    @property
    def calls_off(self) -> bool:
        """Whether the calling thread was interrupted and should come to an end."""
        return self._pending and threading.get_ident() == self.main_thread

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.waiting:
            self._handler(number, frame)
        else:
            self._pending = True


shield = Shield()  # one for the process: it has one main thread


@contextmanager
def sigterm_calls(act: Callable[[], None]) -> Iterator[None]:
    """Let the first SIGTERM call `act` instead of ending the program; those after it are not heard.

    Changes nothing outside the main thread, and where the program handles or ignores SIGTERM itself.
    """
    if threading.get_ident() != shield.main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    heard = False

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal heard
        if not heard:
            heard = True
            act()

    signal.signal(signal.SIGTERM, hear)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
