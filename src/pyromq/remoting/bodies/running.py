"""Answers of consumers about themselves. Source: RocketMQ 4.9.8, ConsumerRunningInfo, ProcessQueueInfo."""

from __future__ import annotations

from msgspec import field

from pyromq.message import MessageQueue
from pyromq.remoting.bodies.body import Body
from pyromq.remoting.bodies.clients import Subscription


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

    properties: dict[str, str] = field(default_factory=dict)
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
