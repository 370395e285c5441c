"""Signals in blocking clients: SIGINT interrupts the main thread only while it waits; SIGTERM stops a consumer's `run`.

Python may raise `KeyboardInterrupt` between any two instructions. Within a callback of the event loop, this would leave
a connection or a lock in an inconsistent state.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: its conversion to an enum and back costs a tenth of a send
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_set_handler: Callable[[int, Any], Any] = _signal.signal


class Shield:
    """Delays the program's SIGINT handler in blocking calls.

    Between `enter` and `leave` the handler is called while `waiting` is True, and by `deliver`; else `leave` calls it.
    """

    def __init__(self) -> None:
        self.main_thread = threading.main_thread().ident
        self.waiting = False
        self.pending = False  # SIGINT arrived and its handler was not called yet
        self._handler: Any = None

    def enter(self) -> bool:
        """Begin to delay SIGINT. Return whether `leave` must follow; False if SIGINT has no handler in this thread."""
        if threading.get_ident() != self.main_thread:
            return False
        handler = _set_handler(signal.SIGINT, self._on_signal)
        if not callable(handler):  # SIGINT is ignored, or ends the program without a handler
            _set_handler(signal.SIGINT, handler)
            return False
        self._handler = handler
        return True

    def leave(self) -> None:
        """Restore the program's SIGINT handler, and call it if SIGINT arrived meanwhile."""
        _set_handler(signal.SIGINT, self._handler)
        self.deliver()

    def deliver(self) -> None:
        """Call the program's handler if SIGINT arrived for the calling thread. Raises what the handler raises."""
        if self.is_due:
            self.pending = False
            self._handler(signal.SIGINT, None)

    @property
    def is_due(self) -> bool:
        """True if SIGINT arrived for the calling thread, which must not wait before `deliver`."""
        return self.pending and threading.get_ident() == self.main_thread

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.waiting:
            self._handler(number, frame)
        else:
            self.pending = True


shield = Shield()  # one for the process, because a process has one main thread


@contextmanager
def sigterm_calls(act: Callable[[], None]) -> Iterator[None]:
    """Let the first SIGTERM in the block call `act` instead of ending the program; later ones are ignored.

    Has no effect outside the main thread, or if the program handles or ignores SIGTERM itself.
    """
    if threading.get_ident() != shield.main_thread or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    received = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal received
        if not received:
            received = True
            act()

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """Let the first SIGTERM in the block interrupt the program as Ctrl-C does.

    A shell script makes its background processes ignore Ctrl-C. Such a process still ignores Ctrl-C in the block, and
    SIGTERM raises `KeyboardInterrupt`. Has no effect where `sigterm_calls` has none.
    """
    if threading.get_ident() != shield.main_thread:
        yield
        return
    terminated = False

    def terminate() -> None:
        nonlocal terminated
        terminated = True
        signal.raise_signal(signal.SIGINT)  # goes through the shield, which calls a handler only while clients wait

    def interrupt_if_terminated(number: int, frame: FrameType | None) -> None:
        if terminated:
            raise KeyboardInterrupt

    is_ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    if is_ignored:
        signal.signal(signal.SIGINT, interrupt_if_terminated)
    try:
        with sigterm_calls(terminate):
            yield
    finally:
        if is_ignored:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
