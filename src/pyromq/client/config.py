"""Settings of producers and consumers. Nothing below reads environment or files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from pyromq.client.application_code import check_takes
from pyromq.client.arguments import check_fields
from pyromq.client.hooks import (
    CheckForbiddenHook,
    ConsumeMessageHook,
    EndTransactionHook,
    FilterMessageHook,
    SendMessageHook,
    check_hooks,
)
from pyromq.client.offset_store import OffsetStore, check_offset_store
from pyromq.compression import MAX_BODY_BYTES
from pyromq.errors import ResponseCode, UsageError
from pyromq.message import MessageQueue
from pyromq.names import AUTO_CREATE_TOPIC
from pyromq.net.connection_config import ConnectionConfig

# Given a group, one of its members, the queues and the members, both sorted: the queues that this member gets.
Strategy = Callable[[str, str, Sequence[MessageQueue], Sequence[str]], list[MessageQueue]]

MAX_PULL_COUNT = 1024  # more messages than any broker gives in one answer

# Answers after which another broker may do better; 204 and 205 come from other products.
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
    """How a producer sends. Times are in seconds."""

    timeout: float = 3.0  # for one message, retries included
    retries: int = 2  # further attempts after the first
    retry_codes: frozenset[int] = RETRY_CODES  # answers that `send` retries at another broker
    retry_when_not_ok: bool = False  # also retry when stored, but without flush or replica in time
    avoid_slow_brokers: bool = False  # keep away from brokers that were slow or failed, by latency
    compress_from_bytes: int = 4096  # bodies of at least this size are compressed
    compression_level: int = 5  # zlib's, 1 to 9
    max_message_bytes: int = 4 << 20  # body before compression; brokers refuse more by default
    delay_levels: int = 18  # how many the brokers have, see their `messageDelayLevel`; they take more for their last
    template_topic: str = AUTO_CREATE_TOPIC  # whose route an unknown topic is created by
    new_topic_queues: int = 4  # queues asked for, for a topic created by its first message
    max_in_flight: int = 10_000  # messages handed over and not yet answered; bounds memory
    # Bytes of bodies handed over and not yet answered from which on sending waits, as at `max_in_flight`; None: none.
    max_pending_bytes: int | None = None
    # How long a small message may wait for others of its queue, to go with them in one batch; 0: each goes at once.
    linger_seconds: float = 0.0
    batch_bytes: int = 32 << 10  # then such a batch goes without waiting longer. Source: RocketMQ 5, ProduceAccumulator
    heartbeat_seconds: float = 30.0  # how often brokers hear that it is there; they forget it after 120 s
    route_refresh_seconds: float = 30.0  # how often it asks name servers for changed routes
    # Part of the client id; clients of one share connections, and it has one producer of a group. None: blocking
    # clients of a process share, async ones do not.
    instance: str | None = None
    vip_channel: bool = False  # send to the brokers' ports - 2, which brokers have open that are told to, Java's always
    # TLS, account, hooks around calls; None: as the environment says, see docs/security.md.
    connections: ConnectionConfig | None = None
    # Whose topics and groups are meant, see docs/clients.md. None: as PYROMQ_NAMESPACE says; "": none.
    namespace: str | None = None
    # Told of sends and ends of transactions; asked whether a message may be sent.
    hooks: tuple[SendMessageHook | EndTransactionHook | CheckForbiddenHook, ...] = ()

    def __post_init__(self) -> None:
        check_fields(self)
        check_hooks(self.hooks, SendMessageHook, EndTransactionHook, CheckForbiddenHook)
        _check("timeout", self.timeout, 0.001, 3600)
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
    """Where a group begins in a queue it has no stored offset for.

    Brokers of RocketMQ 4.9 do not leave that to the client while a queue still has its first message and is young:
    there it begins at the beginning. Brokers of ours and of RocketMQ 5 let it begin as asked.
    Source: RocketMQ 4.9.8, ConsumerManageProcessor.queryConsumerOffset.
    """

    LAST = "CONSUME_FROM_LAST_OFFSET"  # at the end; queues added to the topic later, at their beginning
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIME = "CONSUME_FROM_TIMESTAMP"  # at the first message stored then or later


class Damaged(Enum):
    """What a consumer does when it comes to a message that is not what was stored."""

    SKIP = "skip"  # tell it as an error, count it, go on behind it
    STOP = "stop"  # hand out what is before it and raise `MessageDamaged`: there it stands until somebody decides
    DEAD_LETTER = "dead letter"  # copy it, marked, to the group's dead letters, count it, go on behind it


@dataclass(frozen=True, slots=True)
class ConsumerConfig:
    """How consumers consume. Times are in seconds unless the name says ms.

    The second half is for `Consumer` and `AsyncConsumer`, which give messages to listeners.
    """

    timeout: float = 5.0  # for requests that do not wait for messages
    # None is what Java's clients do: the end, but of a young queue the beginning, see `ConsumeFrom`.
    consume_from: ConsumeFrom | None = None
    consume_from_ms: int = 0  # with ConsumeFrom.TIME: ms since 1970
    pull_count: int = 256  # messages asked for at once, of 512 KiB at most; Java's brokers give 32 by default
    long_poll_seconds: float = 15.0  # how long the broker may hold a pull until a message comes
    buffered_messages: int = 1000  # fetched ahead per queue before pulling pauses
    buffered_bytes: int = 16 << 20  # same, in bytes of stored bodies
    # Commit what earlier polls handed out, and at close. Off, an orderly listener commits by returning `Ack.COMMIT`.
    auto_commit: bool = True
    auto_commit_seconds: float = 5.0  # how often, at least: what a crash brings again
    retry_seconds: float = 1.0  # pause after a failed pull
    # Compare pulled bodies with their checksums: brokers send them as they find them on their disks. Costs 0.03 us a
    # message of 1 KiB, in plain Python 0.4 us: 1 to 10 % of the time of a consumer that does nothing else.
    verify_checksums: bool = True
    damaged: Damaged = Damaged.SKIP  # what becomes of messages that fail this, or cannot be read
    # How much a compressed body may unfold to: a megabyte can become a gigabyte. 16 MiB is the most that a producer of
    # ours can be allowed to send; Java's may send more where `maxMessageSize` says so.
    max_body_bytes: int = MAX_BODY_BYTES
    # Hand out messages whose body cannot be unpacked (`StoredMessage.body_error`) as well. Off, they are made dead
    # letters of the group, with the reason; of a broadcast consumer, which has none, they are told and passed over.
    # To know that, bodies are unpacked ahead, in another thread; those beyond 1 MiB of a pull once more when asked for.
    deliver_undecodable: bool = False
    heartbeat_seconds: float = 30.0  # how often brokers hear that it is there; they forget it after 120 s
    route_refresh_seconds: float = 30.0  # how often it asks name servers for changed routes
    # Part of the client id; clients of one share connections, and it has one consumer of a group. None: "DEFAULT"
    # where `broadcast`, else as for a producer.
    instance: str | None = None
    # TLS, account, hooks around calls; None: as the environment says, see docs/security.md.
    connections: ConnectionConfig | None = None
    # Whose topics and groups are meant, see docs/clients.md. None: as PYROMQ_NAMESPACE says; "": none.
    namespace: str | None = None
    hooks: tuple[ConsumeMessageHook | FilterMessageHook, ...] = ()  # told of what is consumed
    # Keeps the group's offsets, see docs/clients.md. None: the brokers do, where `broadcast` files.
    offset_store: OffsetStore | None = None

    orderly: bool = False  # each queue's messages one after the other, in order, by one member at a time
    broadcast: bool = False  # every member gets every message; offsets are kept in files, failures are not repeated
    batch: int = 1  # messages that a listener gets at once, at most
    concurrency: int = 20  # listener calls at once: threads for plain functions, tasks for async ones
    strategy: Strategy | None = None  # how the group's members share queues; None: averaging
    pull_interval_seconds: float = 0.0  # pause after a pull that found messages; bounds what a slow machine fetches
    buffered_span: int = 2000  # distance of the first and the last message in flight in a queue
    topic_buffered_messages: int | None = None  # of all queues of a topic together
    topic_buffered_bytes: int | None = None  # same, in bytes of stored bodies
    # Then the message is a dead letter. None: as the group's settings say (16), for ever where order is kept.
    max_retries: int | None = None
    local_retry_seconds: float = 5.0  # when a message could not be sent back for its retry
    suspend_seconds: float = 1.0  # an orderly queue waits so long after a failure; 0.01 to 30
    consume_timeout_seconds: float = 900.0  # a listener that takes longer loses its messages to a retry
    commit_seconds: float = 5.0  # how often offsets are stored
    rebalance_seconds: float = 20.0  # how often queues are shared out again when nobody gives notice of a change
    close_seconds: float = 10.0  # how long running listeners may hold up closing
    offsets_folder: Path | None = None  # of a broadcast consumer; None: ~/.rocketmq_offsets

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
        """How the group's other members and tools are told of `consume_from`."""
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
