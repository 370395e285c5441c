"""Received messages on their way from the threads that receive them to the thread that runs kombu's callbacks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Delivery = Callable[[], bool]  # runs the callback for a message; False if no callback takes the message


class Inbox:
    """Deliveries in order of arrival. `fileno` is readable while there may be one, for an event loop."""

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._arrived = threading.Condition()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)

    def fileno(self) -> int:
        return self._readable

    def put(self, delivery: Delivery) -> None:
        """Add a delivery, and wake the receiving thread. May be called in any thread."""
        with self._arrived:
            self._deliveries.append(delivery)
            self._arrived.notify_all()
            with suppress(BlockingIOError, OSError):  # full: it is readable anyway; closed: nobody reads
                os.write(self._writable, b"\0")

    def take(self, timeout: float | None = 0.0) -> Delivery | None:
        """Return the next delivery; None if there is none within `timeout` seconds (None: without limit)."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._deliveries, timeout)
            return self._deliveries.popleft() if self._deliveries else None

    def take_all(self) -> list[Delivery]:
        """Return all deliveries, after which the file descriptor is not readable."""
        with self._arrived, suppress(BlockingIOError):
            os.read(self._readable, 1 << 16)
        with self._arrived:
            found = list(self._deliveries)
            self._deliveries.clear()
            return found

    def close(self) -> None:
        os.close(self._readable)
        os.close(self._writable)
