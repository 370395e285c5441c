"""What Prometheus is told of how far groups are behind, for each of their topics and queues."""

from __future__ import annotations

from functools import partial

from pyromq.broker.admin.consume_stats import subscribes
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.consuming.lags import Lag, Lags
from pyromq.broker.consuming.store_times import StoreTimes
from pyromq.broker.members.connections import Connections
from pyromq.broker.metrics.families import LAG, LAG_LATENCY, QUEUE_LAG, QUEUE_LAG_SECONDS
from pyromq.broker.metrics.reading_labels import reading_labels
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.metrics.exposition import Exposition, Telling, label_text
from pyromq.store.message_store import MessageStore


class LagSamples:
    """Tells lags of the groups that have stored offsets, of the topics that they still subscribe to."""

    def __init__(
        self,
        store: MessageStore,
        offsets: ConsumerOffsets,
        *,
        topics: Topics,
        connections: Connections,
        clock: Clock,
    ) -> None:
        self._disk = store.disk
        self._offsets = offsets
        self._times = StoreTimes(store)
        self._lags = Lags(store, offsets, self._times)
        self._topics = topics
        self._connections = connections
        self._clock = clock

    def tell(self, exposition: Exposition, common: str) -> Telling:
        """Add the lags; `common` are the labels of all."""
        self._times.begin_round()
        for key in self._offsets.keys():  # noqa: SIM118  it is no dict
            topic, _, group = key.partition("@")
            config = self._topics.find(topic)
            yield None
            if config is None or exposition.is_full or not subscribes(self._connections, group, topic):
                continue
            lag = Lag(group, topic)
            for unread in self._lags.look(lag, config.read_queues):
                yield partial(self._disk.load, unread) if unread else None
            yield from self._tell(exposition, common, lag)

    def _tell(self, exposition: Exposition, common: str, lag: Lag) -> Telling:
        now = self._clock.now_ms()
        labels = f"{common},{reading_labels(lag.group, lag.topic)}"
        exposition.add(LAG, labels, lag.count)
        exposition.add(LAG_LATENCY, labels, lag.age_ms(now))
        labels = f"{common},{label_text(consumer_group=lag.group, topic=lag.topic)},queue_id="
        for queue_id, count in lag.counts.items():
            yield None
            if not exposition.wants_details:
                exposition.left_out = True
                return
            of_queue = f'{labels}"{queue_id}"'
            exposition.add(QUEUE_LAG, of_queue, count)
            if queue_id in lag.stored_ms:
                exposition.add(QUEUE_LAG_SECONDS, of_queue, max(0, now - lag.stored_ms[queue_id]) / 1000)
            elif not count:
                exposition.add(QUEUE_LAG_SECONDS, of_queue, 0)
