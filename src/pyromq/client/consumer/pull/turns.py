"""The order in which the queues of a pull consumer hand out what is fetched: each in its turn, a batch at a time."""

from __future__ import annotations

from collections.abc import Mapping

from pyromq.client.consumer.pull.assigned_queue import AssignedQueue, Batch
from pyromq.clock import Clock
from pyromq.message import MessageQueue


class Turns:
    """The turns of the queues in `assigned`, which others fill and empty; `renew` is called when they have."""

    def __init__(self, assigned: Mapping[MessageQueue, AssignedQueue], clock: Clock) -> None:
        self._assigned = assigned
        self._clock = clock
        self._turns: list[AssignedQueue] = []

    def renew(self) -> None:
        self._turns = list(self._assigned.values())

    def take(self) -> Batch | None:
        """Return the next batch of a queue that is not paused; None when there is none."""
        for index, assigned in enumerate(self._turns):
            if assigned.ready and not assigned.paused:
                self._turns.append(self._turns.pop(index))
                assigned.polled_ms = self._clock.now_ms()
                return assigned.take()
        return None
