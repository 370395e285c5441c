"""Answers requests about the running broker: its runtime figures, statistics and connected clients."""

from __future__ import annotations

from pyromq import speedups
from pyromq.broker.confirmation import MAX_UNCONFIRMED
from pyromq.broker.consuming.lags import stored_time
from pyromq.broker.members.connections import GroupMember
from pyromq.broker.shared_state import SharedState
from pyromq.broker.statistics import Rates, Span
from pyromq.errors import BrokerError, ConsumerNotOnline
from pyromq.names import SCHEDULE_TOPIC
from pyromq.net.slow_replies import in_pieces
from pyromq.platforms import platform
from pyromq.remoting.bodies import (
    BrokerStats,
    ClientConnection,
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
from pyromq.slow_work import yield_slice
from pyromq.store.retention import around

FALL_SIZE, FALL_TIME = "GROUP_GET_FALL_SIZE", "GROUP_GET_FALL_TIME"


class RuntimeInfoProcessor:
    """Answers with figures of the whole broker, and with lists of its clients."""

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._connections = state.connections
        self._offsets = state.offsets
        self._queue_locks = state.queue_locks
        self._confirmation = state.confirmation
        self._cold_reads = state.cold_reads
        self._slow_replies = state.slow_replies
        self._statistics = state.statistics
        self._delay_levels = state.delay_levels
        self._refusals = state.refusals
        self._permissions = state.permissions
        self._state = state
        self._clock = state.clock

    @answers(BrokerState)
    async def state(self, header: BrokerState, call: Call) -> Reply:
        earliest_ms = await stored_time(self._store, self._store.min_log_offset)
        table = self._counters() | self._store_figures() | self._queue_figures() | self._delay_figures()
        table["earliestMessageTimeStamp"] = str(-1 if earliest_ms is None else earliest_ms)
        # Not in RocketMQ.
        table |= {f"pyromqRefused.{reason}": str(count) for reason, count in self._refusals.counts.items()}
        if self._permissions.fault is not None:
            table["pyromqPermissionsFault"] = self._permissions.fault
        if (client := self._state.ha_client) is not None and client.fault:
            table["pyromqFollowFault"] = client.fault
        if (service := self._state.ha_service) is not None:
            slaves = (f"{address} {self._store.max_log_offset - reported}" for address, reported in service.slaves)
            table["pyromqSlavesBehind"] = "; ".join(slaves)
        table |= self._state.more_figures()
        return Reply(body=encode_body(KeyValues(table=dict(sorted(table.items())))))

    @answers(BrokerStatistics)
    async def statistic(self, header: BrokerStatistics, call: Call) -> Reply:
        if header.stats_name in (FALL_SIZE, FALL_TIME):
            return await self._fall(header)
        course = self._statistics.course(header.stats_name, header.stats_key)
        if course is None:
            raise BrokerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        body = BrokerStats(minute=_item(course.minute), hour=_item(course.hour), day=_item(course.day))
        return Reply(body=encode_body(body))

    async def _fall(self, header: BrokerStatistics) -> Reply:
        """Return how far a group is behind in a queue now: bytes of log, or ms. Upstream only logs this figure.

        Minute, hour and day of the reply have the same value, which is not a sum. Source:
        BrokerStatsManager.recordDiskFallBehindSize.
        """
        queue_text, _, rest = header.stats_key.partition("@")
        topic, _, group = rest.partition("@")
        offset = self._offsets.find(group, topic, int(queue_text)) if queue_text.isdecimal() else None
        if offset is None:
            raise BrokerError(f"The stats <{header.stats_name}> <{header.stats_key}> not exist")
        behind = 0
        place = self._store.reading.place(topic, int(queue_text), offset)
        begin = None if place is None else self._store.reading.log_offset_of(place)
        if begin is not None and header.stats_name == FALL_SIZE:
            behind = self._store.max_log_offset - begin
        elif begin is not None:
            stored_ms = await stored_time(self._store, begin)
            behind = 0 if stored_ms is None else max(self._clock.now_ms() - stored_ms, 0)
        item = StatsItem(sum=behind, average=float(behind))
        return Reply(body=encode_body(BrokerStats(minute=item, hour=item, day=item)))

    @answers(ConsumerConnections)
    async def consumers(self, header: ConsumerConnections, call: Call) -> Reply:
        """Return a group's members.

        With details, also the queue locks, which may outlast the last member. Raises `ConsumerNotOnline`.
        """
        group = self._connections.consumers(header.consumer_group)
        locks = self._locks(header.consumer_group) if header.details else None
        if group is None:
            if locks:
                return Reply(body=encode_body(ConsumerConnection(locks=locks)))
            raise ConsumerNotOnline(f"the consumer group[{header.consumer_group}] not online")
        connections = []
        for member in group.members:
            wanted = group.wanted_by.get((member.session, member.client_id), {}) if header.details else None
            connections.append(_connection(member, wanted))
            await yield_slice()
        body = ConsumerConnection(
            connections=connections,
            subscriptions=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from=group.consume_from,
            locks=locks,
        )
        return await in_pieces(body)

    def _locks(self, group: str) -> list[LockHolder]:
        return [
            LockHolder(queue=WireQueue.of(queue), client_id=client_id, age_ms=int(age_seconds * 1000))
            for queue, (client_id, age_seconds) in sorted(self._queue_locks.holders(group).items())
        ]

    @answers(ProducerConnections)
    async def producers(self, header: ProducerConnections, call: Call) -> Reply:
        members = self._shown(header.producer_group, call.account)
        if not members:
            raise BrokerError(f"the producer group[{header.producer_group}] not exist")
        connections = []
        for member in members:
            connections.append(_connection(member))
            await yield_slice()
        return await in_pieces(ProducerConnection(connections=connections))

    @answers(AllProducers)
    async def all_producers(self, header: AllProducers, call: Call) -> Reply:
        groups: dict[str, list[ProducerClient]] = {}
        for group in self._connections.producer_groups():
            for member in self._shown(group, call.account):
                groups.setdefault(group, []).append(_producer(member))
                await yield_slice()
        return await in_pieces(ProducerTable(groups=groups))

    def _shown(self, group: str, asker: str | None) -> list[GroupMember]:
        """Return the members of a producer group that the account `asker` may see."""
        may_see = self._permissions.may_see_client
        return [member for member in self._connections.producers(group) if may_see(asker, member.account)]

    def _delay_figures(self) -> dict[str, str]:
        """Return for each delay level the next queue offset to deliver and the end of the level's queue."""
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
            # The tool exportMetrics reads this entry, though upstream's brokers do not send it.
            "totalMemKBytes": str(platform.memory_bytes() // 1024),
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
            "pyromqHotPath": speedups.hot_path,  # not in RocketMQ
        }

    def _store_figures(self) -> dict[str, str]:
        store = self._store
        root = store.config.root
        total, used, free = around(root)
        mode = root.stat().st_mode & 0o777 if root.is_dir() else 0
        ratio = str(_used_share(used, free))
        gone = store.missing_files
        return {
            "commitLogMinOffset": str(store.min_log_offset),
            "commitLogMaxOffset": str(store.max_log_offset),
            "commitLogDiskRatio": ratio,
            f"commitLogDiskRatio_{store.config.commit_log_path or root / 'commitlog'}": ratio,
            "consumeQueueDiskRatio": ratio,
            "commitLogDirCapacity": f"Total : {_readable(total)}, Free : {_readable(free)}.",
            # Only the index: a queue's entry is written together with its record.
            "dispatchBehindBytes": str(store.index_behind),
            "remainHowManyDataToFlush": _readable(store.max_log_offset - store.flushed_to),
            # This entry and the next two are not in RocketMQ.
            **({"sendRefusal": store.refusal} if store.refusal else {}),
            **({"pyromqMissingFiles": str(len(gone)), "pyromqMissingFile": str(gone[0])} if gone else {}),
            **({"pyromqOpenDataFolder": f"{root} (mode {mode:o})"} if mode & 0o007 else {}),
        }

    def _queue_figures(self) -> dict[str, str]:
        """Return the numbers of waiting requests, named as upstream's queues of thread pools.

        Sends wait for their flush, pulls for records to be loaded, queries for their next slice. Long polls do not
        count. Capacities that do not exist here, and times that are not measured, are omitted.
        """
        sends, pulls = self._confirmation, self._cold_reads.waiting
        return {
            "sendThreadPoolQueueSize": str(len(sends)),
            "sendThreadPoolQueueCapacity": str(MAX_UNCONFIRMED),
            "sendThreadPoolQueueHeadWaitTimeMills": str(int(sends.oldest_seconds * 1000)),
            "pullThreadPoolQueueSize": str(len(pulls)),
            "pullThreadPoolQueueHeadWaitTimeMills": str(int(pulls.oldest_seconds * 1000)),
            "queryThreadPoolQueueSize": str(len(self._slow_replies)),
            "pageCacheLockTimeMills": "0",  # always 0: the thread that answers this request also writes the log
        }


def _used_share(used: int, free: int) -> float:
    """Return the used part of a disk, 0 to 1, as `df` computes it: whole percents, rounded up, of the space for users.

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


def _connection(member: GroupMember, subscriptions: dict[str, str] | None = None) -> ClientConnection:
    return ClientConnection(
        client_id=member.client_id,
        client_address=member.session.address,
        language=member.language,
        version=member.version,
        subscriptions=subscriptions,
    )


def _producer(member: GroupMember) -> ProducerClient:
    return ProducerClient(
        client_id=member.client_id,
        remote_address=f"/{member.session.address}",  # as Java prints a socket address
        language=member.language,
        version=member.version,
        last_update_ms=member.last_heartbeat_ms,
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
