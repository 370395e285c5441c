"""Passes received messages from the receiving threads to the thread that runs kombu's callbacks."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

Delivery = Callable[[], bool]  # runs the callback for a message; False if no callback takes the message


class Inbox:
    """Deliveries in the order of their arrival. `fileno` is readable while there may be a delivery, for event loops."""

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._arrived = threading.Condition()
        self._readable: socket.socket | None = (
            None  # only for an event loop; not a pipe, as Windows cannot wait for pipes
        )
        self._writable: socket.socket | None = None

    def fileno(self) -> int:
        with self._arrived:
            if self._readable is None or self._writable is None:
                self._readable, self._writable = socket.socketpair()
                self._readable.setblocking(False)
                self._writable.setblocking(False)
                self._notify()
            return self._readable.fileno()

    def put(self, delivery: Delivery) -> None:
        """Add a delivery, and wake the receiving thread. May be called in any thread."""
        with self._arrived:
            self._deliveries.append(delivery)
            self._arrived.notify_all()
            self._notify()

    def _notify(self) -> None:
        if self._writable is not None and self._deliveries:
            with suppress(BlockingIOError):  # the socket is full, so it is readable
                self._writable.send(b"\0")

    def take(self, timeout: float | None = 0.0) -> Delivery | None:
        """Return the next delivery; None if there is none within `timeout` seconds. None: no limit."""
        with self._arrived:
            self._arrived.wait_for(lambda: self._deliveries, timeout)
            return self._deliveries.popleft() if self._deliveries else None

    def take_all(self) -> list[Delivery]:
        """Return all deliveries, after which the file descriptor is not readable."""
        with self._arrived:
            if self._readable is not None:
                with suppress(BlockingIOError):
                    self._readable.recv(1 << 16)
            found = list(self._deliveries)
            self._deliveries.clear()
            return found

    def close(self) -> None:
        with self._arrived:
            for end in (self._readable, self._writable):
                if end is not None:
                    end.close()
            self._readable = self._writable = None
