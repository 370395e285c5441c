"""Publishes decided runs (requests with messages of one queue): their messages become visible, each once.

Messages are appended in slices, in order of the decisions. A note of how far the transaction is visible follows each
slice. A crash can separate messages from their note only at the end of the log. Each message names its run, in the
field for the half message's offset. So a restart counts messages without a note, and does not append them again.
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

MADE_SLICE = 256  # limit of messages in a slice that is decoded, which blocks the event loop for about 3 ms
# Limits of messages and bytes in a copied slice, which takes about 1 ms: a usual run of 1 MiB is one slice.
SLICE = 8192 if speedups.is_active else MADE_SLICE
SLICE_BYTES = 2 << 20
TRANSACTION_BITS = SysFlag.ROLLBACK


@dataclass(slots=True)
class _Publication:
    """A decision in progress, with its runs that are not wholly visible.

    `done` is the number of visible messages of the first run.
    """

    decision: CommitDecision
    runs: deque[HalfBatch]
    done: int = 0


class _OpenRun:
    """The run that is being published, from its first message on that is not visible."""

    def __init__(self, batch: bytes = b"", shape: Shape | None = None, done: int = 0) -> None:
        self.members: Members | None = None
        self.shape = shape
        self._batch = batch
        self._messages: Iterator[StoredMessage] = iter(())  # the decoded rest of the run, if `members` is None
        if shape is not None:
            self.members = members_of(batch, shape.more)
            if self.members is None:
                self._messages = self.made(done)

    def made(self, first: int, end: int | None = None) -> Iterator[StoredMessage]:
        """Yield the messages from number `first` to `end`, decoded from the batch, ready to be stored."""
        members = islice(decode_batch(self._batch), first, end)
        return iter(()) if self.shape is None else self.shape.messages(members)

    def next_slice(self, first: int, max_bytes: int) -> tuple[int, list[StoredMessage]]:
        """Return the number of messages in the next slice, and the messages themselves if they must be decoded.

        Without decoding the messages are []. The slice ends once it has `max_bytes`.
        """
        if self.members is not None:
            return self.members.next_slice(first, SLICE, max_bytes), []
        messages: list[StoredMessage] = []
        size = 0
        for message in self._messages:
            messages.append(message)
            size += len(message.stored_body)
            if len(messages) == MADE_SLICE or size >= max_bytes:
                break
        return len(messages), messages


class BatchPublishing:
    """The decisions of one broker whose messages are not all visible yet, oldest first."""

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
        # A record limit below `SLICE_BYTES` is the limit of one write too; the last message may exceed a half of it.
        self._slice_bytes = min(SLICE_BYTES, config.max_message_bytes // 2)
        self._cluster_pair = f"{Property.CLUSTER}\x01{config.cluster}"
        self._waiting: dict[str, _Publication] = {}  # name of a transaction -> its publication
        self._open_run: _OpenRun | None = None  # the first run of the first publication, if it is loaded

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, decision: CommitDecision, runs: list[HalfBatch]) -> None:
        """Enter a decision, to publish these runs. Without runs the decision is visible immediately."""
        if runs:
            self._waiting[decision.transaction] = _Publication(decision, deque(runs))
        else:
            decision.visible = True

    def advance(self, note: LedgerNote) -> None:
        """Apply a note: all earlier runs of the transaction are visible, and a number of messages of the note's run."""
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
        """Skip messages that are visible though a crash lost their note.

        Must be called once, before messages are published.

        Such messages follow the last note on visible messages, whose log offset is `last_note`.
        """
        publication = self._first  # only messages of the first publication may be partly visible
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
        """Return the queue offset of the oldest run still to be published; `end` if there is none."""
        return min((publication.runs[0].queue_offset for publication in self._waiting.values()), default=end)

    def unread(self) -> PagesToLoad:
        """Return the pages that must be loaded before `publish`; [] if none. Call again after loading them."""
        publication = self._first
        if publication is None or self._open_run is not None:
            return []
        return self._store.residency.record_to_load(publication.runs[0].log_offset)

    def publish(self) -> None:
        """Append the next slice of messages and its note. Raises `StoreNotWritable`.

        After an error, the next call resumes at the first message that was not written.
        """
        publication = self._first
        assert publication is not None
        run = publication.runs[0]
        opened = self._open_run or self._opened(run, publication.done)
        self._open_run = None  # set again once the slice is written
        count, messages = opened.next_slice(publication.done, self._slice_bytes)
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
        """Append a slice and its note without decoding the messages.

        Return False, with nothing appended, if that is impossible.
        """
        if run.members is None or run.shape is None or not count:
            return False
        room = FIXED_SIZE + len(note.topic) + len(note.stored_body)
        try:
            stored = self._put_message.put_members(
                *(run.members, run.shape), first=publication.done, count=count, spare_bytes=room
            )
        except MessageRefused:  # the slice is too large for one write
            return False
        if stored is None:
            return False
        publication.done += count  # counted even if the append of the note fails
        self._put_message.put_record(note)
        return True

    def _append(self, publication: _Publication, messages: list[StoredMessage], note: StoredMessage) -> None:
        try:
            self._put_message.put_batch(messages, behind=[note])
        except MessageRefused:  # the slice is too large for one write
            for message in messages:
                self._append_single(message)
                publication.done += 1
            self._put_message.put_record(note)

    def _append_single(self, message: StoredMessage) -> None:
        try:
            self._put_message.put(message)
        except MessageRefused:  # accepted when sent; a limit was lowered since
            logger.exception("a committed message to %s is lost", message.topic)
