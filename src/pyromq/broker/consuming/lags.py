"""How far groups are behind, in messages and in time: what Prometheus and consoles are told."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.consuming.store_times import StoreTimes
from pyromq.slow_work import breathe
from pyromq.store.message_store import MessageStore

STEP = 64  # queues at once; then others may have a turn


def in_steps(queues: int) -> Iterator[range]:
    """Yield the ids of so many queues."""
    for first in range(0, queues, STEP):
        yield range(first, min(first + STEP, queues))


@dataclass(slots=True)
class Lag:
    """A group in a topic, by queue: how many messages it has not consumed, and since when (ms) the first waits."""

    group: str
    topic: str
    counts: dict[int, int] = field(default_factory=dict)
    stored_ms: dict[int, int] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return sum(self.counts.values())

    def age_ms(self, now_ms: int) -> int:
        """Return how long the oldest message waits; 0 where none does, or that cannot be told."""
        return max(0, now_ms - min(self.stored_ms.values(), default=now_ms))


class Lags:
    """Looks at the groups of one broker, for one who asks again and again."""

    def __init__(self, store: MessageStore, offsets: ConsumerOffsets, times: StoreTimes) -> None:
        self._store = store
        self._offsets = offsets
        self._times = times

    async def look(self, lag: Lag, queues: int) -> None:
        """Fill in so many queues of a lag; a queue without a stored offset is consumed from its begin."""
        behind = {}
        consumed = self._offsets.of_topic(lag.group, lag.topic)
        for queue_ids in in_steps(queues):
            await breathe()
            for queue_id in queue_ids:
                offset = consumed.get(queue_id, 0)
                count = lag.counts[queue_id] = max(0, self._store.max_offset(lag.topic, queue_id) - offset)
                if count:
                    behind[queue_id] = offset
        await self._times.look(lag.topic, behind, lag.stored_ms)
