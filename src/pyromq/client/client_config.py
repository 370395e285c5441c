"""Settings of producers and consumers, and the interface of an application's own offset store.

`OffsetStore` has two of the methods of RocketMQ's interface. Source: RocketMQ 4.9.8, OffsetStore.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Protocol

from pyromq.client.application_code import check_takes, picture_of
from pyromq.client.arguments import check_fields
from pyromq.client.client_hooks import (
    CheckForbiddenHook,
    ConsumeMessageHook,
    EndTransactionHook,
    FilterMessageHook,
    SendMessageHook,
    check_hooks,
)
from pyromq.compression import MAX_BODY_BYTES
from pyromq.errors import ResponseCode, UsageError
from pyromq.message import MessageQueue
from pyromq.names import AUTO_CREATE_TOPIC
from pyromq.net.connection_config import ConnectionConfig


class OffsetStore(Protocol):
    """Keeps a group's consumed offsets in place of the brokers; written by applications, see docs/offset-store.md.

    The methods are plain functions and may block. A consumer calls them in changing threads, one call at a time; two
    consumers with the same store call its methods in parallel. Names of groups and topics include the namespace. An
    error is logged, and the call is repeated later. A call longer than `ConsumerConfig.timeout` counts as failed; the
    next call begins after that call has ended.
    """

    def load(self, group: str, queues: Collection[MessageQueue]) -> Mapping[MessageQueue, int]:
        """Return the saved offsets of a group in these queues; queues without a saved offset are left out.

        Called each time a queue is assigned: another member may have saved offsets since.
        """

    def save(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Save a group's offsets of some queues, durably when this returns, and keep those of other queues.

        An offset may be lower than the previous one, for example after an administrator's reset.
        """


def check_offset_store(store: object) -> None:
    """Raise `UsageError` unless `store` has the methods of an `OffsetStore`, as plain functions."""
    for name, arguments in (("load", ("group", "queues")), ("save", ("group", "offsets"))):
        function = getattr(store, name, None)
        if not callable(function):
            raise UsageError(f"offset_store={store!r:.80} has no method {name}; see OffsetStore")
        check_takes(function, *arguments, what=f"{name} of offset_store={picture_of(store)}")
        if inspect.iscoroutinefunction(function):
            raise UsageError(f"offset_store={store!r:.80}: {name} is async; it must be a plain function")


# A function (group, this member's client id, sorted queues, sorted members) -> queues of this member.
Strategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

MAX_PULL_COUNT = 1024  # limit of `pull_count`: more messages than any broker returns for one pull

# Response codes after which a send is retried at another broker; 204 and 205 come from other products.
# Source: RocketMQ 4.9.8, DefaultMQProducer.retryResponseCodes.
RETRY_CODES = frozenset(
    {
        int(ResponseCode.SYSTEM_ERROR),
        int(ResponseCode.SERVICE_NOT_AVAILABLE),
        int(ResponseCode.NO_PERMISSION),
        int(ResponseCode.TOPIC_NOT_EXIST),
        204,
        205,
    }
)


@dataclass(frozen=True, slots=True)
class ProducerConfig:
    """Settings of a producer. Times are in seconds."""

    timeout: float = 3.0  # limit of one send, retries included
    # Limit of one send to a replica set, if longer than `timeout`: electing another master takes up to 7 s. A timeout
    # given with a send counts for replica sets, too.
    failover_seconds: float = 10.0
    # Limit of further attempts after the first one fails. Attempts at a replica set whose master fails do not count:
    # also with 0, a message whose connection breaks before the reply is sent again, and may be stored twice.
    retries: int = 2
    retry_codes: frozenset[int] = RETRY_CODES  # response codes that `send` retries at another broker
    retry_when_not_ok: bool = False  # also retry a message that is stored, but not flushed or replicated in time
    avoid_slow_brokers: bool = False  # prefer other brokers for a while after slow or failed sends
    compress_from_bytes: int = 4096  # bodies of at least this size are compressed
    compression_level: int = 5  # zlib's level, 1 to 9
    max_message_bytes: int = 4 << 20  # limit of a body before compression; the default limit of brokers
    delay_levels: int = 18  # limit of a message's delay level: levels in the brokers' `messageDelayLevel`
    template_topic: str = AUTO_CREATE_TOPIC  # an unknown topic is created at the brokers of this topic
    new_topic_queues: int = 4  # queues per broker of an auto-created topic
    max_in_flight: int = 10_000  # limit of messages that wait for their replies, so that memory is bounded
    # Limit of the body bytes of messages waiting for their replies; None: no limit.
    max_pending_bytes: int | None = None
    # Longest wait of a small message for more messages of its queue, to be sent as one batch; 0: no batching.
    linger_seconds: float = 0.0
    batch_bytes: int = 32 << 10  # bytes at which a batch is sent immediately. Source: RocketMQ 5, ProduceAccumulator
    heartbeat_seconds: float = 30.0  # interval between heartbeats; brokers drop a client after 120 s without one
    route_refresh_seconds: float = 30.0  # interval between refreshes of known routes
    # Part of the client id. Clients of one instance share connections; an instance may have one producer of a group.
    # None: blocking clients of a process share connections, async ones do not.
    instance: str | None = None
    vip_channel: bool = False  # send to each broker's port minus 2; pyromq's brokers open it with vipChannelEnable
    # TLS, account and RPC hooks of connections; None: TLS and account from the environment, see docs/tls.md.
    connections: ConnectionConfig | None = None
    # Namespace of topics and groups, see docs/clients.md. None: from PYROMQ_NAMESPACE; "": no namespace.
    namespace: str | None = None
    # Called around sends, see docs/hooks.md.
    hooks: tuple[SendMessageHook | EndTransactionHook | CheckForbiddenHook, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        check_hooks(self.hooks, SendMessageHook, EndTransactionHook, CheckForbiddenHook)
        _check("timeout", self.timeout, 0.001, 3600)
        _check("failover_seconds", self.failover_seconds, 0.0, 3600)
        _check("retries", self.retries, 0, 100)
        _check("compress_from_bytes", self.compress_from_bytes, 1, 1 << 31)
        _check("compression_level", self.compression_level, 1, 9)
        _check("max_message_bytes", self.max_message_bytes, 1, 16 << 20)
        _check("delay_levels", self.delay_levels, 1, 1000)
        _check("new_topic_queues", self.new_topic_queues, 1, 65536)
        _check("max_pending_bytes", 1 if self.max_pending_bytes is None else self.max_pending_bytes, 1, 1 << 40)
        _check("linger_seconds", self.linger_seconds, 0.0, 30.0)
        _check("batch_bytes", self.batch_bytes, 1, 16 << 20)
        _check("max_in_flight", self.max_in_flight, 1, 1_000_000)
        _check("heartbeat_seconds", self.heartbeat_seconds, 0.01, 3600)
        _check("route_refresh_seconds", self.route_refresh_seconds, 0.01, 3600)


class ConsumeFrom(Enum):
    """Where a group begins in a queue for which it has no committed offset.

    Brokers of RocketMQ 4.9 override this setting for a young queue that still has its first message: the group begins
    at that message. Brokers of pyromq and of RocketMQ 5 follow the setting.
    Source: RocketMQ 4.9.8, ConsumerManageProcessor.queryConsumerOffset.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"  # at the queue's end; in a queue added to the topic later, at its first message
    FIRST = "CONSUME_FROM_FIRST_OFFSET"  # at the queue's first message
    TIME = "CONSUME_FROM_TIMESTAMP"  # at the first message stored at `consume_from_ms` or later


class Damaged(Enum):
    """How a consumer handles a message whose body does not match its checksum."""

    SKIP = "skip"  # log an error, count the message, continue after it
    STOP = "stop"  # deliver the messages before the damaged one, and raise `MessageDamaged` until a seek
    DEAD_LETTER = "dead letter"  # copy the message, marked, to the group's dead letters, count it, continue


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """Settings of a consumer. Times are in seconds unless the name says ms.

    The fields from `orderly` on are for push consumers only: `Consumer` and `AsyncConsumer`.
    """

    timeout: float = 5.0  # limit of a request; a long poll may take `long_poll_seconds` more
    # Where a group without committed offset begins. None, as in Java's clients: at the queue's end; a young queue
    # at its first message, see `ConsumeFrom`.
    consume_from: ConsumeFrom | None = None
    consume_from_ms: int = 0  # time at which to begin with ConsumeFrom.TIME, ms since 1970
    pull_count: int = 256  # messages per pull, at most 512 KiB together; Java's brokers return at most 32 by default
    long_poll_seconds: float = 15.0  # longest time that a broker holds a pull until a message arrives
    buffered_messages: int = 1000  # prefetched messages per queue at which pulling pauses
    buffered_bytes: int = 16 << 20  # prefetched bytes of stored bodies per queue at which pulling pauses
    # A pull consumer commits messages of earlier polls, and at close. If off, the application commits; an orderly
    # listener does so by returning `Ack.COMMIT`.
    auto_commit: bool = True
    # Longest time between commits of a pull consumer: a crash redelivers at most this much.
    auto_commit_seconds: float = 5.0
    retry_seconds: float = 1.0  # pause after a failed pull
    # Compare pulled bodies with their checksums: brokers send records unchecked. Costs 0.03 us for a message of 1 KiB,
    # in plain Python 0.4 us: 1 to 10 % of the time of a consumer whose listener does nothing.
    verify_checksums: bool = True
    damaged: Damaged = Damaged.SKIP  # handling of messages that fail the checksum, or cannot be read
    # Limit of a decompressed body in bytes: a compressed megabyte can become a gigabyte. 16 MiB is the largest
    # `max_message_bytes` here; Java's producers may send more if `maxMessageSize` says so.
    max_body_bytes: int = MAX_BODY_BYTES
    # Deliver messages whose body cannot be decompressed (`StoredMessage.body_error`). If off, they become dead letters
    # of the group, with the reason; a broadcast consumer, which has no dead letters, logs and skips such messages. A
    # thread decompresses bodies ahead; bodies beyond 1 MiB of a pull are decompressed again when read.
    deliver_undecodable: bool = False
    heartbeat_seconds: float = 30.0  # interval between heartbeats; brokers drop a client after 120 s without one
    route_refresh_seconds: float = 30.0  # interval between refreshes of known routes
    # Part of the client id. Clients of one instance share connections; an instance may have one consumer of a group.
    # None: "DEFAULT" with `broadcast`, else as for a producer.
    instance: str | None = None
    # TLS, account and RPC hooks of connections; None: TLS and account from the environment, see docs/tls.md.
    connections: ConnectionConfig | None = None
    # Namespace of topics and groups, see docs/clients.md. None: from PYROMQ_NAMESPACE; "": no namespace.
    namespace: str | None = None
    hooks: tuple[ConsumeMessageHook | FilterMessageHook, ...] = ()  # called around listeners, see docs/hooks.md
    # Keeps the group's offsets, see docs/offset-store.md. None: brokers keep them, or files with `broadcast`.
    offset_store: OffsetStore | None = None

    orderly: bool = False  # messages of a queue are consumed one after another, in order, by one member
    # Every member gets every message; offsets are in files, failed messages are not redelivered.
    broadcast: bool = False
    batch: int = 1  # largest number of messages per listener call; an exception applies to all messages of the call
    concurrency: int = 20  # limit of parallel listener calls: threads for plain functions, tasks for async ones
    strategy: Strategy | None = None  # function that assigns queues to members; None: averaging
    pull_interval_seconds: float = 0.0  # pause after a pull that found messages
    buffered_span: int = 2000  # limit of the offset span between first and last unfinished message of a queue
    topic_buffered_messages: int | None = None  # limit of prefetched messages in all queues of a topic
    topic_buffered_bytes: int | None = None  # limit of prefetched bytes of stored bodies in all queues of a topic
    # Retries before a message becomes a dead letter. None: the group's setting (16 by default), for orderly consumers
    # unlimited.
    max_retries: int | None = None
    local_retry_seconds: float = 5.0  # pause before a message that could not be sent back is retried in this consumer
    suspend_seconds: float = 1.0  # pause of an orderly queue before a failed message is retried
    consume_timeout_seconds: float = 900.0  # limit of a listener call; messages of a longer call are sent back
    commit_seconds: float = 5.0  # interval between commits of a push consumer
    rebalance_seconds: float = 20.0  # interval between rebalances if no notification triggers one earlier
    close_seconds: float = 10.0  # longest wait of `close` for running listeners
    offsets_folder: Path | None = None  # folder of a broadcast consumer's offset files; None: ~/.rocketmq_offsets

    def __post_init__(self) -> None:
        check_fields(self)
        check_hooks(self.hooks, ConsumeMessageHook, FilterMessageHook)
        if self.strategy is not None:
            check_takes(self.strategy, "group", "member", "queues", "members", what="strategy")
        if self.offset_store is not None:
            check_offset_store(self.offset_store)
        _check("timeout", self.timeout, 0.001, 3600)
        _check("pull_count", self.pull_count, 1, MAX_PULL_COUNT)
        _check("long_poll_seconds", self.long_poll_seconds, 0.0, 600)
        _check("buffered_messages", self.buffered_messages, 1, 1_000_000)
        _check("buffered_bytes", self.buffered_bytes, 1, 1 << 40)
        _check("max_body_bytes", self.max_body_bytes, 1, 1 << 31)
        _check("auto_commit_seconds", self.auto_commit_seconds, 0.01, 3600)
        _check("retry_seconds", self.retry_seconds, 0.001, 3600)
        _check("heartbeat_seconds", self.heartbeat_seconds, 0.01, 3600)
        _check("route_refresh_seconds", self.route_refresh_seconds, 0.01, 3600)
        self._check_listening()

    @property
    def announced_start(self) -> str:
        """The value of `consume_from` that heartbeats contain; LAST for None."""
        return (self.consume_from or ConsumeFrom.LAST).value

    def _check_listening(self) -> None:
        _check("batch", self.batch, 1, MAX_PULL_COUNT)
        _check("concurrency", self.concurrency, 1, 1000)
        _check("pull_interval_seconds", self.pull_interval_seconds, 0.0, 65.535)  # Source: pullInterval
        _check("buffered_span", self.buffered_span, 1, 65535)
        _check("topic_buffered_messages", self.topic_buffered_messages or 1, 1, 6_553_500)
        _check("topic_buffered_bytes", self.topic_buffered_bytes or 1, 1, 1 << 40)
        _check("max_retries", self.max_retries or 0, 0, (1 << 31) - 1)
        _check("local_retry_seconds", self.local_retry_seconds, 0.001, 3600)
        _check("suspend_seconds", self.suspend_seconds, 0.01, 30)
        _check("consume_timeout_seconds", self.consume_timeout_seconds, 0.001, 1e9)
        _check("commit_seconds", self.commit_seconds, 0.01, 3600)
        _check("rebalance_seconds", self.rebalance_seconds, 0.01, 3600)
        _check("close_seconds", self.close_seconds, 0.0, 3600)


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        raise UsageError(f"{name}={value!r} is out of range: {least} to {most}")
