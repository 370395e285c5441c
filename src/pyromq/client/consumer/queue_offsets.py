"""Requests about queue offsets: bounds, offset by time, a group's committed offset. Used by consumers and admins."""

from __future__ import annotations

import asyncio

from pyromq.client.client_config import ConsumeFrom, ConsumerConfig
from pyromq.client.cluster.cluster_client import ClusterClient
from pyromq.client.consumer.pulling import PullRequest, PullResult, pull
from pyromq.errors import MQError, ResponseCode
from pyromq.logs import logger_of
from pyromq.message import MessageQueue
from pyromq.names import RETRY_PREFIX
from pyromq.remoting.headers import (
    MaxOffset,
    MinOffset,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)

logger = logger_of(__name__)


class QueueOffsets:
    """Requests offsets from the brokers of the queues. A request takes at most `timeout` seconds, retries included."""

    def __init__(self, cluster: ClusterClient, *, timeout: float) -> None:
        self._cluster = cluster
        self._names = cluster.names
        self._timeout = timeout
        # First commits by group, topic and broker name; a failed one is removed, and its error is the result.
        self._begun: dict[tuple[str, str, str], asyncio.Future[MQError | None]] = {}

    async def least(self, queue: MessageQueue) -> int:
        """Return the offset of a queue's first message that still exists."""
        return await self._ask(queue, MinOffset)

    async def end(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue will have."""
        return await self._ask(queue, MaxOffset)

    async def by_time(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset of a queue's message stored nearest to a time (ms since 1970)."""
        return await self._ask(queue, SearchOffset, timestamp=timestamp_ms)

    async def corrected(self, group: str, result: PullResult, *, asked: int, latest_ms: int) -> int:
        """Return and log the offset to continue at after a pull at `asked`, an offset outside the queue.

        An offset behind the queue's end means that the topic was created again, or that a crash lost the queue's tail.
        A broker then suggests the end, which would skip new messages. This method returns the offset of the first
        message stored after `latest_ms`, the store time of the latest message pulled. If `latest_ms` is 0 (no message
        was pulled) and the queue still has its first message, it returns 0.
        """
        # For an offset below the queue's first message: retention has deleted the messages before it.
        queue, offset = result.queue, result.next_offset
        if asked > result.max_offset and latest_ms:
            offset = min(await self.by_time(queue, latest_ms + 1), result.max_offset)
        elif asked > result.max_offset and result.min_offset == 0:
            offset = 0
        logger.warning(
            "group %s: offset %d of %s is outside the queue, which has %d to %d; continuing at %d",
            group,
            asked,
            queue,
            result.min_offset,
            result.max_offset,
            offset,
        )
        return offset

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return a group's committed offset; None if none was committed. A broker of 4.9 may return 0 instead."""
        return await self._stored(group, queue, zero_if_not_found=False)

    async def _stored(self, group: str, queue: MessageQueue, *, zero_if_not_found: bool | None) -> int | None:
        question = QueryConsumerOffset(
            consumer_group=group,
            topic=self._names.wrap(queue.topic),
            queue_id=queue.queue_id,
            broker_name=queue.broker_name,
            zero_if_not_found=zero_if_not_found,
        )
        response = await self._cluster.ask_queue(queue, question, timeout=self._timeout)
        if response.code == ResponseCode.QUERY_NOT_FOUND:
            return None
        return response.check().header(OffsetResponse).offset

    async def start(self, group: str, queue: MessageQueue, config: ConsumerConfig, *, keep: bool = True) -> int:
        """Return the offset at which a group begins in a queue: the committed one, else that of the configuration.

        With `keep`, the offset of a configured `consume_from` is committed immediately: after a crash of this member
        the next owner begins there, too. Source: RocketMQ 4.9.8, RebalancePushImpl.computePullFromWhere.
        """
        asked = config.consume_from is not None and not queue.topic.startswith(RETRY_PREFIX)
        stored = await self._stored(group, queue, zero_if_not_found=False if asked else None)
        if stored is not None:
            return stored
        offset = await self.start_without_stored(group, queue, config)
        if asked and keep:
            await self.commit(group, queue, offset)
        return offset

    async def start_without_stored(self, group: str, queue: MessageQueue, config: ConsumerConfig) -> int:
        """Return the offset at which a group without a committed offset begins, as `ConsumerConfig.consume_from` says.

        A retry topic begins at 0, but with `ConsumeFrom.TIME` at its end.
        """
        is_retry = queue.topic.startswith(RETRY_PREFIX)
        if config.consume_from is ConsumeFrom.TIME:
            return await (self.end(queue) if is_retry else self._first_since(group, queue, config.consume_from_ms))
        if config.consume_from is ConsumeFrom.FIRST or is_retry or self._cluster.routes.is_later(queue):
            return 0
        return await self.end(queue)

    async def _first_since(self, group: str, queue: MessageQueue, time_ms: int) -> int:
        """Return the offset of the first message stored at a time or later; the queue's end if there is none.

        Brokers return the message nearest to a time, which may be stored earlier or be one of several in a millisecond.
        """
        offset, end = await asyncio.gather(self.by_time(queue, time_ms - 1), self.end(queue))
        request = PullRequest(timeout=self._timeout, verify=False)
        while offset < end:
            found = await pull(self._cluster, group, queue, offset, request=request)
            for message in found.messages:
                if message.store_ms >= time_ms:
                    return message.queue_offset
            if found.next_offset <= offset:
                break
            offset = found.next_offset
        return end

    async def commit(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Commit a group's offset of a queue. The broker has stored it in memory when this returns.

        The first commit of a group and topic at a broker is sent alone: a broker of 4.9 can lose commits that arrive
        while it creates their common entry. If it fails, the commits that wait for it fail with the same error.
        Source: RocketMQ 4.9.7, ConsumerOffsetManager.commitOffset.
        """
        entry = group, queue.topic, queue.broker_name
        if (begun := self._begun.get(entry)) is not None:
            if (failure := await asyncio.shield(begun)) is not None:
                raise failure
            await self._store(group, queue, offset)
            return
        begun = self._begun[entry] = asyncio.get_running_loop().create_future()
        try:
            await self._store(group, queue, offset)
        except BaseException as error:
            del self._begun[entry]
            begun.set_result(error if isinstance(error, MQError) else None)
            raise
        begun.set_result(None)

    async def _store(self, group: str, queue: MessageQueue, offset: int) -> None:
        order = UpdateConsumerOffset(
            consumer_group=group,
            topic=self._names.wrap(queue.topic),
            queue_id=queue.queue_id,
            commit_offset=offset,
            broker_name=queue.broker_name,
        )
        (await self._cluster.ask_queue(queue, order, timeout=self._timeout)).check()

    async def _ask(
        self, queue: MessageQueue, question: type[MinOffset | MaxOffset | SearchOffset], **fields: int
    ) -> int:
        topic = self._names.wrap(queue.topic)
        header = question(topic=topic, queue_id=queue.queue_id, broker_name=queue.broker_name, **fields)
        response = await self._cluster.ask_queue(queue, header, timeout=self._timeout)
        return response.check().header(OffsetResponse).offset
