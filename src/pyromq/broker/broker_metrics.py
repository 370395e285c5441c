"""The metrics of a broker: their families, and their samples from counters and tables that the broker keeps anyway.

Metrics whose names do not begin with `pyromq_` are RocketMQ 5's, with its labels and units as far as they are known.
Source: RocketMQ 5, BrokerMetricsConstant, BrokerMetricsManager, DefaultStoreMetricsConstant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sized

from pyromq.broker.consuming.lags import Lag, Lags, StoreTimes, in_steps, stored_time
from pyromq.broker.shared_state import SharedState
from pyromq.metrics.exposition import Exposition, Family, MetricKind, add_server_samples, label_text
from pyromq.names import DEAD_LETTER_PREFIX, RETRY_PREFIX, SCHEDULE_TOPIC, is_system_group, is_system_topic
from pyromq.remoting.codes import version_name
from pyromq.slow_work import yield_slice
from pyromq.store.retention import around

_COUNTER, _GAUGE = MetricKind.COUNTER, MetricKind.GAUGE
_READ = ("consumer_group", "topic", "is_retry", "is_system")
_QUEUE = ("consumer_group", "topic", "queue_id")
_MEMBER = ("language", "version", "protocol_type")

# Metrics of stored and read messages.
MESSAGES_IN = Family("rocketmq_messages_in_total", _COUNTER, "Messages stored, by topic.", ("topic", "is_system"))
BYTES_IN = Family("rocketmq_throughput_in_total", _COUNTER, "Bytes stored, by topic.", ("topic", "is_system"), "bytes")
MESSAGES_OUT = Family(
    "rocketmq_messages_out_total", _COUNTER, "Messages that consumers pulled, by group and topic.", _READ
)
BYTES_OUT = Family("rocketmq_throughput_out_total", _COUNTER, "Bytes that consumers pulled.", _READ, "bytes")
DEAD_LETTERS = Family(
    "rocketmq_send_to_dlq_messages_total",
    _COUNTER,
    "Messages stored as dead letters, by group.",
    ("consumer_group", "is_system"),
)
SENT_BACK = Family(
    "pyromq_sent_back_messages_total",
    _COUNTER,
    "Messages that consumers sent back, to be redelivered, by group and topic.",
    ("consumer_group", "topic"),
)
FAILED_PUTS = Family("pyromq_failed_puts_total", _COUNTER, "Messages that the store refused.")
EMPTY_PULLS = Family("pyromq_empty_pulls_total", _COUNTER, "Pulls that found no message.")

# Metrics of how far consumer groups are behind.
LAG = Family("rocketmq_consumer_lag_messages", _GAUGE, "Messages that a group has not consumed yet.", _READ)
LAG_LATENCY = Family(
    "rocketmq_consumer_lag_latency",
    _GAUGE,
    "Age of the oldest message that a group has not consumed yet; 0 if there is none.",
    _READ,
    "milliseconds",
)
IN_FLIGHT = Family(
    "rocketmq_consumer_inflight_messages",
    _GAUGE,
    "Popped messages that are neither acknowledged nor visible again, by group and topic.",
    _READ,
)
READY = Family(
    "rocketmq_consumer_ready_messages",
    _GAUGE,
    "Messages never handed out to a group that pops, by group and topic.",
    _READ,
)
QUEUE_LAG = Family(
    "pyromq_consumer_queue_lag_messages",
    _GAUGE,
    "Messages that a group has not consumed yet, by queue.",
    _QUEUE,
    detail=True,
)
QUEUE_LAG_SECONDS = Family(
    "pyromq_consumer_queue_lag_seconds",
    _GAUGE,
    "Age of the oldest message of a queue that a group has not consumed yet; 0 if there is none.",
    _QUEUE,
    "seconds",
    detail=True,
)

# Metrics of connections and waiting requests.
PRODUCERS = Family("rocketmq_producer_connections", _GAUGE, "Producers, by their language and version.", _MEMBER)
CONSUMERS = Family(
    "rocketmq_consumer_connections",
    _GAUGE,
    "Consumers, by group, language and version.",
    ("consumer_group", *_MEMBER, "consume_mode", "is_system"),
)
WAITING = Family(
    "rocketmq_processor_watermark",
    _GAUGE,
    "Waiting requests: sends wait for the disk, pulls for records from the disk, queries for their next slice.",
    ("processor",),
)
HELD_PULLS = Family("pyromq_held_pulls", _GAUGE, "Pulls that wait for a message (long polls).")

# Metrics of the broker and its store.
PERMISSION = Family("rocketmq_broker_permission", _GAUGE, "Permission of the broker: 2 write, 4 read, 6 both.")
TOPICS = Family("rocketmq_topic_number", _GAUGE, "Topics, including system topics.")
GROUPS = Family("rocketmq_consumer_group_number", _GAUGE, "Consumer groups that have settings.")
NAME_SERVERS = Family("pyromq_name_servers", _GAUGE, "Name servers with which this broker must register.")
REGISTERED = Family("pyromq_name_servers_registered", _GAUGE, "Name servers that know this broker now.")
TAKES_MESSAGES = Family("pyromq_store_takes_messages", _GAUGE, "1 if the store accepts messages, 0 if it refuses all.")
MISSING_FILES = Family(
    "pyromq_store_missing_files",
    _GAUGE,
    "Older log files, index files and tables that were deleted while the broker runs.",
)
_STORAGE = ("storage_type", "storage_medium")
STORAGE = Family(
    "rocketmq_storage_size", _GAUGE, "Used bytes of the disk that holds the data folder.", _STORAGE, "bytes"
)
DISK_FREE = Family(
    "pyromq_disk_free_bytes",
    _GAUGE,
    "Free bytes of the disk that holds the data folder, for the broker's user.",
    unit="bytes",
)
DISK_USED = Family(
    "pyromq_disk_used_ratio",
    _GAUGE,
    "Used part of the disk that holds the data folder, 0 to 1, as retention computes it.",
)
LOG_BYTES = Family("pyromq_log_bytes", _GAUGE, "Bytes of the commit log that retention has kept.", unit="bytes")
FLUSH_BEHIND = Family(
    "rocketmq_storage_flush_behind_bytes",
    _GAUGE,
    "Bytes of the commit log that are not flushed: a power loss would lose them.",
    _STORAGE,
    "bytes",
)
SLAVE_BEHIND = Family(
    "pyromq_slave_behind_bytes",
    _GAUGE,
    "Bytes of the commit log that a slave has not reported as stored, by slave.",
    ("slave",),
    "bytes",
)
FOLLOWS = Family("pyromq_slave_follows", _GAUGE, "1 if this slave follows its master, 0 if not. Only at slaves.")
INDEX_BEHIND = Family(
    "rocketmq_storage_dispatch_behind_bytes",
    _GAUGE,
    "Bytes of the commit log whose messages are not in the key index yet.",
    _STORAGE,
    "bytes",
)
RESERVED = Family(
    "rocketmq_storage_message_reserve_time",
    _GAUGE,
    "Age of the oldest message in the commit log.",
    _STORAGE,
    "milliseconds",
)

# Metrics of messages that wait to be delivered or decided.
TIMING = Family(
    "rocketmq_timing_messages", _GAUGE, "Scheduled messages that wait for their delivery time, by topic.", ("topic",)
)
DELAYED = Family("pyromq_delay_level_messages", _GAUGE, "Messages that wait in a delay level, by level.", ("level",))
ALL_IN_FLIGHT = Family(
    "pyromq_messages_in_flight", _GAUGE, "Popped messages that are neither acknowledged nor visible again."
)
POPS_IN_FLIGHT = Family(
    "pyromq_pops_in_flight", _GAUGE, "Pops with unfinished messages; maxPopsInFlight limits their number."
)
OVERDUE = Family(
    "pyromq_redelivery_late_seconds",
    _GAUGE,
    "How long the oldest message in flight is overdue; 0 if none is.",
    unit="seconds",
)
POP_JOURNAL = Family(
    "pyromq_pop_journal_bytes", _GAUGE, "Bytes of the journal of messages in flight, the folder `pops`.", unit="bytes"
)
HALF = Family("rocketmq_half_messages", _GAUGE, "Half messages of transactions that are not decided.")

FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family))


_MODES = {"CONSUME_PASSIVELY": "push", "CONSUME_ACTIVELY": "pull"}
_LOCAL = label_text(storage_type="local", storage_medium="disk")
_REMOTING = label_text(protocol_type="remoting")


class BrokerMetrics:
    """The metrics of one broker; `sessions` are its connections.

    Samples of the whole broker come first, then samples by topic, by group, and last, as details, by queue.
    """

    def __init__(self, state: SharedState, sessions: Sized) -> None:
        self._state = state
        self._sessions = sessions
        config = state.config
        self._common = label_text(cluster=config.cluster, node_type="broker", node_id=config.name)
        self._lags = LagSamples(state)

    def faults(self) -> dict[str, str]:
        """Return for store, name servers and permissions why the broker is unusable; "" for a part without fault."""
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
        add_server_samples(exposition, self._common, connections=len(self._sessions), refusals=refusals)
        self._tell_broker(exposition)
        await yield_slice()
        await self._tell_store(exposition)
        await yield_slice()
        self._tell_waiting(exposition)
        await yield_slice()
        await self._tell_members(exposition)
        await self._tell_topics(exposition)
        await self._tell_readers(exposition)
        await self._lags.tell(exposition, self._common)

    def _tell_broker(self, exposition: Exposition) -> None:
        state, common = self._state, self._common
        exposition.add(PERMISSION, common, state.config.permission)
        exposition.add(TOPICS, common, len(state.topics))
        exposition.add(GROUPS, common, sum(1 for _ in state.groups))
        exposition.add(NAME_SERVERS, common, len(state.registering.versions))
        exposition.add(REGISTERED, common, len(state.registering.registered))
        exposition.add(FAILED_PUTS, common, state.statistics.failed_puts)
        exposition.add(EMPTY_PULLS, common, state.statistics.get_misses)
        if state.ha_service is not None:
            for address, reported in state.ha_service.slaves:
                behind = state.store.max_log_offset - reported
                exposition.add(SLAVE_BEHIND, f"{common},{label_text(slave=address)}", behind)
        if state.ha_client is not None:
            exposition.add(FOLLOWS, common, int(state.ha_client.connection is not None))

    async def _tell_store(self, exposition: Exposition) -> None:
        store, common = self._state.store, self._common
        stored = f"{common},{_LOCAL}"
        _, used, free = around(store.config.root)
        exposition.add(TAKES_MESSAGES, common, int(not store.refusal))
        exposition.add(MISSING_FILES, common, len(store.missing_files))
        exposition.add(STORAGE, stored, used)
        exposition.add(DISK_FREE, common, free)
        exposition.add(DISK_USED, common, round(used / ((used + free) or 1), 4))
        exposition.add(LOG_BYTES, common, store.max_log_offset - store.min_log_offset)
        exposition.add(FLUSH_BEHIND, stored, max(0, store.max_log_offset - store.flushed_to))
        exposition.add(INDEX_BEHIND, stored, store.index_behind)
        since = await stored_time(store, store.min_log_offset)
        exposition.add(RESERVED, stored, 0 if since is None else self._state.clock.now_ms() - since)

    def _tell_waiting(self, exposition: Exposition) -> None:
        state, common = self._state, self._common
        for processor, waiting in (
            ("send", state.confirmation),
            ("pull", state.cold_reads.waiting),
            ("query_message", state.slow_replies),
        ):
            exposition.add(WAITING, f"{common},{label_text(processor=processor)}", len(waiting))
        exposition.add(HELD_PULLS, common, len(state.long_polls))
        exposition.add(ALL_IN_FLIGHT, common, state.pops.in_flight.count)
        exposition.add(POPS_IN_FLIGHT, common, state.pops.in_flight.pops.used)
        due_ms = state.pops.in_flight.next_due_ms()
        late_ms = 0 if due_ms is None else max(0, state.clock.now_ms() - due_ms)
        exposition.add(OVERDUE, common, late_ms / 1000)
        exposition.add(POP_JOURNAL, common, state.pops.journal_bytes)
        exposition.add(HALF, common, len(state.half_messages))
        done, name = state.delay_levels.offsets(), SCHEDULE_TOPIC
        for level in range(1, len(state.store.config.delay_levels_ms) + 1):
            begin, end = state.store.min_offset(name, level - 1), state.store.max_offset(name, level - 1)
            labels = f"{common},{label_text(level=str(level))}"
            exposition.add(DELAYED, labels, max(0, end - max(begin, done.get(level, 0))))
        for topic, count in state.timers.index.pending.items():
            exposition.add(TIMING, f"{common},{label_text(topic=topic)}", count)

    async def _tell_members(self, exposition: Exposition) -> None:
        connections = self._state.connections
        producers: Counter[tuple[str, int]] = Counter()
        for name in connections.producer_groups():
            producers.update((member.language, member.version) for member in connections.producers(name))
            await yield_slice()
        for (language, version), count in producers.items():
            exposition.add(PRODUCERS, f"{self._common},{_client(language, version)}", count)
        for group in list(connections.consumer_groups()):
            consumers = Counter((member.language, member.version) for member in group.members)
            for (language, version), count in consumers.items():
                labels = label_text(
                    consume_mode=_MODES.get(group.consume_type, "push"), is_system=truth(is_system_group(group.name))
                )
                client = f"{label_text(consumer_group=group.name)},{_client(language, version)}"
                exposition.add(CONSUMERS, f"{self._common},{client},{labels}", count)
            await yield_slice()

    async def _tell_topics(self, exposition: Exposition) -> None:
        for topic, counter in self._state.statistics.puts_by_topic():
            labels = f"{self._common},{label_text(topic=topic, is_system=truth(is_system_topic(topic)))}"
            exposition.add(MESSAGES_IN, labels, counter.count)
            exposition.add(BYTES_IN, labels, counter.size)
            if topic.startswith(DEAD_LETTER_PREFIX):
                group = topic.removeprefix(DEAD_LETTER_PREFIX)
                labels = label_text(consumer_group=group, is_system=truth(is_system_group(group)))
                exposition.add(DEAD_LETTERS, f"{self._common},{labels}", counter.count)
            await yield_slice()

    async def _tell_readers(self, exposition: Exposition) -> None:
        statistics = self._state.statistics
        for (topic, group), counter in statistics.gets_by_group():
            labels = f"{self._common},{reading_labels(group, topic)}"
            exposition.add(MESSAGES_OUT, labels, counter.count)
            exposition.add(BYTES_OUT, labels, counter.size)
            await yield_slice()
        for (topic, group), counter in statistics.send_backs_by_group():
            labels = label_text(consumer_group=group, topic=topic)
            exposition.add(SENT_BACK, f"{self._common},{labels}", counter.count)
            await yield_slice()


def _client(language: str, version: int) -> str:
    return f"{label_text(language=language.lower(), version=version_name(version).lower())},{_REMOTING}"


class LagSamples:
    """Adds the lags of groups with stored offsets, in topics to which the groups still subscribe."""

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._offsets = state.offsets
        self._times = StoreTimes(state.store)
        self._lags = Lags(state.store, state.offsets, self._times)
        self._topics = state.topics
        self._in_flight = state.pops.in_flight
        self._connections = state.connections
        self._clock = state.clock

    async def tell(self, exposition: Exposition, common: str) -> None:
        """Add the lags of all groups to the exposition. `common` are the labels that all samples have."""
        self._times.begin_round()
        for key in self._offsets.keys():  # noqa: SIM118  `ConsumerOffsets` is not a dict
            topic, _, group = key.partition("@")
            config = self._topics.find(topic)
            await yield_slice()
            if config is None or exposition.is_full or not self._connections.subscribes(group, topic):
                continue
            lag = Lag(group, topic)
            await self._lags.fill(lag, config.read_queues)
            await self._tell(exposition, common, lag)

    async def _tell(self, exposition: Exposition, common: str, lag: Lag) -> None:
        now = self._clock.now_ms()
        labels = f"{common},{reading_labels(lag.group, lag.topic)}"
        exposition.add(LAG, labels, lag.count)
        exposition.add(LAG_LATENCY, labels, lag.age_ms(now))
        if popped := self._in_flight.queues(lag.group, lag.topic):
            exposition.add(IN_FLIGHT, labels, self._in_flight.count_of(lag.group, lag.topic))
            ready = sum(self._store.max_offset(lag.topic, at) - each.next_offset for at, each in popped.items())
            exposition.add(READY, labels, max(0, ready))
        labels = f"{common},{label_text(consumer_group=lag.group, topic=lag.topic)}"
        for queue_ids in in_steps(len(lag.counts)):
            await yield_slice()
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


def reading_labels(group: str, topic: str) -> str:
    """Return the labels of a group that reads a topic. Source: RocketMQ 5, BrokerMetricsManager.buildLagAttributes."""
    return label_text(
        consumer_group=group,
        topic=topic,
        is_retry=truth(topic.startswith(RETRY_PREFIX)),
        is_system=truth(is_system_topic(topic) or is_system_group(group)),
    )


def truth(value: bool) -> str:
    """Return "true" or "false": a label's value as Java writes it."""
    return "true" if value else "false"
