"""How many queues have their files mapped at a time: a system allows 65,530 mappings in a process, and queues are more.

The one mapped longest gives way; used again, it is mapped again, which takes some 20 µs. It knows no formats.
"""

from __future__ import annotations

import threading
from typing import Protocol


class Mapped(Protocol):
    def release(self) -> None: ...


class Mappings:
    """The queues that have something mapped, longest first. Made by the thread that writes."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._writer = threading.get_ident()
        self._mapped: dict[Mapped, None] = {}

    def note(self, mapped: Mapped) -> None:
        """Take note that something is about to be mapped; others may have to give way.

        Another thread than the writer's may say so too: then that happens the next time.
        """
        self._mapped.pop(mapped, None)
        self._mapped[mapped] = None
        if threading.get_ident() == self._writer:
            while len(self._mapped) > self._most:
                oldest = next(iter(self._mapped))
                del self._mapped[oldest]
                oldest.release()

    def forget(self, mapped: Mapped) -> None:
        """Take note that nothing of it is mapped any more."""
        self._mapped.pop(mapped, None)
