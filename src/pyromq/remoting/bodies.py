"""The JSON bodies of requests and answers, as declarations; and the compressed form of a broker's registration.

Names on the wire are the camelCase of ours where `field(name=)` does not say otherwise; every member that a peer
might leave out has a default. Source: RocketMQ 4.9.8, common.protocol.body, .heartbeat, .route.
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

import msgspec
from msgspec import field

from pyromq.errors import ProtocolError
from pyromq.message import MessageQueue
from pyromq.remoting.json_quirks import decode_body, encode_body


_DECLARATION: dict[str, Any] = {"frozen": True, "rename": "camel"}  # as for headers: inherited, not repeated


class Body(msgspec.Struct, **_DECLARATION):
    """Base of the declared bodies."""


class DataVersion(Body):
    """A counter that changes with every change of a table; two tables with equal versions are equal."""

    counter: int = 0
    timestamp: int = 0
    state_version: int | None = None  # RocketMQ 5


class KeyValues(Body):
    """Texts by name."""

    table: dict[str, str] = {}


class TopicList(Body):
    """Topic names."""

    broker_address: str | None = field(name="brokerAddr", default=None)
    topics: list[str] = field(name="topicList", default_factory=list)


class GroupList(Body):
    """Group names."""

    groups: list[str] = field(name="groupList", default_factory=list)


# --- routes and clusters


class QueuesAtBroker(Body):
    """How many queues a topic has at one broker, and what may be done with them."""

    broker_name: str
    permission: int = field(name="perm", default=6)
    read_queues: int = field(name="readQueueNums", default=0)
    write_queues: int = field(name="writeQueueNums", default=0)
    sys_flag: int = field(name="topicSysFlag", default=0)


class BrokerAddresses(Body):
    """A broker's addresses by broker id; 0 is the master."""

    broker_name: str
    cluster: str = ""
    addresses: dict[int, str] = field(name="brokerAddrs", default_factory=dict)


class TopicRoute(Body):
    """The brokers that hold a topic."""

    brokers: list[BrokerAddresses] = field(name="brokerDatas", default_factory=list)
    filter_servers: dict[str, list[str]] = field(name="filterServerTable", default_factory=dict)
    order_conf: str | None = field(name="orderTopicConf", default=None)
    queues: list[QueuesAtBroker] = field(name="queueDatas", default_factory=list)


class ClusterTable(Body):
    """All brokers by name, and the broker names of each cluster."""

    brokers: dict[str, BrokerAddresses] = field(name="brokerAddrTable", default_factory=dict)
    clusters: dict[str, list[str]] = field(name="clusterAddrTable", default_factory=dict)


# --- topics and groups


class TopicConfig(Body):
    """A topic's settings at one broker."""

    name: str = field(name="topicName")
    read_queues: int = field(name="readQueueNums", default=16)
    write_queues: int = field(name="writeQueueNums", default=16)
    permission: int = field(name="perm", default=6)
    filter_type: str = field(name="topicFilterType", default="SINGLE_TAG")
    sys_flag: int = field(name="topicSysFlag", default=0)
    order: bool = False

    @property
    def is_single_tag(self) -> bool:
        return self.filter_type == "SINGLE_TAG"


class TopicConfigTable(Body):
    """All topics of a broker."""

    data_version: DataVersion = field(default_factory=DataVersion)
    topics: dict[str, TopicConfig] = field(name="topicConfigTable", default_factory=dict)


class GroupConfig(Body):
    """A consumer group's settings at one broker."""

    name: str = field(name="groupName")
    consume_enabled: bool = field(name="consumeEnable", default=True)
    consume_from_min_enabled: bool = field(name="consumeFromMinEnable", default=True)
    broadcast_enabled: bool = field(name="consumeBroadcastEnable", default=True)
    notify_changes: bool = field(name="notifyConsumerIdsChangedEnable", default=True)
    retry_queues: int = field(name="retryQueueNums", default=1)
    retry_max_times: int = 16
    broker_id: int = 0
    slow_broker_id: int = field(name="whichBrokerWhenConsumeSlowly", default=1)


class GroupConfigTable(Body):
    """All consumer groups of a broker."""

    data_version: DataVersion = field(default_factory=DataVersion)
    groups: dict[str, GroupConfig] = field(name="subscriptionGroupTable", default_factory=dict)


class BrokerRegistration(Body):
    """What a broker announces."""

    filter_servers: list[str] = field(name="filterServerList", default_factory=list)
    topics: TopicConfigTable = field(name="topicConfigSerializeWrapper", default_factory=TopicConfigTable)


# --- clients


class Subscription(Body):
    """What a group wants of one topic."""

    topic: str
    expression: str = field(name="subString", default="*")
    tags: list[str] = field(name="tagsSet", default_factory=list)
    codes: list[int] = field(name="codeSet", default_factory=list)
    version: int = field(name="subVersion", default=0)
    expression_type: str = "TAG"
    class_filter: bool = field(name="classFilterMode", default=False)


class ConsumerEntry(Body):
    """One consumer of a client."""

    group: str = field(name="groupName")
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = field(name="consumeFromWhere", default="CONSUME_FROM_LAST_OFFSET")
    subscriptions: list[Subscription] = field(name="subscriptionDataSet", default_factory=list)
    unit_mode: bool = False


class ProducerEntry(Body):
    """One producer of a client."""

    group: str = field(name="groupName")


class HeartbeatBody(Body):
    """A client's producers and consumers."""

    client_id: str = field(name="clientID")
    consumers: list[ConsumerEntry] = field(name="consumerDataSet", default_factory=list)
    producers: list[ProducerEntry] = field(name="producerDataSet", default_factory=list)


class ClientCheck(Body):
    """A subscription to check."""

    client_id: str = ""
    group: str = ""
    subscription: Subscription | None = field(name="subscriptionData", default=None)


class ConsumerIds(Body):
    """A group's members."""

    client_ids: list[str] = field(name="consumerIdList", default_factory=list)


class WireQueue(Body):
    """A queue as an object of its own."""

    topic: str
    broker_name: str
    queue_id: int

    @classmethod
    def of(cls, queue: MessageQueue) -> WireQueue:
        return cls(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(self.topic, self.broker_name, self.queue_id)


class QueueLock(Body):
    """Queues that a client of a group wants to lock or gives back."""

    group: str = field(name="consumerGroup")
    client_id: str
    queues: list[WireQueue] = field(name="mqSet", default_factory=list)


class LockedQueues(Body):
    """The queues that are locked now."""

    queues: list[WireQueue] = field(name="lockOKMQSet", default_factory=list)


class Connection(Body):
    """One connected client."""

    client_id: str
    client_address: str = field(name="clientAddr", default="")
    language: str = "JAVA"
    version: int = 0


class ConsumerConnection(Body):
    """A group's members and subscriptions."""

    connections: list[Connection] = field(name="connectionSet", default_factory=list)
    subscriptions: dict[str, Subscription] = field(name="subscriptionTable", default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = field(name="consumeFromWhere", default="CONSUME_FROM_LAST_OFFSET")


class ProducerConnection(Body):
    """A producer group's clients."""

    connections: list[Connection] = field(name="connectionSet", default_factory=list)


class ProducerClient(Body):
    """One client of a producer group."""

    client_id: str
    remote_address: str = field(name="remoteIP", default="")
    language: str = "JAVA"
    version: int = 0
    last_update_ms: int = field(name="lastUpdateTimestamp", default=0)


class ProducerTable(Body):
    """All producer groups."""

    groups: dict[str, list[ProducerClient]] = field(name="data", default_factory=dict)


class PulledQueue(Body):
    """The state of one queue inside a consumer. Source: ProcessQueueInfo."""

    commit_offset: int = 0
    cached_min_offset: int = field(name="cachedMsgMinOffset", default=0)
    cached_max_offset: int = field(name="cachedMsgMaxOffset", default=0)
    cached_count: int = field(name="cachedMsgCount", default=0)
    cached_mebibytes: int = field(name="cachedMsgSizeInMiB", default=0)
    in_flight_min_offset: int = field(name="transactionMsgMinOffset", default=0)
    in_flight_max_offset: int = field(name="transactionMsgMaxOffset", default=0)
    in_flight_count: int = field(name="transactionMsgCount", default=0)
    locked: bool = False
    unlock_attempts: int = field(name="tryUnlockTimes", default=0)
    last_lock_ms: int = field(name="lastLockTimestamp", default=0)
    dropped: bool = field(name="droped", default=False)
    last_pull_ms: int = field(name="lastPullTimestamp", default=0)
    last_consume_ms: int = field(name="lastConsumeTimestamp", default=0)


class ConsumeRates(Body):
    """A consumer's rates for one topic."""

    pull_rt: float = field(name="pullRT", default=0.0)
    pull_tps: float = field(name="pullTPS", default=0.0)
    consume_rt: float = field(name="consumeRT", default=0.0)
    consume_ok_tps: float = field(name="consumeOKTPS", default=0.0)
    consume_failed_tps: float = field(name="consumeFailedTPS", default=0.0)
    consume_failed_count: int = field(name="consumeFailedMsgs", default=0)


class ConsumerRunning(Body):
    """A consumer's inner state."""

    properties: dict[str, str] = {}
    subscriptions: list[Subscription] = field(name="subscriptionSet", default_factory=list)
    queues: dict[MessageQueue, PulledQueue] = field(name="mqTable", default_factory=dict)
    rates: dict[str, ConsumeRates] = field(name="statusTable", default_factory=dict)
    stack: str | None = field(name="jstack", default=None)


class ConsumeDirectlyResult(Body):
    """What a listener made of one message."""

    order: bool = False
    auto_commit: bool = True
    result: str | None = field(name="consumeResult", default=None)
    remark: str | None = None
    spent_ms: int = field(name="spentTimeMills", default=0)


# --- offsets and statistics


class ConsumerOffsetTable(Body):
    """Queue offsets by `topic@group` and queue id."""

    offsets: dict[str, dict[int, int]] = field(name="offsetTable", default_factory=dict)


class DelayOffsetTable(Body):
    """Queue offsets by delay level."""

    offsets: dict[int, int] = field(name="offsetTable", default_factory=dict)


class QueueOffset(Body):
    """An offset in the list form of `ResetOffsets`."""

    topic: str
    broker_name: str
    queue_id: int
    offset: int


class ResetOffsets(Body):
    """Offsets to go on with; the list form is for C++."""

    offsets: dict[MessageQueue, int] | list[QueueOffset] = field(name="offsetTable", default_factory=dict)


class ConsumerStatus(Body):
    """Members' offsets: a broker fills the first table, a member the second."""

    clients: dict[str, dict[MessageQueue, int]] = field(name="consumerTable", default_factory=dict)
    queues: dict[MessageQueue, int] = field(name="messageQueueTable", default_factory=dict)


class CorrectionOffsetTable(Body):
    """Offsets by queue id."""

    offsets: dict[int, int] = field(name="correctionOffsets", default_factory=dict)


class ConsumedQueue(Body):
    """How far a group is in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_ms: int = field(name="lastTimestamp", default=0)


class ConsumeStats(Body):
    """How far a group is."""

    consume_tps: float = 0.0
    queues: dict[MessageQueue, ConsumedQueue] = field(name="offsetTable", default_factory=dict)


class ConsumeStatsList(Body):
    """How far every group of a broker is."""

    broker_address: str = field(name="brokerAddr", default="")
    groups: list[dict[str, list[ConsumeStats]]] = field(name="consumeStatsList", default_factory=list)
    total_lag: int = field(name="totalDiff", default=0)


class TopicOffset(Body):
    """Bounds and last store time of a queue."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_ms: int = field(name="lastUpdateTimestamp", default=0)


class TopicStats(Body):
    """The queues of a topic."""

    queues: dict[MessageQueue, TopicOffset] = field(name="offsetTable", default_factory=dict)


class QueueTimeSpan(Body):
    """Store times in one queue; ms and as text `yyyy-MM-dd#HH:mm:ss:SSS`."""

    queue: WireQueue = field(name="messageQueue")
    min_ms: int = field(name="minTimeStamp", default=0)
    max_ms: int = field(name="maxTimeStamp", default=0)
    consumed_ms: int = field(name="consumeTimeStamp", default=0)
    min_text: str = field(name="minTimeStampStr", default="")
    max_text: str = field(name="maxTimeStampStr", default="")
    consumed_text: str = field(name="consumeTimeStampStr", default="")
    delay_ms: int = field(name="delayTime", default=0)


class ConsumeTimeSpans(Body):
    """Store times in the queues of a topic."""

    spans: list[QueueTimeSpan] = field(name="consumeTimeSpanSet", default_factory=list)


class QueueEntryBody(Body):
    """One entry of a consume queue."""

    log_offset: int = field(name="physicOffset", default=0)
    size: int = field(name="physicSize", default=0)
    tags_code: int = 0
    extension: str | None = field(name="extendDataJson", default=None)
    bit_map: str | None = None
    accepted: bool = field(name="eval", default=False)
    text: str | None = field(name="msg", default=None)


class QueueEntriesBody(Body):
    """Entries of a consume queue."""

    subscription: Subscription | None = field(name="subscriptionData", default=None)
    filter_text: str | None = field(name="filterData", default=None)
    entries: list[QueueEntryBody] = field(name="queueData", default_factory=list)
    max_index: int = field(name="maxQueueIndex", default=0)
    min_index: int = field(name="minQueueIndex", default=0)


class StatsItem(Body):
    """A counter over one period: its sum, its rate a second, its average size per time."""

    sum: int = 0
    tps: float = 0.0
    average: float = field(name="avgpt", default=0.0)


class BrokerStats(Body):
    """A counter over a minute, an hour and a day."""

    minute: StatsItem = field(name="statsMinute", default_factory=StatsItem)
    hour: StatsItem = field(name="statsHour", default_factory=StatsItem)
    day: StatsItem = field(name="statsDay", default_factory=StatsItem)


class OffsetMoved(Body):
    """The body of a message in topic OFFSET_MOVED_EVENT."""

    group: str = field(name="consumerGroup")
    queue: WireQueue = field(name="messageQueue")
    asked_offset: int = field(name="offsetRequest", default=0)
    new_offset: int = field(name="offsetNew", default=0)


# --- the compressed form of a registration: a zlib stream of
#     int n, DataVersion as JSON | int topics | per topic: int n, text | int n, filter servers as JSON
#     where a topic's text is `name readQueues writeQueues permission filterType`

_INT = struct.Struct(">i")


def compress_registration(registration: BrokerRegistration) -> bytes:
    """Return the compressed form. A topic's order flag and sysFlag are not in it."""
    table = registration.topics
    texts = [f"{t.name} {t.read_queues} {t.write_queues} {t.permission} {t.filter_type}" for t in table.topics.values()]
    parts = [_sized(encode_body(table.data_version)), _INT.pack(len(texts))]
    parts += [_sized(text.encode()) for text in texts]
    parts.append(_sized(msgspec.json.encode(registration.filter_servers)))
    return zlib.compress(b"".join(parts), 9)


def decompress_registration(raw: bytes) -> BrokerRegistration:
    """Read the compressed form. Raises `ProtocolError`."""
    try:
        data = zlib.decompress(raw)
        version, position = _take(data, 0)
        count = _INT.unpack_from(data, position)[0]
        position += _INT.size
        topics = {}
        for _ in range(count):
            text, position = _take(data, position)
            topic = _topic_of_text(text.decode())
            topics[topic.name] = topic
        servers, _ = _take(data, position)
        table = TopicConfigTable(data_version=decode_body(DataVersion, version), topics=topics)
        return BrokerRegistration(topics=table, filter_servers=msgspec.json.decode(servers, type=list[str]))
    except (zlib.error, struct.error, ValueError, msgspec.DecodeError) as error:
        raise ProtocolError(f"compressed registration of {len(raw)} bytes cannot be read: {error}") from error


def _sized(text: bytes) -> bytes:
    return _INT.pack(len(text)) + text


def _take(data: bytes, position: int) -> tuple[bytes, int]:
    size = _INT.unpack_from(data, position)[0]
    start = position + _INT.size
    if size < 0 or start + size > len(data):
        raise ValueError(f"{size} bytes at {position} of {len(data)}")
    return data[start : start + size], start + size


def _topic_of_text(text: str) -> TopicConfig:
    name, read_queues, write_queues, permission, filter_type, *_ = text.split(" ", 5)
    return TopicConfig(
        name=name,
        read_queues=int(read_queues),
        write_queues=int(write_queues),
        permission=int(permission),
        filter_type=filter_type,
    )
