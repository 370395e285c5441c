"""Publishing of decided runs: their messages become visible slice by slice, in order of the decisions, each once.

A slice is messages followed by a note of how far the transaction is visible. A crash can separate them only at the end
of the log, and leave messages without a note. Each message names its run (in the field for the half message's offset),
so a restart counts such messages and does not append them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from pyromq import speedups
from pyromq.broker.batches.commit_decisions import CommitDecision, CommitDecisions
from pyromq.broker.batches.half_batches import HalfBatch
from pyromq.broker.config import BrokerConfig
from pyromq.broker.put_message import PutMessage
from pyromq.broker.topics import Topics
from pyromq.errors import MessageRefused, StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage, SysFlag
from pyromq.record import FIXED_SIZE, decode, decode_batch, sys_flag_of
from pyromq.remoting.bodies import SINGLE_TAG, LedgerNote
from pyromq.slow_work import PagesToLoad
from pyromq.store.batch_appends import Shape, members_of
from pyromq.store.message_store import MessageStore

if TYPE_CHECKING:
    from pyromq.speedups.batches import Members

logger = logger_of(__name__)

# Messages of one slice: blocks the event loop for about 3 ms, or 1 ms if members are copied and not decoded.
MADE_SLICE = 256
SLICE = 4096 if speedups.is_active else MADE_SLICE
SLICE_BYTES = 1 << 20
TRANSACTION_BITS = SysFlag.ROLLBACK


@dataclass(slots=True)
class _Publication:
    """A decision, its runs that are not wholly visible, and the number of visible messages of the first run."""

    decision: CommitDecision
    runs: deque[HalfBatch]
    done: int = 0


class _OpenRun:
    """The run being published, from its first message that is not visible."""

    def __init__(self, batch: bytes = b"", shape: Shape | None = None, done: int = 0) -> None:
        self.members: Members | None = None
        self.shape = shape
        self._batch = batch
        self._messages: Iterator[StoredMessage] = iter(())  # the rest of the run, if there are no members
        if shape is not None:
            self.members = members_of(batch, shape.more)
            if self.members is None:
                self._messages = self.made(done)

    def made(self, first: int, end: int | None = None) -> Iterator[StoredMessage]:
        """Yield messages decoded from the batch, to be stored."""
        members = islice(decode_batch(self._batch), first, end)
        return iter(()) if self.shape is None else self.shape.messages(members)

    def next_slice(self, first: int) -> tuple[int, list[StoredMessage]]:
        """Return the size of the next slice, and its messages if they are decoded from the batch."""
        if self.members is not None:
            return self.members.next_slice(first, SLICE, SLICE_BYTES), []
        messages: list[StoredMessage] = []
        size = 0
        for message in self._messages:
            messages.append(message)
            size += len(message.stored_body)
            if len(messages) == MADE_SLICE or size >= SLICE_BYTES:
                break
        return len(messages), messages


class BatchPublishing:
    """The decisions of one broker that are not visible yet, oldest first."""

    def __init__(
        self,
        store: MessageStore,
        put_message: PutMessage,
        *,
        topics: Topics,
        ledger: CommitDecisions,
        config: BrokerConfig,
    ) -> None:
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._ledger = ledger
        self._cluster_pair = f"{Property.CLUSTER}\x01{config.cluster}"
        self._waiting: dict[str, _Publication] = {}  # by transaction
        self._open_run: _OpenRun | None = None  # the first run of the first publication

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, decision: CommitDecision, runs: list[HalfBatch]) -> None:
        """Publish the runs of a decision."""
        if runs:
            self._waiting[decision.transaction] = _Publication(decision, deque(runs))
        else:
            decision.visible = True

    def advance(self, note: LedgerNote) -> None:
        """Apply a note: the messages of its run are visible up to a number, and those of earlier runs."""
        publication = self._waiting.get(note.transaction)
        if publication is None:
            return
        runs = publication.runs
        while runs and (runs[0].queue_offset, runs[0].messages) < (note.half_queue_offset, note.messages + 1):
            runs.popleft()
            publication.done = 0
        if not runs:
            publication.decision.visible = True
            del self._waiting[note.transaction]
        elif runs[0].queue_offset == note.half_queue_offset:
            publication.done = note.messages

    def skip_visible(self, last_note: int) -> None:
        """Skip messages that a crash left visible without a note. Called once at the start.

        They are behind the last note, at log offset `last_note`.
        """
        publication = self._first  # only the first publication is in progress
        if publication is None:
            return
        by_run = {run.log_offset: run for run in publication.runs}
        seen: dict[int, int] = {}
        for at, record in self._store.records_from(max(last_note, publication.decision.log_offset)):
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

    @property
    def _first(self) -> _Publication | None:
        return next(iter(self._waiting.values()), None)

    def first_needed(self, end: int) -> int:
        """Return the queue offset of the oldest run to publish; `end` without any."""
        return min((publication.runs[0].queue_offset for publication in self._waiting.values()), default=end)

    def unread(self) -> PagesToLoad:
        """Return the pages to load before `publish`; call again after loading them."""
        publication = self._first
        if publication is None or self._open_run is not None:
            return []
        return self._store.residency.record_to_load(publication.runs[0].log_offset)

    def publish(self) -> None:
        """Append the next slice and its note, which advances the publication. Raises `StoreNotWritable`.

        After an error the next call resumes at the first message that was not written.
        """
        publication = self._first
        assert publication is not None
        run = publication.runs[0]
        opened = self._open_run or self._opened(run, publication.done)
        self._open_run = None  # until its slice is written
        count, messages = opened.next_slice(publication.done)
        done = publication.done + count
        ended = not count or done >= run.messages
        note = self._ledger.note(LedgerNote(run.transaction, run.queue_offset, run.messages if ended else done))
        if not self._append_members(publication, opened, count, note):
            self._append(publication, messages or list(opened.made(publication.done, done)), note)
        if not ended:
            self._open_run = opened

    def _opened(self, run: HalfBatch, done: int) -> _OpenRun:
        record, reason = None, "the log no longer has it"
        try:
            record = self._store.message_at(run.log_offset)
        except StoreCorrupt as error:
            reason = str(error)
        if record is None:
            logger.error(
                "the run at log offset %d is lost, with %d messages of batch transaction %s: %s",
                *(run.log_offset, run.messages, run.transaction, reason),
            )
            return _OpenRun()
        return _OpenRun(record.stored_body, self._shape(record, run), done)

    def _shape(self, record: StoredMessage, run: HalfBatch) -> Shape:
        topic = record.properties[Property.REAL_TOPIC]
        settings = self._topics.find(topic)
        tags = 0 if settings is None or settings.filter_type == SINGLE_TAG else SysFlag.MULTI_TAGS
        return Shape(
            topic,
            int(record.properties[Property.REAL_QUEUE_ID]),
            SysFlag.COMMIT | tags,
            record.born_ms,
            record.born_address,
            self._cluster_pair,
            prepared_offset=run.log_offset,
        )

    def _append_members(self, publication: _Publication, run: _OpenRun, count: int, note: StoredMessage) -> bool:
        """Append a slice and its note from the batch's members; return False if they must be decoded."""
        if run.members is None or run.shape is None or not count:
            return False
        room = FIXED_SIZE + len(note.topic) + len(note.stored_body)
        try:
            stored = self._put_message.put_members(
                *(run.members, run.shape), first=publication.done, count=count, spare_bytes=room
            )
        except MessageRefused:  # too large for one write
            return False
        if stored is None:
            return False
        publication.done += count  # also if appending the note fails
        self._put_message.put_record(note)
        return True

    def _append(self, publication: _Publication, messages: list[StoredMessage], note: StoredMessage) -> None:
        try:
            self._put_message.put_batch(messages, behind=[note])
        except MessageRefused:  # too large for one write
            for message in messages:
                self._append_single(message)
                publication.done += 1
            self._put_message.put_record(note)

    def _append_single(self, message: StoredMessage) -> None:
        try:
            self._put_message.put(message)
        except MessageRefused:  # it passed when it was sent; a limit was lowered since
            logger.exception("a committed message to %s is lost", message.topic)
