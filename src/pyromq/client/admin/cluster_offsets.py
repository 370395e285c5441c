"""Reads, resets and copies the offsets of groups in a whole cluster."""

from __future__ import annotations

from dataclasses import dataclass

from pyromq.client.admin.admin_client import ClusterBrokers, listed
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.errors import ConsumerNotOnline, Unavailable, UsageError
from pyromq.message import MessageQueue
from pyromq.names import check_group
from pyromq.remoting.bodies import ConsumeStats, QueueEntriesBody, ResetOffsets
from pyromq.remoting.headers import ConsumerConnections, ConsumeStatistics, QueueEntries, ResetOffset

END_OF_QUEUE = -1  # time in a reset request that means the end of each queue


@dataclass(frozen=True, slots=True, order=True)
class QueueProgress:
    """A group's progress in one queue.

    `broker_offset` is that of the queue's end. `last_ms` is the store time of the last consumed message, 0 if unknown.
    `in_flight` counts popped messages that are neither acknowledged nor visible again; 0 at Java brokers.
    """

    queue: MessageQueue
    broker_offset: int
    consumer_offset: int
    last_ms: int
    in_flight: int = 0

    @property
    def lag(self) -> int:
        """The number of messages not consumed yet."""
        return self.broker_offset - self.consumer_offset


class ClusterOffsets:
    """Reads and changes the offsets of groups in a whole cluster, for `AsyncAdmin`."""

    def __init__(self, cluster: ClusterClient, brokers: ClusterBrokers, *, timeout: float) -> None:
        self._cluster = cluster
        self._brokers = brokers
        self._offsets = QueueOffsets(cluster, timeout=timeout)

    async def group_progress(
        self, group: str, topic: str | None = None, *, partial: bool = False
    ) -> list[QueueProgress]:
        """Return a group's progress in each queue with a committed offset, in order; [] if there is none.

        With `partial`, brokers out of reach are left out and logged.
        """
        masters = await self._brokers.masters()
        question = ConsumeStatistics(consumer_group=group, topic=topic)
        found = []
        tables = await self._brokers.read_each(masters.values(), question, ConsumeStats, partial=partial)
        for stats in tables.values():
            found += [
                QueueProgress(queue, each.broker_offset, each.consumer_offset, each.last_ms, each.in_flight or 0)
                for queue, each in stats.queues.items()
            ]
        return sorted(found)

    async def reset_offset(self, group: str, topic: str, timestamp_ms: int | None) -> dict[MessageQueue, int]:
        """Reset a group's offsets to a time (ms since 1970; None: the end) and return the new offset of each queue.

        A broker with connected members notifies them. At a broker without members of the group, the stored offsets are
        changed. Raises `Unavailable` before any change if a broker of the topic has no master or is out of reach.
        """
        time = END_OF_QUEUE if timestamp_ms is None else max(0, timestamp_ms)  # -1 ms, in 1969, would be the end
        self._cluster.routes.forget(topic)
        route = await self._cluster.route(topic)
        found = {name: route.master(name) for name in sorted(route.addresses)}
        masters = {name: address for name, address in found.items() if address is not None}
        if absent := found.keys() - masters.keys():
            raise Unavailable(f"no master of broker {listed(absent)} is registered; no offset is reset")
        online = {name: await self._has_members(address, group) for name, address in masters.items()}
        offsets: dict[MessageQueue, int] = {}
        for name, address in masters.items():
            if online[name]:
                order = ResetOffset(topic=topic, group=group, timestamp=time, force=True)
                table = (await self._brokers.read(address, order, ResetOffsets)).offsets
                assert isinstance(table, dict), "the list form is for C++ clients"
                offsets |= table
            else:
                queues = [queue for queue in route.readable if queue.broker_name == name]
                offsets |= await self._reset_stored(group, queues, timestamp_ms)
        return offsets

    async def commit_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store a group's offset of one queue. Connected members are not notified."""
        check_group(group)
        if offset < 0:
            raise UsageError(f"offset {offset} is negative")
        await self._offsets.commit(group, queue, offset)

    async def clone_offsets(self, source: str, destination: str, topic: str) -> dict[MessageQueue, int]:
        """Store the offsets of group `source` in a topic for group `destination`, too. Return them by queue.

        Connected members of `destination` are not notified. Source: RocketMQ 4.9.8, CloneGroupOffsetCommand.
        """
        check_group(destination)
        offsets = {each.queue: each.consumer_offset for each in await self.group_progress(source, topic)}
        for queue, offset in offsets.items():
            await self._offsets.commit(destination, queue, offset)
        return offsets

    async def queue_entries(
        self, queue: MessageQueue, index: int, count: int = 10, *, group: str | None = None
    ) -> QueueEntriesBody:
        """Return `count` entries of a consume queue from offset `index` on.

        With `group`, each entry tells whether the group's subscription matches it.
        """
        self._cluster.check_running()
        address = (await self._cluster.route(queue.topic)).master(queue.broker_name)
        if address is None:
            raise UsageError(f"topic {queue.topic} has no queue at broker {queue.broker_name!r}")
        question = QueueEntries(
            topic=queue.topic, queue_id=queue.queue_id, index=index, count=count, consumer_group=group
        )
        return await self._brokers.read(address, question, QueueEntriesBody)

    async def _has_members(self, address: str, group: str) -> bool:
        try:
            await self._brokers.ask(address, ConsumerConnections(consumer_group=group))
        except ConsumerNotOnline:
            return False
        return True

    async def _reset_stored(
        self, group: str, queues: list[MessageQueue], timestamp_ms: int | None
    ) -> dict[MessageQueue, int]:
        offsets = {}
        for queue in queues:
            if timestamp_ms is None:
                offsets[queue] = await self._offsets.end(queue)
            else:
                offsets[queue] = await self._offsets.by_time(queue, timestamp_ms)
            await self._offsets.commit(group, queue, offsets[queue])
        return offsets
