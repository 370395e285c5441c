"""Answers questions for single messages: by key, by log offset, and the raw entries of a consume queue."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

from pyromq.broker.indexing import Indexing
from pyromq.broker.members.connections import Connections
from pyromq.errors import BrokerError, QueryNotFound
from pyromq.filter.filter import Filter, filter_of
from pyromq.remoting.bodies import QueueEntriesBody, QueueEntryBody, Subscription, encode_body
from pyromq.remoting.command import Call, Reply
from pyromq.remoting.dispatch import answers
from pyromq.remoting.headers import QueryMessage, QueryMessageResponse, QueueEntries, ViewMessage
from pyromq.store.message_store import MessageStore, QueueEntry

MAX_MATCHES = 64  # maxMsgsNumBatch
UNIQUE_KEY_MATCHES = 32  # defaultQueryMaxNum


class Querying:
    """Finds messages for tools."""

    def __init__(self, store: MessageStore, indexing: Indexing, connections: Connections) -> None:
        self._store = store
        self._indexing = indexing
        self._connections = connections

    @answers(QueryMessage)
    def by_key(self, header: QueryMessage, call: Call) -> Reply | Future[Reply]:
        """The newest records whose key has the asked key's hash, in log order; whoever asked compares the keys."""
        return self._indexing.when_indexed(partial(self._found_by_key, header))

    def _found_by_key(self, header: QueryMessage) -> Reply:
        wanted = UNIQUE_KEY_MATCHES if header.by_unique_key else header.max_count
        found = self._store.find_by_key(
            header.topic, header.key, min(wanted, MAX_MATCHES), header.begin_ms, header.end_ms
        )
        found_at = sorted(found.log_offsets)
        records = [record for offset in found_at if (record := self._store.record_at(offset)) is not None]
        if not records:
            raise QueryNotFound("can not find message, maybe time range not correct")
        answer = QueryMessageResponse(
            index_last_ms=found.last_update_ms, index_last_log_offset=found.last_update_log_offset
        )
        return Reply(answer, records)

    @answers(ViewMessage)
    def by_log_offset(self, header: ViewMessage, call: Call) -> Reply:
        record = self._store.record_at(header.offset)
        if record is None:
            raise BrokerError(f"can not find message by the offset, {header.offset}")
        return Reply(body=[record])

    @answers(QueueEntries)
    def entries(self, header: QueueEntries, call: Call) -> Reply:
        """Entries of a consume queue; with a group, also whether its subscription lets them pass."""
        topic, queue_id = header.topic, header.queue_id
        if queue_id not in self._store.queue_ids(topic):
            raise BrokerError(f"{queue_id}@{topic} is not exist!")
        first, last = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
        body = QueueEntriesBody(min_index=first, max_index=last)
        if not first <= header.index < last:
            return Reply(body=encode_body(body), remark=f"Index {header.index} of {queue_id}@{topic} is not exist!")
        subscription = self._subscription(header.consumer_group, topic)
        wanted = filter_of(subscription.expression_type, subscription.expression) if subscription is not None else None
        entries = [
            QueueEntryBody(
                log_offset=entry.log_offset,
                size=entry.size,
                tags_code=entry.tags_code,
                accepted=wanted is not None and self._passes(entry, wanted),
            )
            for entry in self._store.entries(topic, queue_id, header.index, header.count)
        ]
        body = QueueEntriesBody(min_index=first, max_index=last, entries=entries, subscription=subscription)
        return Reply(body=encode_body(body))

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
