"""Answers what tools ask about the running broker: figures, statistics, connections."""

from __future__ import annotations

import shutil

from pyromq.broker.consuming.queue_locks import QueueLocks
from pyromq.broker.delays.delay_levels import DelayLevels
from pyromq.broker.members.connections import Connections, Member
from pyromq.broker.statistics import Rates, Span, Statistics
from pyromq.clock import Clock
from pyromq.errors import BrokerError, ConsumerNotOnline
from pyromq.names import SCHEDULE_TOPIC
from pyromq.remoting.bodies import (
    BrokerStats,
    Connection,
    ConsumerConnection,
    KeyValues,
    LockHolder,
    ProducerClient,
    ProducerConnection,
    ProducerTable,
    StatsItem,
    WireQueue,
    encode_body,
)
from pyromq.remoting.codes import VERSION, VERSION_NAME
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    AllProducers,
    BrokerState,
    BrokerStatistics,
    ConsumerConnections,
    ProducerConnections,
)
from pyromq.store.message_store import MessageStore


class Inspecting:
    """Figures of the broker as a whole, and who is connected."""

    def __init__(
        self,
        store: MessageStore,
        connections: Connections,
        *,
        queue_locks: QueueLocks,
        statistics: Statistics,
        delay_levels: DelayLevels,
        clock: Clock,
    ) -> None:
        self._store = store
        self._connections = connections
        self._queue_locks = queue_locks
        self._statistics = statistics
        self._delay_levels = delay_levels
        self._clock = clock

    @answers(BrokerState)
    def state(self, header: BrokerState, call: Call) -> Reply:
        table = self._counters() | self._store_figures() | self._queue_figures() | self._delay_figures()
        return Reply(body=encode_body(KeyValues(table=dict(sorted(table.items())))))

    @answers(BrokerStatistics)
    def statistic(self, header: BrokerStatistics, call: Call) -> Reply:
        course = self._statistics.course(header.stats_name, header.stats_key)
        if course is None:
            raise BrokerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        body = BrokerStats(minute=_item(course.minute), hour=_item(course.hour), day=_item(course.day))
        return Reply(body=encode_body(body))

    @answers(ConsumerConnections)
    def consumers(self, header: ConsumerConnections, call: Call) -> Reply:
        """A group's members; with details also when there are none, but locks are left."""
        group = self._connections.consumers(header.consumer_group)
        locks = self._locks(header.consumer_group) if header.details else None
        if group is None:
            if locks:
                return Reply(body=encode_body(ConsumerConnection(locks=locks)))
            raise ConsumerNotOnline(f"the consumer group[{header.consumer_group}] not online")
        body = ConsumerConnection(
            connections=[
                _connection(member, group.wanted_by[exchange] if header.details else None)
                for exchange, member in group.by_exchange.items()
            ],
            subscriptions=group.subscriptions,
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from=group.consume_from,
            locks=locks,
        )
        return Reply(body=encode_body(body))

    def _locks(self, group: str) -> list[LockHolder]:
        return [
            LockHolder(queue=WireQueue.of(queue), client_id=client_id, age_ms=int(age_seconds * 1000))
            for queue, (client_id, age_seconds) in sorted(self._queue_locks.holders(group).items())
        ]

    @answers(ProducerConnections)
    def producers(self, header: ProducerConnections, call: Call) -> Reply:
        members = self._connections.producers(header.producer_group)
        if not members:
            raise BrokerError(f"the producer group[{header.producer_group}] not exist")
        return Reply(body=encode_body(ProducerConnection(connections=[_connection(member) for member in members])))

    @answers(AllProducers)
    def all_producers(self, header: AllProducers, call: Call) -> Reply:
        groups = {
            group: [_producer(member) for member in members]
            for group, members in self._connections.producer_groups().items()
        }
        return Reply(body=encode_body(ProducerTable(groups=groups)))

    def _delay_figures(self) -> dict[str, str]:
        """By level: delivered, and how many there are in all."""
        return {
            f"scheduleMessageOffset_{level}": f"{offset},{self._store.max_offset(SCHEDULE_TOPIC, level - 1)}"
            for level, offset in self._delay_levels.offsets().items()
        }

    def _counters(self) -> dict[str, str]:
        statistics, now = self._statistics, self._clock.now_ms()
        puts, gets = statistics.put_total, statistics.get_total
        rates = statistics.rates()
        return {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": VERSION_NAME,
            "bootTimestamp": str(statistics.started_ms),
            "runtime": _duration(now - statistics.started_ms),
            "startAcceptSendRequestTimeStamp": "0",
            "putMessageTimesTotal": str(puts.count),
            "putMessageFailedTimes": str(statistics.failed_puts),
            "putMessageSizeTotal": str(puts.size),
            "putMessageAverageSize": str(puts.size / puts.count if puts.count else 0.0),
            "msgPutTotalYesterdayMorning": str(statistics.puts_until["yesterday"]),
            "msgPutTotalTodayMorning": str(statistics.puts_until["today"]),
            "msgPutTotalTodayNow": str(puts.count),
            "msgGetTotalYesterdayMorning": str(statistics.gets_until["yesterday"]),
            "msgGetTotalTodayMorning": str(statistics.gets_until["today"]),
            "msgGetTotalTodayNow": str(gets.count),
            **_rate_texts(rates),
        }

    def _store_figures(self) -> dict[str, str]:
        store = self._store
        root = store.config.root
        disk = shutil.disk_usage(root)
        ratio = str(_used_share(disk.used, disk.free))
        return {
            "commitLogMinOffset": str(store.min_log_offset),
            "commitLogMaxOffset": str(store.max_log_offset),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.config.commit_log_path or root / 'commitlog'}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_readable(disk.total)}, Free : {_readable(disk.free)}.",
            "earliestMessageTimeStamp": str(store.earliest_store_time_of_log()),
            "dispatchBehindBytes": "0",  # a queue's entry is written together with its record
            "remainHowManyDataToFlush": _readable(store.max_log_offset - store.flushed_to),
            **({"sendRefusal": store.refusal} if store.refusal else {}),  # ours
        }

    def _queue_figures(self) -> dict[str, str]:
        """Queues of thread pools, which one event loop does not have; pulls held for a message do not count as waiting.

        They are there because tools read them, as are times that are not measured.
        """
        return {
            "sendThreadPoolQueueSize": "0",
            "sendThreadPoolQueueCapacity": "10000",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueSize": "0",
            "pullThreadPoolQueueCapacity": "100000",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "queryThreadPoolQueueSize": "0",
            "queryThreadPoolQueueCapacity": "20000",
            "queryThreadPoolQueueHeadWaitTimeMills": "0",
            "EndTransactionQueueSize": "0",
            "EndTransactionThreadPoolQueueCapacity": "100000",
            "putMessageEntireTimeMax": "0",
            "putMessageDistributeTime": "null",
            "putLatency99": "0.00",
            "putLatency999": "0.00",
            "getMessageEntireTimeMax": "0",
            "dispatchMaxBuffer": "0",
            "pageCacheLockTimeMills": "0",
            "remainTransientStoreBufferNumbs": "2147483647",
        }


def _used_share(used: int, free: int) -> float:
    """Return how full a disk is, as `df` says it: whole percents, rounded up, of what others than root can have.

    Source: RocketMQ 4.9.8, UtilAll.getDiskPartitionSpaceUsedPercent.
    """
    return -(-used * 100 // (used + free)) / 100


def _rate_texts(rates: Rates) -> dict[str, str]:
    total = tuple(found + missed for found, missed in zip(rates.found, rates.missed, strict=True))
    named = {
        "putTps": rates.put,
        "getFoundTps": rates.found,
        "getMissTps": rates.missed,
        "getTotalTps": total,
        "getTransferedTps": rates.transferred,
    }
    return {name: " ".join(str(rate) for rate in values) for name, values in named.items()}


def _item(span: Span) -> StatsItem:
    return StatsItem(sum=span.total, tps=span.per_second, average=span.per_event)


def _connection(member: Member, subscriptions: dict[str, str] | None = None) -> Connection:
    return Connection(
        client_id=member.client_id,
        client_address=member.exchange.address,
        language=member.language,
        version=member.version,
        subscriptions=subscriptions,
    )


def _producer(member: Member) -> ProducerClient:
    return ProducerClient(
        client_id=member.client_id,
        remote_address=f"/{member.exchange.address}",  # as Java prints a socket address
        language=member.language,
        version=member.version,
        last_update_ms=member.heard_ms,
    )


def _duration(milliseconds: int) -> str:
    minutes, seconds = divmod(milliseconds // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"


def _readable(size: float) -> str:
    if size < 1024:
        return f"{size} B"
    for unit in "KMGTP":
        size /= 1024
        if size < 1024 or unit == "P":
            break
    return f"{size:.1f} {unit}iB"
