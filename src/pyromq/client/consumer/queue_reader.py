"""Reads any queue of a cluster without being a member of a group: bounds, times, committed offsets, raw records.

The reader is for programs that assign queues themselves, for example Spark's driver. Its requests contain a group's
name, but it sends no heartbeats, so that the group's members are not rebalanced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from pyromq.client.cluster.cluster_client import AsyncLifespan, ClusterClient
from pyromq.client.cluster.namespace import namespace_of
from pyromq.client.cluster.topic_routes import Route
from pyromq.client.consumer.pulling import PullRequest, PullResult, pull
from pyromq.client.consumer.queue_offsets import QueueOffsets
from pyromq.clock import Clock, SystemClock
from pyromq.errors import NoPermission, TopicNotFound, Unavailable
from pyromq.filter.filter import wanted_by
from pyromq.message import MessageQueue
from pyromq.names import AUTO_CREATE_TOPIC, retry_topic
from pyromq.net.connection_config import ConnectionConfig
from pyromq.remoting.bodies import TopicList, TopicStats, decode_body
from pyromq.remoting.codes import Permission
from pyromq.remoting.headers import CreateTopic, TopicNames, TopicStatistics

Bounds = tuple[int, int]  # offset of the first message, and the offset that the next message will have

MAX_RETRY_QUEUES = 1


class AsyncQueueReader(AsyncLifespan):
    """Reads queues in the name of `group`, for programs with an event loop; `QueueReader` is the blocking form.

    `connections` are as for `AsyncAdmin`, `namespace` as in `ConsumerConfig`; `timeout` is seconds for each request.
    With `verify_checksums`, messages whose bodies do not match their checksums are in `PullResult.damaged`, not in
    `PullResult.messages`; `PullResult.raw` has both. Methods raise `Unavailable` if no broker answers within `timeout`,
    and the refusals of brokers. Entering raises `NoNameServer` immediately if no name server can be reached.
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
        self._cluster = ClusterClient(
            namesrv, clock or SystemClock(), connections=connections, names=names, forget_deleted=True
        )
        self._offsets = QueueOffsets(self._cluster, timeout=timeout)

    async def start(self) -> None:
        """Connect. Raises `NoNameServer` immediately if no name server can be reached."""
        await self._cluster.start()

    async def close(self) -> None:
        """Close the connections. Idempotent."""
        if self._cluster.running:
            await self._cluster.close()

    async def topics(self) -> list[str]:
        """Return the names of all topics, internal ones included, sorted; with a namespace, only its topics."""
        self._cluster.check_running()
        response = await self._cluster.name_servers.ask(TopicNames())
        found = set(decode_body(TopicList, response.check().body).topics)
        own = self._names
        return sorted(own.unwrap(topic) for topic in found if not own.name or own.unwrap(topic) != topic)

    async def brokers(self) -> list[str]:
        """Return the names of all registered brokers, sorted."""
        return sorted(await self._cluster.masters())

    async def absent(self) -> dict[str, list[str]]:
        """Return the topics of each broker that left the cluster, by broker name; with a namespace, only its topics.

        pyromq's name servers remember these topics for a day and forget them at a restart, so all name servers are
        asked. RocketMQ's name servers do not remember them.
        """
        registered = await self._cluster.masters()
        own = self._names
        return {
            broker: [own.unwrap(topic) for topic in topics if not own.name or own.unwrap(topic) != topic]
            for broker, topics in (await self._cluster.absent_topics()).items()
            if broker not in registered
        }

    async def queues(self, topic: str) -> list[MessageQueue]:
        """Return the readable queues of a topic, sorted. Raises `TopicNotFound`."""
        return list((await self._route(topic)).readable)

    def has_master(self, queue: MessageQueue) -> bool:
        """Return whether the known route has a master of the queue's broker. Otherwise requests go to a slave."""
        return self._cluster.has_master(queue)

    async def deleted(self, places: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
        """Return those pairs of topic and broker name whose broker reports that the topic does not exist.

        Brokers that are not registered are not asked. Raises `Unavailable` if a registered broker does not answer.
        """
        masters = await self._cluster.masters()
        asked = [(topic, name) for topic, name in places if name in masters]
        return {place for place in asked if not await self._has(place[0], masters[place[1]])}

    async def bounds(self, topics: Iterable[str], *, partial: bool = False) -> dict[MessageQueue, Bounds]:
        """Return the bounds of every queue of these topics, sorted, with one request per topic and broker.

        If the broker knows that all messages of a queue have expired, both bounds are the queue's end; `live_bounds`
        checks other queues. With `partial`, brokers out of reach are left out and logged. Raises `TopicNotFound`, and
        `NoPermission` for a topic that cannot be read.
        """
        found = await asyncio.gather(*(self._topic_bounds(topic, partial=partial) for topic in topics))
        return dict(sorted((queue, bounds) for each in found for queue, bounds in each.items()))

    async def live_bounds(self, bounds: Mapping[MessageQueue, Bounds]) -> dict[MessageQueue, Bounds]:
        """Return these bounds, each beginning at the first message that can be read; usually one short pull per queue.

        If all messages of a queue have expired, brokers report its old first offset until messages expire again.
        """
        found = await asyncio.gather(*(self._live(queue, each) for queue, each in bounds.items()))
        return dict(zip(bounds, found, strict=True))

    async def first_since(self, queue: MessageQueue, time_ms: int, bounds: Bounds) -> int:
        """Return the offset of the first message stored at `time_ms` (ms since 1970) or later.

        Return the queue's end if there is none. Brokers return the message nearest to the time, which may be stored
        before it. Of several messages stored at the time, RocketMQ's brokers return any.
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
        low = offset
        if low > least and await self._is_since(queue, low - 1, time_ms):
            low = least
        while low < offset:
            middle = (low + offset) // 2
            if await self._is_since(queue, middle, time_ms):
                offset = middle
            else:
                low = middle + 1
        return offset

    async def store_time_at(self, queue: MessageQueue, offset: int) -> int | None:
        """Return the store time (ms since 1970) of the message at an offset; None if there is no message."""
        request = PullRequest(1, timeout=self._timeout, verify=False)  # not verified, because the body does not matter
        messages = (await pull(self._cluster, self._wire_group, queue, offset, request=request)).messages
        return messages[0].store_ms if messages and messages[0].queue_offset == offset else None

    async def store_times(self, places: Mapping[MessageQueue, int]) -> dict[MessageQueue, int | None]:
        """Return the result of `store_time_at` for each queue and its offset, requested in parallel."""
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
        """Pull once from a queue.

        A broker of pyromq returns up to `max_bytes` of records, other brokers up to their configured limit.
        """
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
        """Pull in parallel from `places`: queue, offset and highest number of messages of each pull.

        Other arguments are those of `pull`.
        """
        return await asyncio.gather(
            *(
                self.pull(queue, offset, count, tags=tags, sql=sql, max_bytes=max_bytes)
                for queue, offset, count in places
            )
        )

    async def committed(self, queues: Iterable[MessageQueue], group: str) -> dict[MessageQueue, int | None]:
        """Return a group's committed offset in each of these queues; None if none was committed."""
        queues = list(queues)
        found = await asyncio.gather(*(self._offsets.committed(self._names.wrap(group), queue) for queue in queues))
        return dict(zip(queues, found, strict=True))

    async def commit(self, offsets: Mapping[MessageQueue, int], group: str) -> None:
        """Commit a group's offsets, so that tools show its progress. The brokers have the offsets when this returns."""
        await asyncio.gather(
            *(self._offsets.commit(self._names.wrap(group), queue, offset) for queue, offset in offsets.items())
        )

    async def announce_group(self, group: str) -> None:
        """Create the group's retry topic if it is missing: RocketMQ's tools find a group's brokers by this topic."""
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

    async def _topic_bounds(self, topic: str, *, partial: bool) -> dict[MessageQueue, Bounds]:
        route = await self._route(topic)
        if not route.readable:
            raise NoPermission(f"topic {topic!r} has no queue that may be read: its permission forbids that")
        found: dict[MessageQueue, Bounds] = {}
        left_out = set()
        for name in sorted({queue.broker_name for queue in route.readable}):
            anyone = next(queue for queue in route.readable if queue.broker_name == name)
            question = TopicStatistics(topic=self._names.wrap(topic))
            try:
                response = await self._cluster.ask_queue(anyone, question, timeout=self._timeout)
            except Unavailable as error:
                if not partial:
                    raise
                self._cluster.leave_out(route.replica(name) or name, error)
                left_out.add(name)
                continue
            stats = decode_body(TopicStats, response.check().body)
            of_queues = {self._names.unwrap_queue(queue): each for queue, each in stats.queues.items()}
            found |= {queue: (each.min_offset, each.max_offset) for queue, each in of_queues.items()}
            doubted = {queue: found[queue] for queue, each in of_queues.items() if each.last_update_ms <= 0}
            found |= await self.live_bounds(doubted)  # the queue's last message has expired, so probably all have
        asked = [queue for queue in route.readable if queue.broker_name not in left_out]
        return {queue: found.get(queue) or await self._ask_bounds(queue) for queue in asked}

    async def _is_since(self, queue: MessageQueue, offset: int, time_ms: int) -> bool:
        stored = await self.store_time_at(queue, offset)
        return stored is not None and stored >= time_ms

    async def _ask_bounds(self, queue: MessageQueue) -> Bounds:
        """Return the bounds of a queue that is not writable: the broker's statistics have writable queues only."""
        return await self._live(queue, (await self._offsets.least(queue), await self._offsets.end(queue)))

    async def _live(self, queue: MessageQueue, bounds: Bounds) -> Bounds:
        """Return bounds that begin at the first existing message.

        Messages expire in order of their offsets, so a binary search finds the first existing one.
        """
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
