"""Answers queries for single messages: by key, by log offset, and for raw entries of a consume queue.

A query by key waits until all messages stored before the query are in the index.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyromq.errors import BrokerError, QueryNotFound
from pyromq.filter.filter import Filter, filter_of
from pyromq.net.slow_replies import in_pieces
from pyromq.remoting.bodies import QueueEntriesBody, QueueEntryBody, Subscription, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import QueryMessage, QueryMessageResponse, QueueEntries, ViewMessage
from pyromq.slow_work import completed, loaded, yield_slice
from pyromq.store.message_store import QueueEntry

if TYPE_CHECKING:
    from pyromq.broker.shared_state import SharedState

MAX_MATCHES = 64  # limit of messages in the reply to a query by key: upstream's maxMsgsNumBatch
UNIQUE_KEY_MATCHES = 32  # limit of messages in the reply to a query by unique key: defaultQueryMaxNum
MAX_ENTRIES = 16_384  # limit of queue entries in one reply; upstream has no limit
ENTRIES_AT_ONCE = 64  # queue entries read, some with their records, before other connections are served


class QueryMessageProcessor:
    """Finds stored messages for tools: by key, by log offset, or by place in a queue."""

    def __init__(self, state: SharedState) -> None:
        self._store = state.store
        self._indexing = state.indexing
        self._connections = state.connections
        self._limits = state.config.limits

    @answers(QueryMessage)
    async def by_key(self, header: QueryMessage, call: Call) -> Reply:
        """Return the newest records of the topic that have the key or unique key, in log order.

        `maxQueryBytes` limits the records, but one is always returned; the remark says how many are omitted. Raises
        `QueryNotFound`.
        """
        if (indexed := self._indexing.when_indexed()) is not None:
            await completed(indexed)
        wanted = min(UNIQUE_KEY_MATCHES if header.by_unique_key else header.max_count, MAX_MATCHES)
        found = await self._store.search_by_key(header.topic, header.key, wanted, header.begin_ms, header.end_ms)
        await loaded(self._store.residency.heads_to_load(found.log_offsets))
        records = {offset: self._store.record_at(offset) for offset in sorted(found.log_offsets)}
        there = {offset: record for offset, record in records.items() if record is not None}
        if not there:
            raise QueryNotFound("can not find message, maybe time range not correct")
        fitting = _newest([*there.values()], self._limits.query_bytes)
        left_out, limit = len(there) - len(fitting), self._limits.query_bytes
        remark = f"{left_out} older messages are omitted: maxQueryBytes is {limit}" if left_out else None
        answer = QueryMessageResponse(
            index_last_ms=found.last_update_ms, index_last_log_offset=found.last_update_log_offset
        )
        await yield_slice()  # lets requests of other connections go first
        await loaded(self._store.residency.to_load((offset, len(record)) for offset, record in there.items()))
        return Reply(answer, fitting, remark=remark)

    @answers(ViewMessage)
    async def by_log_offset(self, header: ViewMessage, call: Call) -> Reply:
        await yield_slice()  # lets requests of other connections go first
        await self._store.residency.load_record(header.offset)
        record = self._store.confirmed_record_at(header.offset)
        if record is None:
            raise BrokerError(f"can not find message by the offset, {header.offset}")
        return Reply(body=[record])

    @answers(QueueEntries)
    async def entries(self, header: QueueEntries, call: Call) -> Reply:
        """Return entries of a consume queue.

        If the request names a group, each entry says whether the group's subscription accepts it.
        """
        topic, queue_id = header.topic, header.queue_id
        if queue_id not in self._store.queue_ids(topic):
            raise BrokerError(f"{queue_id}@{topic} is not exist!")
        first, last = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        body = QueueEntriesBody(min_index=first, max_index=last)
        if not first <= header.index < last:
            return Reply(body=encode_body(body), remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
        subscription = self._subscription(header.consumer_group, topic)
        wanted = filter_of(subscription.expression_type, subscription.expression) if subscription is not None else None
        entries: list[QueueEntryBody] = []
        end = min(header.index + min(header.count, MAX_ENTRIES), last)
        reads_records = wanted is not None and wanted.accepts_record is not None
        to_load = self._store.reading.to_load if reads_records else self._store.reading.pages_to_verify
        for index in range(header.index, end, ENTRIES_AT_ONCE):
            count = min(ENTRIES_AT_ONCE, end - index)
            await loaded(to_load(topic, queue_id, index, count))
            for entry in self._store.entries(topic, queue_id, index, count):
                accepted = wanted is not None and self._passes(entry, wanted)
                entries.append(QueueEntryBody(entry.log_offset, entry.size, entry.tags_code, accepted=accepted))
            await yield_slice()
        body = QueueEntriesBody(min_index=first, max_index=last, entries=entries, subscription=subscription)
        return await in_pieces(body)

    def _passes(self, entry: QueueEntry, wanted: Filter) -> bool:
        if wanted.accepts_code is not None and not wanted.accepts_code(entry.tags_code):
            return False
        if wanted.accepts_record is None:
            return True
        record = self._store.record_at(entry.log_offset)
        return record is not None and wanted.accepts_record(record)

    def _subscription(self, group: str | None, topic: str) -> Subscription | None:
        consumers = self._connections.consumers(group) if group else None
        return consumers.subscriptions.get(topic) if consumers is not None else None


def _newest(records: list[memoryview], max_bytes: int) -> list[memoryview]:
    """Return as many of the last records as fit `max_bytes` together, at least one."""
    size = 0
    for number, record in enumerate(reversed(records)):
        size += len(record)
        if number and size > max_bytes:
            return records[-number:]
    return records
