"""Rows on their way into runs: the queue of each is chosen, runs are closed when they are full. Knows no Spark.

Rows for one queue stay in order. Rows that want no particular queue fill one run after the other, each for the next
queue in turn: full runs cost a broker far less than rows spread over all queues.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

from pyromq.client.queue_choice import queue_for_key
from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.spark.sink_columns import Row

MOST_BUFFERED = 8  # full runs that a task may hold in pieces: with more queues, runs are closed before they are full
KNOWN_KEYS = 10_000  # ordering keys whose queue is remembered


@dataclass(slots=True)
class _Run:
    """The open run of one queue."""

    members: list[bytes] = field(default_factory=list)
    size: int = 0


class _Topic:
    """The queues of one topic."""

    def __init__(self, queues: list[MessageQueue]) -> None:
        self.queues = queues
        self.turn = random.randrange(len(queues))
        self.by_place = {(queue.broker_name, queue.queue_id): queue for queue in queues}
        self.brokers = sorted({queue.broker_name for queue in queues})
        self.of_key = lru_cache(KNOWN_KEYS)(lambda key: queue_for_key(queues, key))

    def named(self, row: Row) -> MessageQueue:
        """Return the queue that a row names."""
        assert row.queue_id is not None
        broker = row.broker_name
        if broker is None:
            if len(self.brokers) > 1:
                raise UsageError(
                    f"queueId {row.queue_id} of topic {row.topic} is not unique: brokers {', '.join(self.brokers)} have"
                    " the topic; give column brokerName, too"
                )
            broker = self.brokers[0]
        queue = self.by_place.get((broker, row.queue_id))
        if queue is None:
            raise UsageError(
                f"topic {row.topic} has no queue {row.queue_id} at {broker} that can be written; there are "
                + ", ".join(f"{each.queue_id} at {each.broker_name}" for each in self.queues[:16])
            )
        return queue


class OpenRuns:
    """The runs of one task. `send(queue, body, messages)` takes those that are full."""

    def __init__(
        self,
        queues_of: Callable[[str], list[MessageQueue]],
        send: Callable[[MessageQueue, bytes, int], None],
        *,
        run_bytes: int,
    ) -> None:
        self._queues_of = queues_of
        self._send = send
        self._run_bytes = run_bytes
        self._topics: dict[str, _Topic] = {}
        self._runs: dict[MessageQueue, _Run] = {}
        self._size = 0

    def add(self, row: Row) -> None:
        """Put a row into its queue's run. Raises `UsageError` for a queue that does not exist."""
        queue = self.queue_of(row)
        run = self._runs.get(queue)
        if run is None:
            run = self._runs[queue] = _Run()
        size = row.size
        if run.members and run.size + size > self._run_bytes:
            self._close(queue)
            queue = self.queue_of(row)  # the turn has passed on
            run = self._runs.setdefault(queue, _Run())
        run.members.append(row.encode())
        run.size += size
        self._size += size
        if self._size > MOST_BUFFERED * self._run_bytes:
            self._close(max(self._runs, key=lambda each: self._runs[each].size))

    def queue_of(self, row: Row) -> MessageQueue:
        """Return where a row goes: the queue it names, that of its ordering key, or the one whose turn it is."""
        topic = self._topics.get(row.topic)
        if topic is None:
            topic = self._topics[row.topic] = _Topic(self._queues_of(row.topic))
        if row.queue_id is not None:
            return topic.named(row)
        if row.sharding_key is not None:
            return topic.of_key(row.sharding_key)
        return topic.queues[topic.turn % len(topic.queues)]

    def flush(self) -> None:
        """Send what is left."""
        for queue in list(self._runs):
            self._close(queue)

    def _close(self, queue: MessageQueue) -> None:
        run = self._runs.pop(queue)
        self._size -= run.size
        topic = self._topics[queue.topic]
        if queue == topic.queues[topic.turn % len(topic.queues)]:
            topic.turn += 1
        if run.members:
            self._send(queue, b"".join(run.members), len(run.members))
