"""JSON bodies of heartbeats, members of groups and their internal state.

Source: RocketMQ 4.9.8, HeartbeatData, ConsumerRunningInfo, ProcessQueueInfo.
"""

from __future__ import annotations

from msgspec import field

from pyromq.message import MessageQueue
from pyromq.remoting.bodies.body import Body
from pyromq.remoting.bodies.queue_bodies import LockHolder


class Subscription(Body):
    """A group's subscription to one topic."""

    topic: str
    expression: str = field(name="subString", default="*")
    tags: list[str] = field(name="tagsSet", default_factory=list)
    codes: list[int] = field(name="codeSet", default_factory=list)
    version: int = field(name="subVersion", default=0)
    expression_type: str = "TAG"
    class_filter: bool = field(name="classFilterMode", default=False)


class ConsumerEntry(Body):
    """One consumer in the heartbeat of a client."""

    group: str = field(name="groupName")
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = field(name="consumeFromWhere", default="CONSUME_FROM_LAST_OFFSET")
    subscriptions: list[Subscription] = field(name="subscriptionDataSet", default_factory=list)
    unit_mode: bool = False


class ProducerEntry(Body):
    """One producer in the heartbeat of a client."""

    group: str = field(name="groupName")


class HeartbeatBody(Body):
    """Body of a heartbeat: the client's producers and consumers."""

    client_id: str = field(name="clientID")
    consumers: list[ConsumerEntry] = field(name="consumerDataSet", default_factory=list)
    producers: list[ProducerEntry] = field(name="producerDataSet", default_factory=list)


class ClientCheck(Body):
    """Body of a request to check a subscription."""

    client_id: str = ""
    group: str = ""
    subscription: Subscription | None = field(name="subscriptionData", default=None)


class ConsumerIds(Body):
    """Body of a response: the client ids of the members of a group."""

    client_ids: list[str] = field(name="consumerIdList", default_factory=list)


class ClientConnection(Body):
    """One connected client of a group."""

    client_id: str
    client_address: str = field(name="clientAddr", default="")
    language: str = "JAVA"
    version: int = 0
    # Only in pyromq, on request: the client's subscription expressions by topic.
    subscriptions: dict[str, str] | None = None


class ConsumerConnection(Body):
    """Body of a response: a group's members and subscriptions.

    Our tools also get each member's subscriptions and the queue locks.
    """

    connections: list[ClientConnection] = field(name="connectionSet", default_factory=list)
    subscriptions: dict[str, Subscription] = field(name="subscriptionTable", default_factory=dict)
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    consume_from: str = field(name="consumeFromWhere", default="CONSUME_FROM_LAST_OFFSET")
    locks: list[LockHolder] | None = None  # only in pyromq, on request: the owners of queue locks


class ProducerConnection(Body):
    """Body of a response: the connected clients of a producer group."""

    connections: list[ClientConnection] = field(name="connectionSet", default_factory=list)


class ProducerClient(Body):
    """One client of a producer group."""

    client_id: str
    remote_address: str = field(name="remoteIP", default="")
    language: str = "JAVA"
    version: int = 0
    last_update_ms: int = field(name="lastUpdateTimestamp", default=0)


class ProducerTable(Body):
    """Body of a response: all producer groups with their clients."""

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
    """Body of a response: the internal state of a consumer."""

    properties: dict[str, str] = field(default_factory=dict)
    subscriptions: list[Subscription] = field(name="subscriptionSet", default_factory=list)
    queues: dict[MessageQueue, PulledQueue] = field(name="mqTable", default_factory=dict)
    rates: dict[str, ConsumeRates] = field(name="statusTable", default_factory=dict)
    stack: str | None = field(name="jstack", default=None)


class ConsumeDirectlyResult(Body):
    """Body of a response: the result of a listener that was called with one message."""

    order: bool = False
    auto_commit: bool = True
    result: str | None = field(name="consumeResult", default=None)
    remark: str | None = None
    spent_ms: int = field(name="spentTimeMills", default=0)
