"""Collects a task's messages into runs: a run is the batch message of one request, for one queue. No Spark here.

Messages for one queue stay in order. Messages without a given queue fill one run after another, each for the next
queue: a broker stores full runs far faster than messages spread over all queues.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow.compute as pc

from pyromq.client.producer.pending_send import queue_for_key
from pyromq.errors import UsageError
from pyromq.message import MessageQueue
from pyromq.spark.write.batch_members import BatchMembers
from pyromq.spark.write.message_columns import MessageColumns

MAX_BUFFERED = 8  # limit of a task's unsent rows, in multiples of `run_bytes`; beyond it, the largest run is sent
KNOWN_KEYS = 10_000  # limit of sharding keys of a topic whose queue is cached


@dataclass(slots=True)
class _Run:
    """The open run of one queue: a batch message that is not sent yet."""

    parts: list[bytes | memoryview] = field(default_factory=list)
    size: int = 0
    messages: int = 0


class _Topic:
    """The queues of one topic; chooses the queue of each message."""

    def __init__(self, name: str, queues: list[MessageQueue]) -> None:
        self.name = name
        self.queues = queues
        self._turn = random.randrange(len(queues))
        self._by_place = {(queue.broker_name, queue.queue_id): queue for queue in queues}
        self._brokers = sorted({queue.broker_name for queue in queues})
        self._of_key = lru_cache(KNOWN_KEYS)(lambda key: queue_for_key(queues, key))

    @property
    def next(self) -> MessageQueue:
        """The queue for the next messages that have no given queue."""
        return self.queues[self._turn % len(self.queues)]

    def pass_turn(self) -> None:
        self._turn += 1

    def named_queues(self, messages: MessageColumns) -> list[MessageQueue | None] | None:
        """Return the queue of each message, chosen by column queueId or shardingKey.

        The queue is None for a message with neither value. Return None instead of a list if both columns are missing.
        Raises `UsageError` for a queue that does not exist.
        """
        keys = None if messages.sharding_keys is None else messages.sharding_keys.to_pylist()
        ids = None if messages.queue_ids is None else messages.queue_ids.to_pylist()
        if ids is None:
            return None if keys is None else [None if key is None else self._of_key(key) for key in keys]
        keys = keys or [None] * len(messages)
        brokers = [None] * len(messages) if messages.broker_names is None else messages.broker_names.to_pylist()
        return [
            self.named(broker, queue_id) if queue_id is not None else None if key is None else self._of_key(key)
            for broker, queue_id, key in zip(brokers, ids, keys, strict=True)
        ]

    def missing_brokers(self, messages: MessageColumns) -> set[str]:
        """Return the brokers that messages name in column brokerName, and that have no queue of this topic."""
        if messages.queue_ids is None or messages.broker_names is None:
            return set()
        return set(pc.unique(messages.broker_names.drop_null()).to_pylist()).difference(self._brokers)

    def named(self, broker: str | None, queue_id: int) -> MessageQueue:
        """Return the queue with this id at this broker.

        Raises `UsageError` if there is no such queue, or if `broker` is None and several brokers have the topic.
        """
        if broker is None:
            if len(self._brokers) > 1:
                raise UsageError(
                    f"queueId {queue_id} of topic {self.name} is not unique: brokers {', '.join(self._brokers)} have"
                    " the topic; give column brokerName, too"
                )
            broker = self._brokers[0]
        queue = self._by_place.get((broker, queue_id))
        if queue is None:
            raise UsageError(
                f"topic {self.name} has no queue {queue_id} at {broker} to write to; there are "
                + ", ".join(f"{each.queue_id} at {each.broker_name}" for each in self.queues[:16])
            )
        return queue


class OpenRuns:
    """The open runs of one task: a batch message for each queue. Full runs are passed to `send(queue, body, messages)`.

    `queues_of(topic, brokers)` returns the queues of a topic; `brokers` are those that rows name.
    """

    def __init__(
        self,
        queues_of: Callable[[str, Collection[str]], list[MessageQueue]],
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

    def add(self, topic: str | None, messages: MessageColumns) -> None:
        """Add messages to the runs of their queues. If `topic` is None, each message goes to its own topic.

        Raises `UsageError` for a queue that does not exist.
        """
        if topic is not None:
            self._add_to(self._topic(topic), messages)
            return
        assert messages.topics is not None
        for name in pc.unique(messages.topics).to_pylist():
            mask = pc.equal(messages.topics, name).to_numpy(zero_copy_only=False)
            self._add_to(self._topic(name), messages if mask.all() else messages.where(mask))

    def queue_of(self, topic: str, messages: MessageColumns) -> MessageQueue:
        """Return the queue for a message that is sent alone."""
        named = self._topic(topic).named_queues(messages)
        return (named and named[0]) or self._topic(topic).next

    def flush(self) -> None:
        """Send all open runs, full or not."""
        for queue in list(self._runs):
            self._close(queue)

    def _topic(self, name: str) -> _Topic:
        if name not in self._topics:
            self._topics[name] = _Topic(name, self._queues_of(name, ()))
        return self._topics[name]

    def _add_to(self, topic: _Topic, messages: MessageColumns) -> None:
        if missing := topic.missing_brokers(messages):
            topic = self._topics[topic.name] = _Topic(topic.name, self._queues_of(topic.name, missing))
        named = topic.named_queues(messages)
        if named is None:
            self._fill(topic, None, messages.members)
            return
        different = list(dict.fromkeys(named))
        numbers = {queue: number for number, queue in enumerate(different)}
        wanted = np.fromiter((numbers[queue] for queue in named), np.int32, len(named))
        for number, queue in enumerate(different):
            chosen = np.flatnonzero(wanted == number)
            members = messages.members if len(different) == 1 else messages.members.take(chosen)
            self._fill(topic, queue, members)

    def _fill(self, topic: _Topic, only: MessageQueue | None, members: BatchMembers) -> None:
        """Add encoded messages to runs of queue `only`.

        If `only` is None, use the next queue, which changes with each full run.
        """
        ends = members.ends
        first, count = 0, len(members)
        while first < count:
            queue = only or topic.next
            run = self._runs.get(queue)
            if run is None:
                run = self._runs[queue] = _Run()
            last = int(np.searchsorted(ends, ends[first] + self._run_bytes - run.size, "right")) - 1
            if last <= first:
                if run.messages:
                    self._close(queue)
                    continue
                last = first + 1  # a message larger than `run_bytes` is a run by itself
            run.parts.append(members.between(first, last))
            run.size += int(ends[last] - ends[first])
            run.messages += last - first
            self._size += int(ends[last] - ends[first])
            first = last
            if run.size >= self._run_bytes or first < count:
                self._close(queue)
            elif self._size > MAX_BUFFERED * self._run_bytes:
                self._close(max(self._runs, key=lambda each: self._runs[each].size))

    def _close(self, queue: MessageQueue) -> None:
        run = self._runs.pop(queue)
        self._size -= run.size
        topic = self._topics[queue.topic]
        if queue == topic.next:
            topic.pass_turn()
        self._send(queue, b"".join(run.parts), run.messages)
