"""Answers consumers' requests about stored offsets, bounds of queues, offsets at a time, and members of groups."""

from __future__ import annotations

from pyromq.broker.consuming.lags import read_store_times
from pyromq.broker.shared_state import SharedState
from pyromq.errors import BrokerError, QueryNotFound, TopicNotFound
from pyromq.names import check_group
from pyromq.net.slow_replies import in_pieces
from pyromq.remoting.bodies import MAX_QUEUES, ConsumerIds
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import (
    ConsumerList,
    EarliestStoreTime,
    EarliestStoreTimeResponse,
    MaxOffset,
    MinOffset,
    OffsetResponse,
    QueryConsumerOffset,
    SearchOffset,
    UpdateConsumerOffset,
)
from pyromq.slow_work import yield_slice


class OffsetProcessor:
    """Answers requests about offsets and group members.

    A queue that does not exist counts as empty: its bounds are 0 and 0.
    """

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._topics = state.topics
        self._offsets = state.offsets
        self._connections = state.connections

    @answers(QueryConsumerOffset)
    def offset(self, header: QueryConsumerOffset, call: Call) -> Reply:
        """Return the group's stored offset of a queue.

        Without one, return 0 if the queue still has its first message and that message is recent. Raises
        `QueryNotFound` otherwise. The field `setZeroIfNotFound` is RocketMQ 5's. Source: RocketMQ 5,
        ConsumerManageProcessor.queryConsumerOffset.
        """
        offset = self._offsets.find(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            reading = self._store.reading
            if header.zero_if_not_found is False or not reading.begins_nearby(header.topic, header.queue_id):
                raise QueryNotFound("Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
            offset = 0
        return Reply(OffsetResponse(offset=offset))

    @answers(UpdateConsumerOffset)
    def commit(self, header: UpdateConsumerOffset, call: Call) -> Reply:
        """Store a group's offset in an existing topic.

        Raises `TopicNotFound`, `LimitReached`, or `BrokerError` for a bad queue id. An offset of an unknown topic would
        apply to a later topic of that name. RocketMQ 5 refuses it too; 4.9.8 stores it. Clients of 4.9.8 do not wait
        for the reply.
        """
        group = header.consumer_group
        if self._topics.find(header.topic) is None:
            raise TopicNotFound(f"topic[{header.topic}] not exist, its offsets are not stored")
        if not 0 <= header.queue_id < MAX_QUEUES:
            raise BrokerError(f"queueId[{header.queue_id}] is illegal, its offsets are not stored")
        check_group(group)
        if not self._offsets.commit(group, header.topic, header.queue_id, header.commit_offset):
            raise self._offsets.too_many(group)
        return Reply()

    @answers(MaxOffset)
    def max_offset(self, header: MaxOffset, call: Call) -> Reply:
        return Reply(OffsetResponse(offset=self._store.max_offset(header.topic, header.queue_id)))

    @answers(MinOffset)
    def min_offset(self, header: MinOffset, call: Call) -> Reply:
        return Reply(OffsetResponse(offset=self._store.min_offset(header.topic, header.queue_id)))

    @answers(SearchOffset)
    async def offset_by_time(self, header: SearchOffset, call: Call) -> Reply:
        offset = await self._store.search_by_time(header.topic, header.queue_id, header.timestamp)
        return Reply(OffsetResponse(offset=offset))

    @answers(EarliestStoreTime)
    async def earliest_store_time(self, header: EarliestStoreTime, call: Call) -> Reply:
        """Return the store time (ms since 1970) of the queue's first message; -1 if the queue is empty."""
        first = self._store.reading.first_from(header.topic, header.queue_id, 0)
        found: dict[str, int] = {}
        if first is not None:
            await read_store_times(self._store, {"first": first}, found)
        return Reply(EarliestStoreTimeResponse(timestamp=found.get("first", -1)))

    @answers(ConsumerList)
    async def members(self, header: ConsumerList, call: Call) -> Reply:
        group = self._connections.consumers(header.consumer_group)
        if group is None:
            raise BrokerError(f"no consumer for this group, {header.consumer_group}")
        await yield_slice()  # lets requests of other connections go first
        return await in_pieces(ConsumerIds(client_ids=[member.client_id for member in group.members]))
