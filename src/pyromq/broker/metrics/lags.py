"""How far groups are behind, in messages and in time, for each of their topics and queues."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

from pyromq.broker.admin.consume_stats import subscribes
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.members.connections import Connections
from pyromq.broker.metrics.families import LAG, LAG_LATENCY, QUEUE_LAG, QUEUE_LAG_SECONDS
from pyromq.broker.metrics.reading_labels import reading_labels
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.metrics.exposition import Exposition, Telling, label_text
from pyromq.record import FIXED_SIZE, store_ms_of
from pyromq.store.message_store import MessageStore

MOST_COLD = 2_000  # records that one scrape reads from the disk; the age of others is told by the next ones


class Lags:
    """Tells lags of the groups that have stored offsets, of the topics that they still subscribe to.

    The age of a message is read from its record, once for as long as no group moves on. Those far back are not in
    memory: a thread reads them.
    """

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsets,
        *,
        topics: Topics,
        connections: Connections,
        clock: Clock,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._connections = connections
        self._clock = clock
        self._known: dict[int, int] = {}  # log offset to store time (ms) of first messages, by the last scrape

    def tell(self, exposition: Exposition, common: str) -> Telling:
        """Add the lags; `common` are the labels of all."""
        known, self._known = self._known, {}
        read = 0
        for key in self._offsets.keys():  # noqa: SIM118  it is no dict
            topic, _, group = key.partition("@")
            config = self._topics.find(topic)
            yield None
            if config is None or exposition.is_full or not subscribes(self._connections, group, topic):
                continue
            lag = _Lag(group, topic)
            yield from self._look(lag, config.read_queues, known)
            if lag.cold and read < MOST_COLD:
                read += len(lag.cold)
                yield partial(self._store.disk.load, list(lag.cold.values()))
                for queue_id, record in lag.cold.items():
                    lag.stored_ms[queue_id] = self._known[lag.begins[queue_id]] = store_ms_of(record)
            yield from self._tell(exposition, common, lag)

    def _look(self, lag: _Lag, queues: int, known: dict[int, int]) -> Telling:
        """Find how many messages are not consumed, and when the first of them was stored."""
        store, topic = self._store, lag.topic
        consumed = self._offsets.of_topic(lag.group, topic)
        for queue_id in range(queues):
            yield None
            offset = consumed.get(queue_id, 0)
            count = lag.counts[queue_id] = max(0, store.max_offset(topic, queue_id) - offset)
            if not count:
                continue
            log_offset = store.reading.begin_from(topic, queue_id, offset)
            if log_offset is None:
                continue
            lag.begins[queue_id] = log_offset
            if log_offset in known:
                lag.stored_ms[queue_id] = self._known[log_offset] = known[log_offset]
                continue
            if store.is_cold(log_offset):
                cold = store.records(topic, queue_id, max(offset, store.min_offset(topic, queue_id)), 1)
                lag.cold.update((queue_id, record[:FIXED_SIZE]) for _, record in cold if record is not None)
            elif (record := store.record_at(log_offset)) is not None:
                lag.stored_ms[queue_id] = self._known[log_offset] = store_ms_of(record)

    def _tell(self, exposition: Exposition, common: str, lag: _Lag) -> Telling:
        now, stored_ms = self._clock.now_ms(), lag.stored_ms
        labels = f"{common},{reading_labels(lag.group, lag.topic)}"
        exposition.add(LAG, labels, sum(lag.counts.values()))
        exposition.add(LAG_LATENCY, labels, max(0, now - min(stored_ms.values(), default=now)))
        labels = f"{common},{label_text(consumer_group=lag.group, topic=lag.topic)},queue_id="
        for queue_id, count in lag.counts.items():
            yield None
            if not exposition.wants_details:
                exposition.left_out = True
                return
            of_queue = f'{labels}"{queue_id}"'
            exposition.add(QUEUE_LAG, of_queue, count)
            if queue_id in stored_ms:
                exposition.add(QUEUE_LAG_SECONDS, of_queue, max(0, now - stored_ms[queue_id]) / 1000)
            elif not count:
                exposition.add(QUEUE_LAG_SECONDS, of_queue, 0)


@dataclass(slots=True)
class _Lag:
    """A group in a topic, by queue: how many messages it has not consumed, where the first begins, and since when."""

    group: str
    topic: str
    counts: dict[int, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)  # log offsets
    stored_ms: dict[int, int] = field(default_factory=dict)
    cold: dict[int, memoryview] = field(default_factory=dict)  # records that are not in memory
