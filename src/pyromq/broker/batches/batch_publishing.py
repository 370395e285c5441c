"""Decided runs on their way to their queues: made visible slice by slice, in order of the decisions, each message once.

A slice is one write: its messages, and a note of how far the transaction is visible now. A crash can part them only at
the end of the log; then messages are there whose note is missing. Each says in which run it was (as committed messages
say where their half message lies), so at the start they are counted and not written again.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from pyromq.broker.batches.decisions import Decision, Ledger
from pyromq.broker.batches.half_runs import Run
from pyromq.broker.config import BrokerConfig
from pyromq.broker.put_message import PutMessage
from pyromq.broker.topics import Topics
from pyromq.errors import MessageRefused, StoreCorrupt, StoreNotWritable
from pyromq.message import PAIRS, Property, StoredMessage, SysFlag
from pyromq.record import BatchMember, decode, decode_batch, sys_flag_of
from pyromq.remoting.bodies import SINGLE_TAG, LedgerNote
from pyromq.store.message_store import MessageStore

logger = logging.getLogger(__name__)

SLICE = 256  # messages made visible before others get their turn: about 3 ms
SLICE_BYTES = 1 << 20
TRANSACTION_BITS = SysFlag.ROLLBACK


@dataclass(slots=True)
class _Publication:
    """A decision, its runs that are not visible as a whole, and how many messages of the first one are."""

    decision: Decision
    runs: deque[Run]
    done: int = 0


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the messages of a run have in common."""

    topic: str
    queue_id: int
    sys_flag: int
    born_ms: int
    born_address: bytes
    log_offset: int  # of the run


class BatchPublishing:
    """The decisions of one broker that are not visible yet, oldest first."""

    def __init__(
        self, store: MessageStore, put_message: PutMessage, *, topics: Topics, ledger: Ledger, config: BrokerConfig
    ) -> None:
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._ledger = ledger
        self._cluster_pair = f"{Property.CLUSTER}\x01{config.cluster}"
        self._waiting: deque[_Publication] = deque()
        self._members: Iterator[BatchMember] | None = None  # of the first run, from the first hidden one on
        self._shape: _Shape | None = None  # of the first run

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, decision: Decision, runs: list[Run], *, done: int = 0) -> None:
        """Let the messages of these runs become visible, but for the first `done` of the first run."""
        if runs:
            self._waiting.append(_Publication(decision, deque(runs), done))
        else:
            decision.visible = True

    def skip_visible(self, log_offset: int) -> None:
        """Count what a crash left visible without a note: `log_offset` is behind the last note. Called at the start."""
        if not self._waiting:
            return
        publication = self._waiting[0]  # one at a time is worked on
        by_run = {run.log_offset: run for run in publication.runs}
        seen: dict[int, int] = {}
        for at, record in self._store.records_from(log_offset):
            if sys_flag_of(record) & TRANSACTION_BITS == SysFlag.COMMIT:
                try:
                    origin = decode(record).prepared_offset
                except StoreCorrupt as error:
                    logger.warning("the record at log offset %d is damaged: %s", at, error)
                    continue
                seen[origin] = seen.get(origin, 0) + 1
        for log_offset_of_run, count in seen.items():
            if log_offset_of_run in by_run:
                while publication.runs[0].log_offset != log_offset_of_run:
                    publication.runs.popleft()
                    publication.done = 0
                publication.done += count

    def first_needed(self, end: int) -> int:
        """Return the queue offset of the oldest run that is kept; `end` without any."""
        return min((publication.runs[0].queue_offset for publication in self._waiting), default=end)

    def publish(self) -> int:
        """Make the next slice visible; return the queue offset of its note. Raises `StoreNotWritable`."""
        publication = self._waiting[0]
        run = publication.runs[0]
        if self._members is None:
            self._open(publication)
        messages = self._slice()
        done = publication.done + len(messages)
        ended = not messages or done >= run.messages
        note = self._ledger.note(LedgerNote(run.transaction, run.queue_offset, run.messages if ended else done))
        try:
            self._append(publication, messages, note)
        except StoreNotWritable:
            self._members = None  # the next try begins with what was not written
            raise
        if ended:
            self._end_run(publication)
        return note.queue_offset

    def _open(self, publication: _Publication) -> None:
        run = publication.runs[0]
        record, reason = None, "it is not in the log any more"
        try:
            record = self._store.message_at(run.log_offset)
        except StoreCorrupt as error:
            reason = str(error)
        if record is None:
            logger.error(
                "the run at log offset %d is lost, with %d messages of batch transaction %s: %s",
                *(run.log_offset, run.messages, run.transaction, reason),
            )
            self._members = iter(())
            return
        self._members = decode_batch(record.stored_body)
        for _ in range(publication.done):
            next(self._members, None)
        self._shape = self._shape_of(record, run)

    def _shape_of(self, record: StoredMessage, run: Run) -> _Shape:
        topic = record.properties[Property.REAL_TOPIC]
        settings = self._topics.find(topic)
        tags = 0 if settings is None or settings.filter_type == SINGLE_TAG else SysFlag.MULTI_TAGS
        queue_id = int(record.properties[Property.REAL_QUEUE_ID])
        flags = SysFlag.COMMIT | tags
        return _Shape(topic, queue_id, flags, record.born_ms, record.born_address, run.log_offset)

    def _slice(self) -> list[StoredMessage]:
        assert self._members is not None
        messages: list[StoredMessage] = []
        size = 0
        for member in self._members:
            messages.append(self._message(member))
            size += len(member.body)
            if len(messages) == SLICE or size >= SLICE_BYTES:
                break
        return messages

    def _message(self, member: BatchMember) -> StoredMessage:
        shape = self._shape
        assert shape is not None
        text = member.property_text
        return StoredMessage(
            shape.topic,
            member.body,
            text + ("" if not text or text.endswith(PAIRS) else PAIRS) + self._cluster_pair,
            shape.queue_id,
            member.flag,
            shape.sys_flag,
            shape.born_ms,
            shape.born_address,
            prepared_offset=shape.log_offset,
        )

    def _append(self, publication: _Publication, messages: list[StoredMessage], note: StoredMessage) -> None:
        try:
            self._put_message.put_batch(messages, behind=[note])
            publication.done += len(messages)
        except MessageRefused:  # too much for one write
            for message in messages:
                self._append_single(message)
                publication.done += 1
            self._put_message.put_record(note)

    def _append_single(self, message: StoredMessage) -> None:
        try:
            self._put_message.put(message)
        except MessageRefused:  # it was checked when it came; the limits are others now
            logger.exception("a committed message to %s is lost", message.topic)

    def _end_run(self, publication: _Publication) -> None:
        self._members = self._shape = None
        publication.runs.popleft()
        publication.done = 0
        if not publication.runs:
            publication.decision.visible = True
            self._waiting.popleft()
