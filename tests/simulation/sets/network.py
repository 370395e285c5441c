"""Time, and connections between replicas: messages are late, in order within a connection, held by one-way cuts."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .machine import Process


class Timeline:
    """What happens when. Equal times happen in the order in which they were planned."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0

    def after(self, seconds: float, function: Callable[..., None], *arguments: object) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, function, arguments))

    def run_until(self, end: float) -> None:
        events = self._events
        while events and events[0][0] <= end:
            self.now, _, function, arguments = heapq.heappop(events)
            function(*arguments)
        self.now = end


class Connection:
    """One connection. Side 0 has dialled."""

    def __init__(self, network: Network, numbers: tuple[int, int], processes: tuple[Process, Process]) -> None:
        self.network = network
        self.numbers = numbers
        self.processes = processes
        self.is_open = [True, True]
        self.held: list[list[Callable[[], None]]] = [[], []]
        self._last = [0.0, 0.0]

    def send(self, side: int, deliver: Callable[..., None], *arguments: object) -> None:
        """Have the other side's process called with the arguments, unless its end is closed by then."""
        if not self.is_open[side]:
            return
        pair = self.numbers[side], self.numbers[1 - side]
        if pair in self.network.cuts:
            self.held[side].append(lambda: self._plan(side, deliver, arguments))
        else:
            self._plan(side, deliver, arguments)

    def _plan(self, side: int, deliver: Callable[..., None], arguments: tuple[object, ...]) -> None:
        time = self.network.time
        at = max(self._last[side], time.now + self.network.delay())
        self._last[side] = at
        time.after(at - time.now, self._arrive, side, deliver, arguments)

    def _arrive(self, side: int, deliver: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if self.is_open[1 - side]:
            self.processes[1 - side].run(self._deliver, side, deliver, arguments)

    def _deliver(self, side: int, deliver: Callable[..., None], arguments: tuple[object, ...]) -> None:
        """Deliver after a pause of the process, in which it may have closed the connection."""
        if self.is_open[1 - side]:
            deliver(self.processes[1 - side], *arguments)

    def release(self, side: int) -> None:
        held, self.held[side] = self.held[side], []
        for plan in held:
            plan()


class Network:
    """All connections, and the directions (from, to) in which nothing gets through."""

    def __init__(self, time: Timeline, random: Random) -> None:
        self.time = time
        self.cuts: set[tuple[int, int]] = set()
        self.connections: list[Connection] = []
        self._random = random
        self.slowness = 0.002

    def delay(self) -> float:
        random = self._random.random()
        return self.slowness * random if random < 0.98 else 0.4 * self._random.random()

    def heal(self) -> None:
        self.cuts.clear()
        self.connections = [each for each in self.connections if any(each.is_open)]
        for connection in self.connections:
            connection.release(0)
            connection.release(1)
