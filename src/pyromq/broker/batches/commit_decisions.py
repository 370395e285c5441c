"""The ledger of batch transactions: decisions and their winning attempts. A name is decided once and kept for a time.

    queue of the ledger's topic   body of a record (JSON)   meaning
    0                             LedgerEntry               the commit point: these attempts win
    1                             LedgerNote                progress since: visible up to here, rolled back

The table is built from the log at the start. Ours: RocketMQ has no batch transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyromq.broker.batches.holders import Holders
from pyromq.broker.config import BrokerConfig
from pyromq.broker.put_message import PutMessage
from pyromq.broker.topics import Topics
from pyromq.clock import Clock
from pyromq.message import StoredMessage
from pyromq.names import LEDGER_TOPIC
from pyromq.remoting.bodies import FILE, BatchAttempt, LedgerEntry, LedgerNote, decode_body, encode_body
from pyromq.remoting.bodies.body import Body
from pyromq.store.message_store import MessageStore

ENTRIES, NOTES = 0, 1  # queue ids
QUEUES = 2


@dataclass(slots=True)
class CommitDecision:
    """The decision on one transaction: the winning attempts."""

    transaction: str
    attempts: list[BatchAttempt]
    decided_ms: int
    queue_offset: int
    log_offset: int
    content: str | None = None  # description of the transaction's content, from its commit
    visible: bool = False
    holder: str = ""  # the decision counts for its share

    @property
    def winners(self) -> list[str]:
        """The tokens of the winning attempts."""
        return [attempt.token for attempt in self.attempts]


class CommitDecisions:
    """The decisions of one broker, oldest first."""

    def __init__(
        self, store: MessageStore, put_message: PutMessage, *, topics: Topics, config: BrokerConfig, clock: Clock
    ) -> None:
        self._store = store
        self._put_message = put_message
        self._topics = topics
        self._config = config
        self._clock = clock
        self._decisions: dict[str, CommitDecision] = {}
        self._holders = Holders("decided batch transactions", "maxBatchDecisions", config.limits.batch_decisions)

    def __len__(self) -> int:
        return len(self._decisions)

    def load(self, first: int) -> None:
        """Read the decisions from a queue offset on."""
        for record in self._records(ENTRIES, first):
            entry = decode_body(LedgerEntry, record.stored_body, FILE)
            if entry.transaction in self._decisions:  # decided again after it was forgotten
                self._forget(entry.transaction)
            self._enter(entry, record)

    def notes(self, first: int) -> Iterator[tuple[StoredMessage, LedgerNote]]:
        """Yield the notes from a queue offset on, with their records."""
        for record in self._records(NOTES, first):
            yield record, decode_body(LedgerNote, record.stored_body, FILE)

    def _records(self, queue_id: int, first: int) -> Iterator[StoredMessage]:
        for offset in range(first, self._store.max_offset(LEDGER_TOPIC, queue_id)):
            if (record := self._store.message(LEDGER_TOPIC, queue_id, offset)) is not None:
                yield record

    def find(self, transaction: str) -> CommitDecision | None:
        return self._decisions.get(transaction)

    def all(self) -> list[CommitDecision]:
        """Return the decisions, oldest first."""
        return list(self._decisions.values())

    def decide(
        self, transaction: str, attempts: list[BatchAttempt], *, content: str | None, holder: str
    ) -> CommitDecision:
        """Append the decision; it counts as soon as this returns.

        Raises `LimitReached` if the holder exceeds its share, `MessageRefused`, `StoreNotWritable`.
        """
        assert transaction not in self._decisions, "a name is decided once"
        self._holders.check(holder)
        entry = LedgerEntry(transaction, attempts, content)
        record = self._record(ENTRIES, entry)
        self._put_message.put_record(record)
        return self._enter(entry, record, holder)

    def note(self, note: LedgerNote) -> StoredMessage:
        """Return a note's record, to be appended after the records that it describes."""
        return self._record(NOTES, note)

    def expire(self) -> None:
        """Forget visible decisions older than the configured time."""
        limit = self._clock.now_ms() - self._config.ledger_ms
        for decision in list(self._decisions.values()):
            if decision.decided_ms > limit:
                break
            if decision.visible:
                self._forget(decision.transaction)

    @property
    def first_needed(self) -> int:
        """Queue offset of the oldest decision that is kept."""
        oldest = next(iter(self._decisions.values()), None)
        return self._store.max_offset(LEDGER_TOPIC, ENTRIES) if oldest is None else oldest.queue_offset

    def _forget(self, transaction: str) -> None:
        self._holders.remove(self._decisions.pop(transaction).holder)

    def _enter(self, entry: LedgerEntry, record: StoredMessage, holder: str = "") -> CommitDecision:
        place = record.store_ms, record.queue_offset, record.log_offset
        decision = CommitDecision(entry.transaction, entry.attempts, *place, entry.content, holder=holder)
        self._holders.add(holder)
        self._decisions[entry.transaction] = decision
        return decision

    def _record(self, queue_id: int, content: Body) -> StoredMessage:
        self._topics.for_group_retry(LEDGER_TOPIC, QUEUES)  # tools can read only topics with settings
        return StoredMessage(
            LEDGER_TOPIC,
            encode_body(content),
            queue_id=queue_id,
            born_ms=self._clock.now_ms(),
            born_address=self._store.store_address,
        )
