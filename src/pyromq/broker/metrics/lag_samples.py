"""What Prometheus is told of how far groups are behind, for each of their topics and queues."""

from __future__ import annotations

from pyromq.broker.admin.consume_stats import subscribes
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.consuming.lags import Lag, Lags, in_steps
from pyromq.broker.consuming.store_times import StoreTimes
from pyromq.broker.members.connections import Connections
from pyromq.broker.metrics.families import LAG, LAG_LATENCY, QUEUE_LAG, QUEUE_LAG_SECONDS
from pyromq.broker.metrics.loading import loaded
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
            yield from loaded(self._lags.look(lag, config.read_queues), self._disk)
            yield from self._tell(exposition, common, lag)

    def _tell(self, exposition: Exposition, common: str, lag: Lag) -> Telling:
        now = self._clock.now_ms()
        labels = f"{common},{reading_labels(lag.group, lag.topic)}"
        exposition.add(LAG, labels, lag.count)
        exposition.add(LAG_LATENCY, labels, lag.age_ms(now))
        labels = f"{common},{label_text(consumer_group=lag.group, topic=lag.topic)}"
        for queue_ids in in_steps(len(lag.counts)):
            yield None
            if not exposition.wants_details:
                exposition.left_out = True
                return
            counts = {queue_id: lag.counts[queue_id] for queue_id in queue_ids}
            exposition.add_details(QUEUE_LAG, labels, "queue_id", counts)
            ages_ms = {queue_id: now - lag.stored_ms.get(queue_id, now) for queue_id in queue_ids}
            ages = {
                queue_id: max(0, age_ms) / 1000
                for queue_id, age_ms in ages_ms.items()
                if queue_id in lag.stored_ms or not counts[queue_id]
            }
            exposition.add_details(QUEUE_LAG_SECONDS, labels, "queue_id", ages)
