"""How far groups are in topics: queue bounds, stored offsets and store times put together. Asks, never changes.

There may be thousands of queues, so after each one it may be left for a while; so may records that are on disk only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.consuming.store_times import look_at
from pyromq.broker.members.connections import Connections
from pyromq.broker.statistics import Statistics
from pyromq.clock import Clock
from pyromq.message import MessageQueue
from pyromq.remoting.bodies import (
    ConsumedQueue,
    ConsumeStats,
    QueueTimeSpan,
    TopicConfig,
    TopicOffset,
    TopicStats,
    WireQueue,
)
from pyromq.store.looking import Looking
from pyromq.store.message_store import MessageStore
from pyromq.store.queue.reading import Place

Asked = tuple[int, int]  # about a message of a topic: queue id and queue offset


class Progress:
    """Reads one broker's store and offsets as tools want to see them. Times are ms; 0 where there is none."""

    def __init__(
        self, store: MessageStore, offsets: ConsumerOffsets, *, statistics: Statistics, broker_name: str, clock: Clock
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._statistics = statistics
        self._broker_name = broker_name
        self._clock = clock

    def of_topic(self, topic: TopicConfig) -> Looking[TopicStats]:
        """Bounds and last store time of the queues that can be sent to."""
        ends = {}
        for queue_id in range(topic.write_queues):
            ends[queue_id] = self._store.max_offset(topic.name, queue_id)
            yield []
        stored_ms = yield from self._stored_ms(topic, [(queue_id, end - 1) for queue_id, end in ends.items()])
        queues = {}
        for queue_id, end in ends.items():
            queues[self._queue(topic, queue_id)] = TopicOffset(
                min_offset=self._store.min_offset(topic.name, queue_id),
                max_offset=end,
                last_update_ms=stored_ms.get((queue_id, end - 1), 0),
            )
            yield []
        return TopicStats(queues=queues)

    def of_group(self, group: str, topic: TopicConfig) -> Looking[ConsumeStats]:
        """The group's offset in each queue that can be pulled from, beside the queue's end."""
        offsets = {}
        for queue_id in range(topic.read_queues):
            offsets[queue_id] = self._offsets.find(group, topic.name, queue_id) or 0
            yield []
        stored_ms = yield from self._stored_ms(topic, [(queue_id, offset - 1) for queue_id, offset in offsets.items()])
        queues = {}
        for queue_id, offset in offsets.items():
            queues[self._queue(topic, queue_id)] = ConsumedQueue(
                broker_offset=self._store.max_offset(topic.name, queue_id),
                consumer_offset=offset,
                last_ms=stored_ms.get((queue_id, offset - 1), 0),
            )
            yield []
        return ConsumeStats(consume_tps=self._statistics.group_rate(topic.name, group), queues=queues)

    def times(self, group: str, topic: TopicConfig) -> Looking[list[QueueTimeSpan]]:
        """Store times of the first, the last consumed and the last message of each queue, and the delay."""
        spans = []
        for queue_id in range(topic.write_queues):
            span = yield from self._times(group, topic, queue_id)
            spans.append(span)
        return spans

    def _times(self, group: str, topic: TopicConfig, queue_id: int) -> Looking[QueueTimeSpan]:
        begin, end = self._store.min_offset(topic.name, queue_id), self._store.max_offset(topic.name, queue_id)
        offset = self._offsets.find(group, topic.name, queue_id) or 0
        asked = [(queue_id, each) for each in (begin, end - 1, offset - 1, offset)]
        stored_ms = yield from self._stored_ms(topic, asked)
        first_ms, last_ms = stored_ms.get((queue_id, begin), -1), stored_ms.get((queue_id, end - 1), 0)
        consumed_ms = stored_ms.get((queue_id, offset - 1), 0) if offset > 0 else first_ms
        next_ms = stored_ms.get((queue_id, offset), 0) if offset < end else 0
        return QueueTimeSpan(
            queue=WireQueue.of(self._queue(topic, queue_id)),
            min_ms=first_ms,
            max_ms=last_ms,
            consumed_ms=consumed_ms,
            min_text=_text(first_ms),
            max_text=_text(last_ms),
            consumed_text=_text(consumed_ms),
            delay_ms=max(0, self._clock.now_ms() - next_ms) if next_ms else 0,
        )

    def _stored_ms(self, topic: TopicConfig, asked: Iterable[Asked]) -> Looking[dict[Asked, int]]:
        """Find when these messages were stored, without those that are not there."""
        known: dict[Asked, Place] = {}
        for queue_id, offset in asked:
            yield []
            if (place := self._store.reading.place(topic.name, queue_id, offset)) is not None:
                known[queue_id, offset] = place
        found: dict[Asked, int] = {}
        yield from look_at(self._store, known, found)
        return found

    def _queue(self, topic: TopicConfig, queue_id: int) -> MessageQueue:
        return MessageQueue(topic.name, self._broker_name, queue_id)


def subscribes(connections: Connections, group: str, topic: str) -> bool:
    """Whether what is stored for the group still counts: a connected group may have left the topic."""
    consumers = connections.consumers(group)
    return consumers is None or not consumers.subscriptions or topic in consumers.subscriptions


def _text(milliseconds: int) -> str:
    """Local time as upstream writes it: `yyyy-MM-dd#HH:mm:ss:SSS`."""
    local = time.localtime(milliseconds / 1000)
    return time.strftime("%Y-%m-%d#%H:%M:%S", local) + f":{milliseconds % 1000:03d}"
