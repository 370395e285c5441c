"""What a broker tells Prometheus: counters and tables that are there anyway. Nothing is counted for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized

from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.consuming.lags import Lag, Lags, in_steps
from pyromq.broker.consuming.store_times import StoreTimes, stored_time
from pyromq.broker.members.connections import Connections
from pyromq.broker.metrics import families
from pyromq.broker.metrics.families import LAG, LAG_LATENCY, QUEUE_LAG, QUEUE_LAG_SECONDS
from pyromq.broker.metrics.reading_labels import reading_labels, truth
from pyromq.broker.shared_state import SharedState
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.metrics.exposition import Exposition, label_text
from pyromq.metrics.server import tell_server
from pyromq.names import DEAD_LETTER_PREFIX, SCHEDULE_TOPIC, is_system_group, is_system_topic
from pyromq.remoting.codes import version_name
from pyromq.slow_work import breathe
from pyromq.store.message_store import MessageStore
from pyromq.store.retention import around

_MODES = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}
_LOCAL = label_text(storage_type="local", storage_medium="disk")
_REMOTING = label_text(protocol_type="remoting")


class BrokerMetrics:
    """One broker; `sessions` are its connections.

    The first samples are few, then come those by topic, by group and, as details, by queue.
    """

    def __init__(self, state: SharedState, sessions: Sized) -> None:
        self._state = state
        self._sessions = sessions
        config = state.config
        self._common = label_text(cluster=config.cluster, node_type="broker", node_id=config.name)
        self._lags = LagSamples(
            state.store, state.offsets, topics=state.topics, connections=state.connections, clock=state.clock
        )

    def faults(self) -> dict[str, str]:
        """What a broker needs to be of use: a store that takes messages, and one name server that knows it."""
        state = self._state
        asked = state.config.namesrv
        unknown = bool(asked) and not state.registering.registered
        return {
            "store": state.store.refusal,
            "name servers": f"none of {', '.join(asked)} knows this broker" if unknown else "",
            "permissions": state.permissions.fault or "",
        }

    async def tell(self, exposition: Exposition) -> None:
        refusals = self._state.refusals
        tell_server(exposition, self._common, connections=len(self._sessions), refusals=refusals)
        self._tell_broker(exposition)
        await breathe()
        await self._tell_store(exposition)
        await breathe()
        self._tell_waiting(exposition)
        await breathe()
        await self._tell_members(exposition)
        await self._tell_topics(exposition)
        await self._tell_readers(exposition)
        await self._lags.tell(exposition, self._common)

    def _tell_broker(self, exposition: Exposition) -> None:
        state, common = self._state, self._common
        exposition.add(families.PERMISSION, common, state.config.permission)
        exposition.add(families.TOPICS, common, len(state.topics))
        exposition.add(families.GROUPS, common, sum(1 for _ in state.groups))
        exposition.add(families.NAME_SERVERS, common, len(state.registering.versions))
        exposition.add(families.REGISTERED, common, len(state.registering.registered))
        exposition.add(families.FAILED_PUTS, common, state.statistics.failed_puts)
        exposition.add(families.EMPTY_PULLS, common, state.statistics.get_misses)

    async def _tell_store(self, exposition: Exposition) -> None:
        store, common = self._state.store, self._common
        stored = f"{common},{_LOCAL}"
        _, used, free = around(store.config.root)
        exposition.add(families.TAKES_MESSAGES, common, int(not store.refusal))
        exposition.add(families.MISSING_FILES, common, len(store.missing_files))
        exposition.add(families.STORAGE, stored, used)
        exposition.add(families.DISK_FREE, common, free)
        exposition.add(families.DISK_USED, common, round(used / ((used + free) or 1), 4))
        exposition.add(families.LOG_BYTES, common, store.max_log_offset - store.min_log_offset)
        exposition.add(families.FLUSH_BEHIND, stored, max(0, store.max_log_offset - store.flushed_to))
        exposition.add(families.INDEX_BEHIND, stored, store.index_behind)
        since = await stored_time(store, store.min_log_offset)
        exposition.add(families.RESERVED, stored, 0 if since is None else self._state.clock.now_ms() - since)

    def _tell_waiting(self, exposition: Exposition) -> None:
        state, common = self._state, self._common
        for processor, waiting in (
            ("send", state.confirmation),
            ("pull", state.cold_reads.waiting),
            ("query_message", state.slow_replies),
        ):
            exposition.add(families.WAITING, f"{common},{label_text(processor=processor)}", len(waiting))
        exposition.add(families.HELD_PULLS, common, len(state.long_polls))
        exposition.add(families.HALF, common, len(state.half_messages))
        done, name = state.delay_levels.offsets(), SCHEDULE_TOPIC
        for level in range(1, len(state.store.config.delay_levels_ms) + 1):
            begin, end = state.store.min_offset(name, level - 1), state.store.max_offset(name, level - 1)
            labels = f"{common},{label_text(level=str(level))}"
            exposition.add(families.DELAYED, labels, max(0, end - max(begin, done.get(level, 0))))
        for topic, count in state.timers.index.pending.items():
            exposition.add(families.TIMING, f"{common},{label_text(topic=topic)}", count)

    async def _tell_members(self, exposition: Exposition) -> None:
        connections = self._state.connections
        producers: Counter[tuple[str, int]] = Counter()
        for name in connections.producer_groups():
            producers.update((member.language, member.version) for member in connections.producers(name))
            await breathe()
        for (language, version), count in producers.items():
            exposition.add(families.PRODUCERS, f"{self._common},{_client(language, version)}", count)
        for group in list(connections.consumer_groups()):
            consumers = Counter((member.language, member.version) for member in group.members)
            for (language, version), count in consumers.items():
                labels = label_text(
                    consume_mode=_MODES.get(group.consume_type, "push"), is_system=truth(is_system_group(group.name))
                )
                client = f"{label_text(consumer_group=group.name)},{_client(language, version)}"
                exposition.add(families.CONSUMERS, f"{self._common},{client},{labels}", count)
            await breathe()

    async def _tell_topics(self, exposition: Exposition) -> None:
        for topic, counter in self._state.statistics.puts_by_topic():
            labels = f"{self._common},{label_text(topic=topic, is_system=truth(is_system_topic(topic)))}"
            exposition.add(families.MESSAGES_IN, labels, counter.count)
            exposition.add(families.BYTES_IN, labels, counter.size)
            if topic.startswith(DEAD_LETTER_PREFIX):
                group = topic.removeprefix(DEAD_LETTER_PREFIX)
                labels = label_text(consumer_group=group, is_system=truth(is_system_group(group)))
                exposition.add(families.DEAD_LETTERS, f"{self._common},{labels}", counter.count)
            await breathe()

    async def _tell_readers(self, exposition: Exposition) -> None:
        statistics = self._state.statistics
        for (topic, group), counter in statistics.gets_by_group():
            labels = f"{self._common},{reading_labels(group, topic)}"
            exposition.add(families.MESSAGES_OUT, labels, counter.count)
            exposition.add(families.BYTES_OUT, labels, counter.size)
            await breathe()
        for (topic, group), counter in statistics.send_backs_by_group():
            labels = label_text(consumer_group=group, topic=topic)
            exposition.add(families.SENT_BACK, f"{self._common},{labels}", counter.count)
            await breathe()


def _client(language: str, version: int) -> str:
    return f"{label_text(language=language.lower(), version=version_name(version).lower())},{_REMOTING}"


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
        self._offsets = offsets
        self._times = StoreTimes(store)
        self._lags = Lags(store, offsets, self._times)
        self._topics = topics
        self._connections = connections
        self._clock = clock

    async def tell(self, exposition: Exposition, common: str) -> None:
        """Add the lags; `common` are the labels of all."""
        self._times.begin_round()
        for key in self._offsets.keys():  # noqa: SIM118  it is no dict
            topic, _, group = key.partition("@")
            config = self._topics.find(topic)
            await breathe()
            if config is None or exposition.is_full or not self._connections.subscribes(group, topic):
                continue
            lag = Lag(group, topic)
            await self._lags.look(lag, config.read_queues)
            await self._tell(exposition, common, lag)

    async def _tell(self, exposition: Exposition, common: str, lag: Lag) -> None:
        now = self._clock.now_ms()
        labels = f"{common},{reading_labels(lag.group, lag.topic)}"
        exposition.add(LAG, labels, lag.count)
        exposition.add(LAG_LATENCY, labels, lag.age_ms(now))
        labels = f"{common},{label_text(consumer_group=lag.group, topic=lag.topic)}"
        for queue_ids in in_steps(len(lag.counts)):
            await breathe()
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
