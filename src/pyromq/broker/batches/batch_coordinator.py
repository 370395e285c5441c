"""Batch transactions: many half messages under one name, decided by one record of the ledger (the table of decisions).

    run    ──►  half runs' topic                       an attempt (a token) sends its messages in runs
    commit ──►  ledger, queue 0                        the commit point, once per name: these tokens win
    then   ──►  messages to their queues + note        by the broker, slice by slice
           ──►  losing and timed-out attempts are forgotten

A run is one request with messages of one queue; a note is a record of progress. The broker checks no producers: the
ledger holds each decision. Requests only append records. The tables change when a record is applied, at the start and
while the broker runs. Progress is kept as offsets of a group.
"""

from __future__ import annotations

from collections import deque

from pyromq.broker.batches.batch_publishing import BatchPublishing
from pyromq.broker.batches.commit_decisions import ENTRIES, NOTES, CommitDecision, CommitDecisions
from pyromq.broker.batches.half_batches import ACCOUNT, HalfBatch, HalfBatches, run_of, run_properties
from pyromq.broker.cold_reads import ColdReads, Fetching
from pyromq.broker.config import BrokerConfig
from pyromq.broker.consuming.consumer_offsets import ConsumerOffsets
from pyromq.broker.internal_queues import InternalQueues
from pyromq.broker.put_message import PutMessage
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.errors import BatchDecided, StoreCorrupt
from pyromq.logs import logger_of
from pyromq.message import Property, StoredMessage, encode_properties
from pyromq.names import HALF_RUN_TOPIC, LEDGER_TOPIC
from pyromq.net.tasks import Alarm
from pyromq.record import RecordHead, decode_labels
from pyromq.remoting.bodies import FILE, BatchAttempt, LedgerNote, decode_body
from pyromq.store.disk import readable
from pyromq.store.message_store import MessageStore, QueueEntry
from pyromq.store.queue.consume_queue import FILLER_SIZE

logger = logger_of(__name__)

GROUP = "CID_RMQ_SYS_HALF_RUNS"
LOADING_SECONDS = 1.0  # longest wait for a run's record to be loaded; the alarm usually fires earlier
CHECK_SECONDS = 60.0  # longest time between two searches for timed-out batch transactions


class BatchCoordinator:
    """The batch transactions of one broker. `alarm` fires when `step` has decided messages to publish."""

    def __init__(
        self,
        store: MessageStore,
        put_message: PutMessage,
        *,
        topics: Topics,
        offsets: ConsumerOffsets,
        cold_reads: ColdReads,
        config: BrokerConfig,
        clock: Clock,
    ) -> None:
        self.alarm = Alarm(clock)
        self._fetching = Fetching(cold_reads, self.alarm)
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._config = config
        self._clock = clock
        self._ledger = CommitDecisions(store, put_message, topics=topics, config=config, clock=clock)
        self._runs = HalfBatches(clock, config.limits.undecided_runs)
        self._publications = BatchPublishing(store, put_message, topics=topics, ledger=self._ledger, config=config)
        # Queue offset of each note, and of the run that must be settled before the note is no longer needed.
        self._notes: deque[tuple[int, int]] = deque()
        self._last_note = 0  # log offset of the latest note on visible messages
        self._next_check = 0.0
        self._queues = InternalQueues(
            GROUP, [(HALF_RUN_TOPIC, 0), (LEDGER_TOPIC, ENTRIES), (LEDGER_TOPIC, NOTES)], store, offsets
        )
        self.find = self._ledger.find
        self.undecided = self._runs.find
        self.undecided_names = self._runs.names
        self.described = self._runs.described

    # -- following the log: records change the tables

    def load(self) -> None:
        """Apply runs, decisions and notes from the stored progress on.

        So the messages are found that are not visible yet.
        """
        self._queues.follow(self.apply, self._read)
        self._queues.saved = self._not_needed()

    def repair(self) -> None:
        """Find the messages that are visible although their note is missing.

        A crash may have lost the note, or a follower became the master before the note arrived. Must be called once,
        before `step`.
        """
        self._publications.skip_visible(self._last_note)

    def apply(self, record: StoredMessage) -> None:
        """Enter the run, decision or note of a record. The body of a run is not read."""
        if record.topic == HALF_RUN_TOPIC:
            self._apply_run(record)
        elif record.queue_id == ENTRIES:
            decision = self._ledger.apply(record)
            self._publications.add(decision, self._runs.settle(decision.transaction, decision.winners))
        else:
            self._apply_note(record, decode_body(LedgerNote, record.stored_body, FILE))

    def _apply_run(self, record: StoredMessage) -> None:
        run = run_of(record.queue_offset, record.log_offset, record.properties)
        if run is None:
            logger.error("the record at log offset %d is not a run of half messages: skipped", record.log_offset)
            return
        age_seconds = max(0.0, (self._clock.now_ms() - record.store_ms) / 1000)
        topic, owner = record.properties[Property.REAL_TOPIC], record.properties.get(ACCOUNT)
        self._runs.add(run, topic=topic, owner=owner, age_seconds=age_seconds)

    def _apply_note(self, record: StoredMessage, note: LedgerNote) -> None:
        self._notes.append((record.queue_offset, note.half_queue_offset))
        if note.tokens is None:
            self._last_note = record.log_offset
            self._publications.advance(note)
        else:
            self._runs.drop(note.transaction, note.tokens)

    def _read(self, entry: QueueEntry, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """Return a record of the ledger or of a run; None if there is no record.

        The record of a run has no body, because bodies are large.
        """
        if topic != HALF_RUN_TOPIC:
            return self._store.message_of(entry, topic, queue_id, queue_offset)
        labels = self._labels_at(entry)
        return StoredMessage(
            topic,
            b"",
            labels.property_text if labels is not None else "",
            queue_id,
            queue_offset=queue_offset,
            log_offset=entry.log_offset,
            store_ms=labels.store_ms if labels is not None else 0,
        )

    def _labels_at(self, entry: QueueEntry) -> RecordHead | None:
        view = None if entry.size == FILLER_SIZE else self._store.record_at(entry.log_offset)
        try:
            return None if view is None else decode_labels(view, 0)
        except StoreCorrupt:
            return None

    # -- requests of clients: records are appended

    def take(
        self, message: StoredMessage, run: HalfBatch, *, group: str, account: str | None = None, holder: str = ""
    ) -> None:
        """Store a run, whose messages are the batch `message`. A run that is stored already is ignored.

        The run counts against the share of `holder` (an account or connection). Raises `BatchDecided` if the
        transaction is decided, `LimitReached`, `MessageRefused`, `StoreNotWritable`.
        """
        if self._ledger.find(run.transaction) is not None:
            raise BatchDecided(f"transaction {run.transaction!r} is decided; attempt {run.token!r} is too late")
        if self._runs.has(run.transaction, run.token, run.number):
            return
        self._topics.for_group_retry(HALF_RUN_TOPIC, 1)  # tools can read only topics with settings
        self._runs.check_room(holder)
        undecided = self._runs.find(run.transaction)
        owner = account if undecided is None else undecided.owner
        message.property_text = encode_properties(run_properties(run, message, group=group, account=owner))
        message.topic, message.queue_id = HALF_RUN_TOPIC, 0
        self._put_message.put_record(message)  # statistics count the run's messages when they become visible
        self._runs.count_for(holder, run)

    def commit(
        self, transaction: str, attempts: list[BatchAttempt], *, content: str | None = None, holder: str = ""
    ) -> tuple[CommitDecision, bool]:
        """Return the decision on a transaction, and whether this call made it: only the first commit counts.

        `content` is kept with the decision. Raises `BatchIncomplete` if messages of an attempt are missing or none were
        sent, `LimitReached`, `MessageRefused`, `StoreNotWritable`.
        """
        if (decision := self._ledger.find(transaction)) is not None:
            return decision, False
        self._runs.check_complete(transaction, attempts)
        decision = self._ledger.decide(transaction, attempts, content=content, holder=holder)
        self.alarm.schedule_within(0)
        return decision, True

    def roll_back(self, transaction: str, tokens: list[str]) -> None:
        """Discard the messages of undecided attempts, by their tokens. Unknown and decided attempts are ignored."""
        known = self._runs.known(transaction, tokens)
        if known:
            end = self._store.next_offset(HALF_RUN_TOPIC, 0)
            self._put_message.put_record(self._ledger.note(LedgerNote(transaction, end, tokens=known)))

    # -- background work: publish decided messages, roll back timed-out attempts

    @readable()
    def step(self) -> float:
        """Publish a slice of decided messages, and roll back timed-out attempts. Return the seconds to the next call.

        Raises `StoreNotWritable`, and `StoreError` if a file cannot be read; the next call resumes at the same message.
        """
        now = self._clock.monotonic()
        if now >= self._next_check:
            self._next_check = now + min(CHECK_SECONDS, self._config.half_run_timeout_ms / 2000)
            self._time_out()
            self._ledger.expire()
        if self._fetching.is_under_way or self._fetching.lacks(self._publications.unread()):
            return LOADING_SECONDS
        if self._publications:
            self._publications.publish()
        return 0.0 if self._publications else self._next_check - now

    def _time_out(self) -> None:
        for transaction, tokens in self._runs.silent(self._config.half_run_timeout_ms):
            logger.warning("batch transaction %s: not decided in time, rolled back", transaction)
            self.roll_back(transaction, tokens)

    # -- progress on disk

    @property
    def log_needed_from(self) -> int:
        """Log offset of the oldest run that the saved progress leaves unsettled.

        Retention must keep the log from there. The decision on the run and its notes come later in the log. Decisions
        whose messages are visible do not count: retention may delete them.
        """
        return self._queues.log_needed_from(HALF_RUN_TOPIC)

    def note_progress(self, *, closed: bool = False) -> None:
        """Commit, as offsets of the group, the progress whose log is on disk.

        `closed` says that all of the log is on disk.
        """
        self._queues.save(self._not_needed(), closed=closed)

    def _not_needed(self) -> dict[tuple[str, int], int]:
        end = self._store.next_offset(HALF_RUN_TOPIC, 0)
        runs = min(self._runs.first_needed(end), self._publications.first_needed(end))
        while self._notes and self._notes[0][1] < runs:
            self._notes.popleft()
        notes = self._notes[0][0] if self._notes else self._store.next_offset(LEDGER_TOPIC, NOTES)
        entries = self._ledger.first_needed
        return {(HALF_RUN_TOPIC, 0): runs, (LEDGER_TOPIC, ENTRIES): entries, (LEDGER_TOPIC, NOTES): notes}
