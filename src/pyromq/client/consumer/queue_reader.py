"""Reading any queue of a cluster without being a member of a group: bounds, times, stored offsets, raw records.

For programs that divide queues themselves, as Spark's driver does: brokers see requests with a group's name and no
heartbeats, so that nobody's queues are shared out again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from pyromq.client.cluster.cluster_client import AsyncLifespan, ClusterClient
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.cluster.routes import Route
from pyromq.client.consumer.pulling import PullRequest, PullResult, pull
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.clock import Clock, SystemClock
from pyromq.errors import NoPermission, TopicNotFound
from pyromq.filter.subscribed import wanted_by
from pyromq.message import MessageQueue
from pyromq.names import AUTO_CREATE_TOPIC, retry_topic
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import TopicList, TopicStats, decode_body
from pyromq.remoting.codes import Permission
from pyromq.remoting.headers import CreateTopic, TopicNames, TopicStatistics

Bounds = tuple[int, int]  # the first offset still there, the offset of the next message

MAX_RETRY_QUEUES = 1


class AsyncQueueReader(AsyncLifespan):
    """Reads queues in the name of `group`, for programs with an event loop; `QueueReader` is the same without one.

    `connections` are as for `AsyncAdmin`, `namespace` as in `ConsumerConfig`; `timeout` is seconds for each request.
    With `verify_checksums` a pull's `messages` are without those whose bodies do not match their checksums, which are
    in its `damaged`; `raw` is as it came. Methods raise `Unavailable` when nobody answers within `timeout`, else what
    the broker answers. Entering raises `NoNameServer` at once when no name server can be reached.
    """

    def __init__(
        self,
        group: str,
        namesrv: str | None = None,
        *,
        timeout: float = 5.0,
        verify_checksums: bool = True,
        clock: Clock | None = None,
        connections: ConnectionConfig | None = None,
        namespace: str | None = None,
    ) -> None:
        names = self._names = namespace_of(namespace, namesrv)
        self.group = group
        self._wire_group = names.checked_group(group)
        self._timeout = timeout
        self._verify = verify_checksums
        self._cluster = ClusterClient(namesrv, clock or SystemClock(), connections=connections, names=names)
        self._offsets = QueueOffsets(self._cluster, timeout=timeout)

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` at once when no name server can be reached."""
        await self._cluster.start()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._cluster.running:
            await self._cluster.close()

    async def topics(self) -> list[str]:
        """Return the names of all topics, reserved ones included, in order; of a namespace, those in it."""
        self._cluster.check_running()
        response = await self._cluster.name_servers.ask(TopicNames())
        found = set(decode_body(TopicList, response.check().body).topics)
        own = self._names
        return sorted(own.unwrap(topic) for topic in found if not own.name or own.unwrap(topic) != topic)

    async def brokers(self) -> list[str]:
        """Return the names of all brokers that the name server knows now, in order."""
        return sorted(await self._cluster.masters())

    async def absent(self) -> dict[str, list[str]]:
        """Return the topics of each broker that left, by broker name; of a namespace, those in it.

        Name servers remember them for a day and forget them at a restart, so all are asked. RocketMQ's remember none.
        """
        registered = await self._cluster.masters()
        own = self._names
        return {
            broker: [own.unwrap(topic) for topic in topics if not own.name or own.unwrap(topic) != topic]
            for broker, topics in (await self._cluster.absent_topics()).items()
            if broker not in registered
        }

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the queues of a topic that can be read now, in order. Raises `TopicNotFound`."""
        return list((await self._route(topic)).readable)

    async def deleted(self, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those of these topics, each with the name of a broker, that the broker itself says it does not have.

        A broker that is not registered has said nothing. Raises `Unavailable` for a registered one that is silent.
        """
        masters = await self._cluster.masters()
        asked = [(topic, name) for topic, name in places if name in masters]
        return {place for place in asked if not await self._has(place[0], masters[place[1]])}

    async def bounds(self, topics: Iterable[str]) -> dict[MessageQueue, Bounds]:
        """Return the bounds of every queue of these topics, in order: one request a broker.

        A queue whose messages have all expired begins at its end; see `live_bounds` for others. Raises
        `TopicNotFound`, and `NoPermission` for a topic that cannot be read.
        """
        found = await asyncio.gather(*(self._topic_bounds(topic) for topic in topics))
        return dict(sorted((queue, bounds) for each in found for queue, bounds in each.items()))

    async def live_bounds(self, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, Bounds]:
        """Return these bounds with the first message of each queue that can be read: one short pull a queue.

        Brokers leave the first offset of a queue alone when all of its messages have expired, and tell the right one
        only after messages expire again.
        """
        found = await asyncio.gather(*(self._live(queue, each) for queue, each in bounds.items()))
        return dict(zip(bounds, found, strict=True))

    async def first_since(self, queue: MessageQueue, time_ms: int, bounds: Bounds) -> int:
        """Return the first offset stored at `time_ms` or later; the queue's end where there is none.

        Brokers answer with the message nearest to the time, which may be stored before it.
        """
        least, most = bounds
        if least >= most:
            return most
        offset = max(await self._offsets.by_time(queue, time_ms), least)
        while offset < most:
            stored = await self.store_time_at(queue, offset)
            if stored is None or stored >= time_ms:
                break
            offset += 1
        return offset

    async def store_time_at(self, queue: MessageQueue, offset: int) -> int | None:
        """Return the store time (ms) of the message at an offset; None where there is none."""
        request = PullRequest(1, timeout=self._timeout, verify=False)  # whatever its body
        messages = (await pull(self._cluster, self._wire_group, queue, offset, request=request)).messages
        return messages[0].store_ms if messages and messages[0].queue_offset == offset else None

    async def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Return `store_time_at` of several places, asked at once."""
        times = await asyncio.gather(*(self.store_time_at(queue, offset) for queue, offset in places.items()))
        return dict(zip(places, times, strict=True))

    async def pull(
        self,
        queue: MessageQueue,
        offset: int,
        max_count: int = 32,
        *,
        tags: str = "*",
        sql: str | None = None,
        max_bytes: int | None = None,
    ) -> PullResult:
        """Pull once. A broker that gives large pulls gives up to `max_bytes` of records, others as configured."""
        wanted = wanted_by(tags, sql)
        request = PullRequest(max_count, wanted, timeout=self._timeout, max_bytes=max_bytes, verify=self._verify)
        return await pull(self._cluster, self._wire_group, queue, offset, request=request)

    async def pull_all(
        self,
        places: Sequence[tuple[MessageQueue, int, int]],
        *,
        tags: str = "*",
        sql: str | None = None,
        max_bytes: int | None = None,
    ) -> list[PullResult]:
        """Pull at once from several places: queue, offset, most messages; else as `pull`."""
        return await asyncio.gather(
            *(
                self.pull(queue, offset, count, tags=tags, sql=sql, max_bytes=max_bytes)
                for queue, offset, count in places
            )
        )

    async def committed(self, queues: Iterable[MessageQueue], group: str) -> dict[MessageQueue, int | None]:
        """Return where a group goes on in these queues; None where nothing is stored."""
        queues = list(queues)
        found = await asyncio.gather(*(self._offsets.committed(self._names.wrap(group), queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def commit(self, offsets: Mapping[MessageQueue, int], group: str) -> None:
        """Store where a group goes on, so that tools show how far it is; true at the brokers when this returns."""
        await asyncio.gather(
            *(self._offsets.commit(self._names.wrap(group), queue, offset) for queue, offset in offsets.items())
        )

    async def announce_group(self, group: str) -> None:
        """See that the group's retry topic exists: RocketMQ's tools look for a group's brokers there."""
        topic = retry_topic(group)
        try:
            await self._cluster.route(topic)
            return
        except TopicNotFound:
            pass
        header = CreateTopic(
            topic=self._names.wrap(topic),
            read_queues=MAX_RETRY_QUEUES,
            write_queues=MAX_RETRY_QUEUES,
            permission=int(Permission.READ | Permission.WRITE),
            default_topic=AUTO_CREATE_TOPIC,
        )
        for address in sorted(self._cluster.routes.broker_addresses(masters_only=True)):
            (await self._cluster.ask(address, header, timeout=self._timeout)).check()

    async def _route(self, topic: str) -> Route:
        topic = self._names.checked_topic(topic)
        self._cluster.check_running()
        await self._cluster.refresh(topic)
        return await self._cluster.route(topic)

    async def _has(self, topic: str, address: str) -> bool:
        header = TopicStatistics(topic=self._names.wrap(topic))
        try:
            (await self._cluster.ask(address, header, timeout=self._timeout)).check()
        except TopicNotFound:
            return False
        return True

    async def _topic_bounds(self, topic: str) -> dict[MessageQueue, Bounds]:
        route = await self._route(topic)
        if not route.readable:
            raise NoPermission(f"topic {topic!r} has no queue that may be read: its permission forbids that")
        found: dict[MessageQueue, Bounds] = {}
        for name in sorted({queue.broker_name for queue in route.readable}):
            anyone = next(queue for queue in route.readable if queue.broker_name == name)
            response = await self._cluster.ask_queue(
                anyone, TopicStatistics(topic=self._names.wrap(topic)), timeout=self._timeout
            )
            stats = decode_body(TopicStats, response.check().body)
            of_queues = {self._names.unwrap_queue(queue): each for queue, each in stats.queues.items()}
            found |= {queue: (each.min_offset, each.max_offset) for queue, each in of_queues.items()}
            doubted = {queue: found[queue] for queue, each in of_queues.items() if each.last_update_ms <= 0}
            found |= await self.live_bounds(doubted)  # the last message is gone, so probably all are
        return {queue: found.get(queue) or await self._ask_bounds(queue) for queue in route.readable}

    async def _ask_bounds(self, queue: MessageQueue) -> Bounds:
        """Brokers tell in one answer of the queues that can be written; others may still be read."""
        return await self._live(queue, (await self._offsets.least(queue), await self._offsets.end(queue)))

    async def _live(self, queue: MessageQueue, bounds: Bounds) -> Bounds:
        """Messages expire from the front on, so that what is still there can be searched by halves."""
        least, most = bounds
        if least >= most or await self.store_time_at(queue, least) is not None:
            return bounds
        low, high = least + 1, most
        while low < high:
            middle = (low + high) // 2
            if await self.store_time_at(queue, middle) is None:
                low = middle + 1
            else:
                high = middle
        return low, most
