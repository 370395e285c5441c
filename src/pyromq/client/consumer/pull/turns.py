"""The order in which the queues of a pull consumer hand out what is fetched: each in its turn, a batch at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from pyromq.client.consumer.pull.assigned_queue import AssignedQueue, Batch
from pyromq.client.consumer.pull.prefetch import Prefetch
from pyromq.clock import Clock
from pyromq.message import MessageQueue


class Turns:
    """The turns of the queues in `assigned`, which others fill and empty; `renew` is called when they have.

    `is_over` says whether nothing more will come.
    """

    def __init__(
        self,
        assigned: Mapping[MessageQueue, AssignedQueue],
        clock: Clock,
        fetching: Prefetch,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        self._assigned = assigned
        self._clock = clock
        self._fetching = fetching
        self._is_over = is_over
        self._turns: list[AssignedQueue] = []

    def renew(self) -> None:
        self._turns = list(self._assigned.values())

    async def next_batch(self, timeout: float) -> Batch | None:
        """Wait for a batch of a queue that is not paused; None where there is none within `timeout` seconds."""
        try:
            async with asyncio.timeout(timeout):
                while True:
                    self._fetching.changed.clear()
                    if (batch := self._take()) is not None:
                        self._fetching.room.set()
                        return batch
                    if (failure := self._fetching.take_failure()) is not None:
                        raise failure
                    if self._is_over():
                        return None
                    await self._fetching.changed.wait()
        except TimeoutError:
            return None

    def _take(self) -> Batch | None:
        for index, assigned in enumerate(self._turns):
            if assigned.ready and not assigned.paused:
                self._turns.append(self._turns.pop(index))
                assigned.polled_ms = self._clock.now_ms()
                return assigned.take()
        return None
